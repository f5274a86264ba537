"""Configuration independence: no configuration of an autotuner makes a kernel wrong.

The law runs the kernel with each configuration and, on a GPU, with 1, 2, 4 and 8 warps. An elementwise op must give
the same bits each time, other ops results within the kernel's limit.

Details:

The law finds each autotuner that the kernel launches. The first configuration gives the numbers of warps. An
elementwise op splits no sum, so nothing excuses other bits.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from verify.cases import Case
from verify.cases.sizes import shapes_for
from verify.cases.strategies import CaseSpace
from verify.errors import KernelError
from verify.laws.accuracy import broken_by
from verify.laws.law import Broken, Subject, demand_same, law, plain_case, plain_cases, space_of
from verify.measure.autotuners import Launched, cannot_run, describe, forced, launched, with_warps
from verify.measure.call import Measured, run_kernel
from verify.ops.geometry import ByGeometry, Shapes

_WARPS = (1, 2, 4, 8)
# Large enough for every block of a configuration to be full somewhere and cut off somewhere. A block size that is fixed
# in the code shows only with several blocks, so some shapes have over a thousand elements.
_DIMS: ByGeometry[Shapes] = ByGeometry(
    elementwise=((5, 40), (65, 33), (1031,), (3,)),
    rowwise=((5, 40), (33, 65), (3, 1031), (2, 3)),
    contraction=((5, 40, 3), (33, 65, 40), (3, 129, 65), (2, 3, 5)),
)


def _applies(subject: Subject) -> str | None:
    case = plain_case(subject, shapes_for(subject.kernel, _DIMS, 1 << 12)[0])
    with launched() as tuners:
        try:
            run_kernel(subject.kernel, case, subject.backend.device)
        except KernelError:
            return None  # the check raises the same error, and reports it with its case
    return None if tuners else "the kernel launches no Triton autotuner"


def _configurations(found: Launched, on_gpu: bool) -> Iterator[Any]:
    yield from found.configs
    if on_gpu:  # the interpreter has no warps
        yield from (with_warps(found.configs[0], warps) for warps in _WARPS)


def _run(subject: Subject, case: Case, found: Sequence[Launched], chosen: Launched, config: Any) -> Measured | None:
    """Runs the kernel once with `config` for `chosen` and the first configuration for the other autotuners."""
    with ExitStack() as stack:
        for each in found:
            stack.enter_context(forced(each.tuner, config if each is chosen else each.configs[0]))
        try:
            return run_kernel(subject.kernel, case, subject.backend.device)
        except KernelError as error:
            if cannot_run(error):
                return None
            raise Broken(str(error), case, {"configuration": describe(chosen.tuner, config)}) from error


def configurations(subject: Subject, case: Case) -> Iterator[tuple[dict[str, str], Measured]]:
    """Yields the results of the tuned kernel, and then those with each configuration, which the facts describe."""
    with launched() as found:
        yield {}, run_kernel(subject.kernel, case, subject.backend.device)
    found = [each for each in found if each.configs]
    for each in found:
        for config in _configurations(each, subject.backend.triton == "compiled"):
            got = _run(subject, case, found, each, config)
            if got is not None:
                yield {"configuration": describe(each.tuner, config)}, got


def _space(subject: Subject) -> CaseSpace:
    return space_of(subject, shapes=shapes_for(subject.kernel, _DIMS, 1 << 12))


@law("configuration independence", _space, applies=_applies, examples=plain_cases, share=0.25)
def configuration_independence(subject: Subject, case: Case) -> None:
    """Every configuration of every autotuner keeps the kernel's promise."""
    runs = configurations(subject, case)
    _, tuned = next(runs)
    for facts, got in runs:
        if subject.kernel.op.geometry.by_element:
            rule = "results depend on the configuration of an autotuner"
            labels = ("this configuration", "tuned")
            demand_same(case, got.to_read.results, tuned.to_read.results, rule, labels=labels, facts=facts)
        elif broken := broken_by(subject, case, got):
            rule = f"{broken.rule} with one configuration of an autotuner"
            raise broken.restated(rule, case, facts | broken.facts)


LAWS = (configuration_independence,)
