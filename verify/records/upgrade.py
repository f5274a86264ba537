"""Records of older schemas as this one has them: the one place that knows what earlier files looked like.

2 added fields to 1, each with a default. 3 and 4 packed rows into columns and are not read: no release wrote them, and
gzip does more for the size. 5 is plain again, has the origin of a finding as fields, where earlier ones had the text of
a command, and says of what kind a gap is, where earlier ones had a line of text. 6 has a digest of the rest.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from verify.errors import IN_ERROR, SPENT


class UpgradeError(ValueError):
    """An older record that does not hold what its schema says; the message says where."""


def upgraded(run: Any, schema: int) -> Any:
    """The plain objects of a record of an older schema, brought up to this one; a wrong type is left to the schema."""
    if schema == 5:
        return run
    if isinstance(lines := run.get("incomplete"), list):
        run["incomplete"] = [_gap(line, run) for line in lines]
    for finding, path in _findings(run):
        if isinstance(command := finding.pop("replay", ""), str) and command:
            finding["origin"] = _origin(command, path)
    return run


def _findings(run: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """What had a replay command: worst elements, special values and laws, each with its path."""
    for kernel, path in _members(run, "kernels", "$"):
        for law, where in _members(kernel, "laws", path):
            law.pop("case", None)  # the command holds it too
            yield law, where
        for result, inside in _members(kernel, "results", path):
            for name in ("worst", "baseline_worst", "special"):
                yield from _members(result, name, inside)
            for regime, where in _members(result, "regimes", inside):
                if isinstance(worst := regime.get("worst"), dict):
                    yield worst, f"{where}.worst"


def _members(owner: Any, name: str, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    found = owner.get(name)
    for at, item in enumerate(found if isinstance(found, list) else []):
        if isinstance(item, dict):
            yield item, f"{path}.{name}[{at}]"


def _origin(command: str, path: str) -> dict[str, Any]:
    """`verify replay TARGET CASE --result R --index I`, or with `--law L` in the place of the last two, as fields."""
    try:
        verify, replay, target, case, *rest = shlex.split(command)
        options = dict(zip(rest[::2], rest[1::2], strict=True))
        if (verify, replay) != ("verify", "replay"):
            raise ValueError(command)
        if law := options.get("--law"):
            return {"target": target, "case": case, "law": law}
        return {"target": target, "case": case, "result": options["--result"], "index": int(options["--index"])}
    except (ValueError, KeyError):
        raise UpgradeError(f"Expected a replay command, got {command!r} - at `{path}.replay`") from None


def _gap(line: Any, run: dict[str, Any]) -> Any:
    """A line of `incomplete` as a gap: what a line was about stood in its wording."""
    if not isinstance(line, str):
        return line
    named = (kernel for kernel, _ in _members(run, "kernels", "$"))
    about: dict[str, Any] = next((kernel for kernel in named if line.startswith(f"{kernel.get('name')}: ")), {})
    kind = "out of time" if line.endswith(SPENT) else "other"
    if about.get("status") in ("crashed", "timeout") and line == f"{about.get('name')}: {about.get('message')}":
        kind = about["status"]
    elif IN_ERROR in line:
        kind = "harness error"
    return {"kind": kind, "text": line, "target": about.get("target", "")}
