"""PyTorch's own kernels that have a known fault: they count neither as honest nor as broken.

Each finding names one cause and the results that it explains. A finding that nothing in a measurement shows fails the
suite, so that the list stays true. A result that is listed and passes counts as honest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.breakages.measure import Measured, Outcome


@dataclass(frozen=True)
class Finding:
    """A fault of PyTorch: its cause, and which results of which programs on which inputs it explains."""

    cause: str
    programs: tuple[str, ...]
    results: Callable[[str], bool] = lambda result: True
    inputs: tuple[str, ...] = ()  # all of them if empty
    kernels: tuple[str, ...] = ("eager", "eager on cuda")

    def explains(self, measured: Measured, outcome: Outcome) -> bool:
        """True if the outcome fails in results that this fault explains, and in no other."""
        failing = [name for name, (passes, _) in outcome.results.items() if not passes]
        return (
            measured.program in self.programs
            and outcome.name in self.kernels
            and (not self.inputs or outcome.inputs in self.inputs)
            and bool(failing)
            and all(map(self.results, failing))
        )


def _gradient(result: str) -> bool:
    return result.startswith("d")


ONE_PLUS_ERF = "GELU is computed as 1 + erf(x), which has no digits left in the tail"
FINDINGS = (
    Finding(ONE_PLUS_ERF, ("gelu",), inputs=("ordinary", "outlier")),
    Finding(ONE_PLUS_ERF, ("linear, gelu",)),
    Finding(
        "the backward of a norm adds large terms that cancel where the mean is large beside the deviation",
        ("layer norm", "layer norm, modulated", "group norm", "instance norm", "transformer block")
        + ("transformer block x 4",),
        _gradient,
        ("mean 1000", "alternating"),
    ),
    Finding(
        "on a CPU, the backward of layer norm adds up dweight and dbias in 16 bits",
        ("layer norm, bfloat16", "layer norm, float16"),
        kernels=("eager",),
    ),
    Finding(
        "on a GPU, a cumulative sum of bfloat16 is kept in bfloat16", ("cumsum, bfloat16",), kernels=("eager on cuda",)
    ),
    Finding(
        "on a GPU, a variance is merged from running means in float32, which a large mean leaves few digits",
        ("variance", "std (small)"),
        lambda result: not _gradient(result),
        ("mean 1000",),
        ("eager on cuda",),
    ),
    Finding(
        "the backward of logcumsumexp sums positive and negative gradients apart and subtracts the two sums",
        ("logcumsumexp (small)",),
        _gradient,
    ),
)


def shown_nowhere(measured: Sequence[Measured]) -> list[Finding]:
    """The findings whose programs and kernels were measured, and that explain nothing there."""
    made = [(each, one) for each in measured for one in each.honest]
    return [
        finding
        for finding in FINDINGS
        if any(each.program in finding.programs and one.name in finding.kernels for each, one in made)
        and not any(finding.explains(each, one) for each, one in made)
    ]


def finding_of(measured: Measured, outcome: Outcome) -> Finding | None:
    """The finding that explains why an honest kernel fails."""
    return next((each for each in FINDINGS if not outcome.breakage and each.explains(measured, outcome)), None)
