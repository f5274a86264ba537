"""Tries all laws of a kernel: in pytest with `verify.laws_for(kernel)`, in a run with `with_laws`."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from verify.backends import Backend
from verify.declare import promises
from verify.declare.declaration import Kernel
from verify.errors import SPENT, UsageError, one_of
from verify.laws import engine, registry
from verify.laws.profiles import NAMES, remaining
from verify.measure.requests import Measure
from verify.records.record import RESULT_STATUSES, Gap, KernelRun, LawRun, unrepeatable
from verify.workers.phases import phase
from verify.workers.requests import OnProgress, Step

_UNUSABLE = "not tried: after an error the kernel's process can no longer use the GPU"
# Calls with the same input that differ do not cause a break of these laws; they may cause every other.
_APART = ("memory bounds", "error contract")
_WEIGHTS = {"accuracy": 4.0}  # shares of the time of large cases; others have 1


def laws_for(
    kernel: Kernel,
    *,
    laws: Iterable[str] | None = None,
    without: Iterable[str] = (),
    dtypes: Iterable[str] | None = None,
) -> Callable[..., None]:
    """Returns a parametrised pytest test of every law and dtype of a kernel.

        test_my_gelu = verify.laws_for(my_gelu)

    `laws`, `without` and `dtypes` select some of them. The profile decides how many cases each law tries:
    `pytest --verify-profile=quick`, `ci` (the default), `nightly` or `exhaustive`.
    A case that broke a law is tried again by every later run if it is pinned: `verify replay ... --pin`.
    """
    import pytest

    if not isinstance(kernel, Kernel):
        raise UsageError(
            f"laws_for takes a kernel that @verify.kernel declares; received {kernel!r}",
            hint="test_my_gelu = verify.laws_for(my_gelu)",
        )
    left = remaining(without)
    chosen = tuple(law for law in map(registry.get, NAMES if laws is None else laws) if law.name in left)
    wanted = (
        kernel.dtypes if dtypes is None else tuple(one_of(kernel.name, "dtype", each, kernel.dtypes) for each in dtypes)
    )
    pairs = [(law, dtype) for law in chosen for dtype in wanted]

    @pytest.mark.parametrize(
        ("law", "dtype"), pairs, ids=[f"{law.name.replace(' ', '-')}-{dtype}" for law, dtype in pairs]
    )
    def test(law: Any, dtype: str) -> None:
        from verify import backends

        backend = backends.select()
        if not backends.runs_on(kernel.backends, backend.name):
            pytest.skip(f"declared for {', '.join(kernel.backends)}; this is {backend.name}")
        if kernel.lacking:
            pytest.skip(f"needs {', '.join(kernel.lacking)}, which is not installed")
        backends.activate(backend)
        profile = engine.current_profile()
        found = engine.run_law(law, kernel, dtype, backend, profile, target_of(kernel))
        if found.undeclared:
            counted = f"{found.refused:,} of {found.cases + found.refused:,} cases"
            text = f"{kernel.name}: it refuses {counted}, which where= or refuses=True would declare: {found.message}"
            pytest.fail(text, pytrace=False)
        if found.status == "skipped" and found.refused and law.name == "accuracy":  # nothing would judge the kernel
            pytest.fail(f"{kernel.name}: {found.message}", pytrace=False)
        if found.status == "skipped":
            pytest.skip(found.message)
        if found.status == "broken":
            pytest.fail(engine.message(kernel.name, found), pytrace=False)

    test.__doc__ = f"The laws of {kernel.name}."
    suite: Callable[..., None] = test
    return suite


def with_laws(
    done: KernelRun, kernel: Kernel, backend: Backend, asked: Measure, progress: OnProgress = lambda text: None
) -> KernelRun:
    """Adds the results of the laws to the record of a kernel.

    Returns the record unchanged if the kernel was not measured.

    `asked.laws` names the profile. Without one the laws that the kernel promises are tried, with the profile "quick". A
    seed other than 0 replaces the profile's own seed. If the kernel has large cases, its laws share the profile's
    seconds; those of a night share `asked.enough`.
    """
    if done.status not in RESULT_STATUSES:
        return done
    started = time.monotonic()
    chosen, dtypes = engine.profile_named(asked.laws or "quick", asked.seed or None), asked.dtypes or kernel.dtypes
    tried = list[LawRun]()
    promised = [name for field, name in promises.LAWS.items() if getattr(kernel, field)]
    wanted = [(name, dtype) for name in (remaining(asked.without) if asked.laws else promised) for dtype in dtypes]
    seconds = chosen.seconds * len(dtypes) if asked.laws and engine.has_large_cases(kernel) else math.inf
    seconds = min(seconds, asked.enough) if asked.laws and asked.enough else seconds
    left = [_WEIGHTS.get(name, 1.0) for name, _ in wanted]  # of the laws to come
    for number, (name, dtype) in enumerate(wanted, 1):
        progress(Step(f"{kernel.name} {dtype}, law {number} of {len(wanted)}: {name}", "law", number, len(wanted)))
        with phase(f"law {name} in {dtype}"):
            now, share = time.monotonic(), left[0] / sum(left)
            until = now + (started + seconds - now) * share
            if now >= started + seconds:
                tried.append(LawRun(name, dtype, "skipped", 0, "not tried: no time was left for it", late=True))
            else:
                tried.append(engine.try_law(registry.get(name), kernel, dtype, backend, chosen, done.target, until))
            del left[0]
        if asked.fail_fast and tried[-1].status == "broken":
            break
        if tried[-1].status != "ok" and not backend.usable():  # as after an illegal access
            tried += [LawRun(*law, "skipped", 0, _UNUSABLE, late=True) for law in wanted[number:]]
            break
    differ = {law.dtype for law in tried if law.cause == engine.UNREPEATABLE}
    tried = [
        msgspec.structs.replace(law, cause=engine.UNREPEATABLE)
        if law.status == "broken" and law.dtype in differ and not law.cause and law.law not in _APART
        else law
        for law in tried
    ]
    tried += [LawRun(law, dtype, "skipped", 0, "left out by --without") for law in asked.without for dtype in dtypes]
    gaps = list(done.gaps)
    if asked.enough and (
        none := [f"{law.law} in {law.dtype}" for law in tried if law.late and law.status == "skipped"]
    ):
        gaps.append(Gap("out of time", f"{done.name}: laws not tried: {', '.join(none)}: {SPENT}", done.target))
    return msgspec.structs.replace(
        done,
        gaps=gaps,
        status="wrong" if any(law.status == "broken" for law in tried) else done.status,
        laws=tried,
        notes=[*done.notes, *_notes(tried, seconds)],
        unrepeatable=done.unrepeatable or unrepeatable(tried),
        seconds=round(done.seconds + time.monotonic() - started, 3),
    )


def _notes(tried: Sequence[LawRun], seconds: float) -> list[str]:
    """Returns notes: what laws see, which of them ended before their last case, and which were not tried."""
    late = [law for law in tried if law.late]
    none = [law.law for law in late if law.status == "skipped"]
    seen = [f"{law.dtype}: {law.message}" for law in tried if law.status == "ok" and not law.refused and law.message]
    if not late:
        return seen
    least = min((law.cases for law in late if law.status != "skipped"), default=0)
    text = f"laws share {seconds:.3g} s: {len(late) - len(none)} tried some of their cases"
    text += f", at least {least} each; " if least else "; "
    return [*seen, f"{text if seconds < math.inf else ''}not tried: {', '.join(dict.fromkeys(none)) or 'none'}"]


def target_of(kernel: Kernel) -> str:
    """Returns the target of a kernel declared in a file, as `verify replay` takes it."""
    from pathlib import Path

    file, here = Path(kernel.file), Path.cwd()
    return f"{file.relative_to(here) if file.is_relative_to(here) else kernel.file}::{kernel.name}"
