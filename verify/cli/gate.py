"""Judge records by the committed bounds.

Judge run records by the committed bounds: every figure within its bound, every bound measured, except what
waivers.toml beside the bounds excuses until a date. With --base: measure the targets at a commit and in the working
tree on this device, judge the working tree, show the difference.

    verify gate run.json
    verify gate --base origin/main --markdown comment.md
    verify gate --base HEAD~1 accuracy.py::my_gelu --dtype bfloat16

targets: [RUN.json|TARGET ...]  RUN.json, or FILE.py, MODULE, FILE.py::KERNEL, MODULE::KERNEL (default: everything
    under `[tool.verify] kernels` in pyproject.toml)
--bounds --kernel ... --all
--json: the verdict
--markdown --sarif --junit --github
# measuring a commit and the working tree
--base --dtype ...
--seed: the observed cases
--backend
--timeout: a kernel
--output: base.json and head.json (default: not kept)
"""

import argparse
import tempfile
from pathlib import Path

from verify import api
from verify.cli import given, screen, sinks
from verify.declare import config
from verify.errors import UsageError
from verify.records.bounds import worktree
from verify.records.bounds.verdict import judged_kernels
from verify.records.compare import Comparison, compare
from verify.records.record import Run
from verify.report import compare_words, gate_data, gate_words
from verify.report.checks import of_verdict
from verify.report.document import Document
from verify.report.markdown import comment


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    measuring = ("dtype", "seed", "backend", "timeout", "output")
    unused = [f"--{name}" for name in measuring if getattr(options, name) != options.command.get_default(name)]
    comparison: Comparison | None = None
    kernels = options.kernel
    if options.base is not None:
        base, judged, paths = _both(options)
        comparison = compare(base, judged)
        if options.targets:  # only these targets were requested; a kernel that only the base has is missed
            kernels = kernels or judged_kernels([base, judged])
    elif unused:
        said = f"only --base measures; received {', '.join(unused)} without it"
        raise UsageError(said, hint="verify gate --base REF")
    elif not options.targets:
        raise UsageError("no record to judge", hint="verify run --json run.json, then verify gate run.json")
    else:
        judged = paths = options.targets
    folder = None if options.bounds is None else given.bounds_folder(options, config.find())
    done = api.gate(judged, folder, kernels=kernels, base=None if comparison is None else comparison.base)
    against = {} if comparison is None else {"comparison": gate_data.of_comparison(comparison)}

    def pages(everything: bool = False) -> list[Document]:
        of_gate = gate_words.document(done.judged, everything=everything, records=paths)
        others = [] if comparison is None else [compare_words.document(comparison, everything=everything)]
        return [of_gate, *others]

    sinks.deliver(
        options,
        lambda: sinks.pages(*pages(options.all)),
        checks=lambda: of_verdict(done.judged, done.bounds),
        json=lambda: sinks.as_json(done.data() | against),
        markdown=lambda: comment.render(*pages()).encode(),
    )
    return done.exit_code


def _both(options: argparse.Namespace) -> tuple[Run, Run, list[str]]:
    """Measures base and head one after the other. Returns their records, and the head's file if it is kept."""
    targets = _targets(options)
    arguments = [*targets, "--seed", str(options.seed), "--timeout", f"{options.timeout:g}"]
    arguments += [word for name in options.dtype for word in ("--dtype", name)]
    arguments += ["--backend", options.backend] if options.backend else []
    progress = screen.Progress()
    with worktree.checkout(options.base) as found, tempfile.TemporaryDirectory(prefix="verify-gate-") as spare:
        folder = Path(options.output).resolve() if options.output else Path(spare)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "base.json", folder / "head.json"]
        for path in paths:
            path.unlink(missing_ok=True)
        progress("base: where its modules come from")
        worktree.check_imports(found, targets, options.backend)
        progress.clear()
        base = worktree.measure(found.base, found, arguments, paths[0])
        head = worktree.measure(found.head, found, arguments, paths[1])
    return base, head, [str(paths[1])] if options.output else []


def _targets(options: argparse.Namespace) -> list[str]:
    """Returns the targets to measure on both sides: the head's own configuration unless some are named."""
    if records := [item for item in options.targets if item.endswith((".json", ".json.gz"))]:
        said = f"--base measures anew and takes targets, as `verify run` does; received the record {records[0]}"
        raise UsageError(said, hint="verify compare BASE.json HEAD.json")
    return given.targets(options, config.find())
