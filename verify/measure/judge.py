"""From outputs to figures: errors on the device, doubtful and worst elements judged exactly, then tallied.

The order matters. First every element gets an error interval from the fast truth. Then these are judged by
`verify.truth.exact`: elements whose rounding the interval leaves open, every element that could be the
maximum (overall and per regime), and a random sample that checks the certificate itself. Their exact
figures replace the fast ones before anything is counted, so that no headline rests on float64 alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verify.cases import counter
from verify.measure.tally import KEEP, Tally, tally, top, worst_of
from verify.ops.op import Op, Problem
from verify.truth.exact import Judged, judge
from verify.truth.fast import Truth, check_bound
from verify.truth.formats import Format
from verify.truth.ulp import Errors, Policy, bits_of, errors

ESCALATION_LIMIT = 50_000  # undecided elements per result that are judged, unless another `room` is asked for
CONTENDER_ROUNDS = 6
SAMPLE = 24  # elements per result whose certificate is checked


@dataclass(frozen=True)
class Outcome:
    """The judged errors of one result of one case."""

    tallies: list[Tally]  # one per regime segment, in the order of `segment` numbers
    exact: dict[int, Judged]  # flat index -> exact verdict, for the worst elements and all escalated ones
    escalated: int
    certificate: str
    errors: Errors  # of every element, with the exact figures where there are any


def judge_result(
    op: Op,
    problem: Problem,
    result: str,
    got: Tensor,
    truth: Truth,
    fmt: Format,
    *,
    policy: Policy,
    segments: Tensor | None = None,
    n_segments: int = 1,
    seed: int = 0,
    sample: int = SAMPLE,
    keep: int = KEEP,
    room: int = ESCALATION_LIMIT,
) -> Outcome:
    """Judge one output tensor. `segments` numbers the regime of each element.

    `keep` is how many of the worst elements of each regime are judged exactly besides the maximum itself, `room` how
    many of those whose rounding is open: the others are counted as undecided.
    """
    near = truth.for_result(got)
    found = errors(
        got,
        near.value,
        fmt,
        low=near.low,
        bound=near.bound,
        scale=truth.scale if op.gate == "scaled" else None,
        policy=policy,
    )
    size = found.ulp.numel()
    if segments is None:
        segments = torch.zeros(size, dtype=torch.int64, device=found.ulp.device)
    patterns = bits_of(got.reshape(-1).detach())
    exact: dict[int, Judged] = {}

    def escalate(indices: Sequence[int], *, both: bool) -> None:
        fresh = [index for index in indices if index not in exact]
        if not fresh:
            return
        points = op.points(problem, result, fresh)
        bits = patterns[torch.tensor(fresh, device=patterns.device)].tolist()
        for index, point, pattern in zip(fresh, points, bits, strict=True):
            exact[index] = judge(point, fmt, pattern & ((1 << fmt.bits) - 1), both=both, policy=policy)

    if size and sample and truth.certificate != "exact":
        chosen = sorted(set(counter.below(seed, f"check/{result}", sample, size).tolist()))
        check_bound(op.points(problem, result, chosen), truth, chosen)

    open_ones = torch.nonzero(found.undecided).reshape(-1)[:room].tolist()
    escalate(open_ones, both=False)
    found = _patched(found, exact)
    for _ in range(CONTENDER_ROUNDS):
        contenders = _contenders(found, segments, n_segments, exact, keep)
        if not contenders:
            break
        escalate(contenders, both=True)
        found = _patched(found, exact)
    # the ones that will be printed go through both routes
    leaders = _leaders(found, segments, n_segments, keep)
    for index in leaders & exact.keys():
        if exact[index].routes < 2:
            del exact[index]
    escalate(sorted(leaders), both=True)
    found = _patched(found, exact)
    tallies = tally(found, segments=segments, n_segments=n_segments)
    for segment, part in enumerate(tallies):
        _settle_maxima(part, found, segments, segment, exact)
    return Outcome(tallies=tallies, exact=exact, escalated=len(exact), certificate=truth.certificate, errors=found)


def _settle_maxima(part: Tally, found: Errors, segments: Tensor, segment: int, exact: dict[int, Judged]) -> None:
    """Let a tally's maxima and worst list speak only of elements that were judged exactly.

    Thousands of elements may share one error to within the certificate (a tail that is 100% wrong): which
    of them is largest is known only among those judged; `upper` covers the rest.
    """
    if not exact:
        return
    where = torch.tensor(list(exact), dtype=torch.int64, device=found.ulp.device)
    where = where[segments[where] == segment]
    if where.numel() == 0:
        return
    part.maximum = float(found.ulp[where].abs().max())
    if found.scaled is not None:
        part.scaled_maximum = float(found.scaled[where].abs().max())
    ranked, _ = _metrics(found)[-1]
    part.worst = worst_of(list(zip(ranked[where].tolist(), where.tolist(), strict=True)))


def _metrics(found: Errors) -> list[tuple[Tensor, Tensor]]:
    """(error, half width) of every figure that has a maximum; the judged one last."""
    metrics = [(found.ulp.abs(), found.width)]
    if found.scaled is not None and found.scaled_width is not None:
        metrics.append((found.scaled.abs(), found.scaled_width))
    return metrics


def _contenders(found: Errors, segments: Tensor, n_segments: int, exact: dict[int, Judged], keep: int) -> list[int]:
    """Elements not yet judged exactly whose interval reaches the maximum of their segment."""
    wanted = _leaders(found, segments, n_segments, keep)
    for error, width in _metrics(found):
        open_ones = (width > 0) & torch.isfinite(error)
        for segment in range(n_segments):
            chosen = segments == segment
            if not bool(chosen.any()):
                continue
            best = error[chosen].max()
            reach = torch.nonzero(chosen & open_ones & (error + width >= best)).reshape(-1)
            wanted.update(reach[: 4 * KEEP].tolist())
    return sorted(wanted - exact.keys())


def _leaders(found: Errors, segments: Tensor, n_segments: int, keep: int) -> set[int]:
    """The worst elements of each segment, by the judged figure."""
    ranked, _ = _metrics(found)[-1]
    picked: set[int] = set()
    for segment in range(n_segments):
        masked = torch.where(segments == segment, ranked, torch.full_like(ranked, -1.0))
        picked.update(index for _, index in top(masked, keep))
    return picked


def _patched(found: Errors, exact: dict[int, Judged]) -> Errors:
    """The errors with every exactly judged element replaced by its exact figure."""
    if not exact:
        return found
    device = found.ulp.device
    where = torch.tensor(list(exact), dtype=torch.int64, device=device)
    verdicts = list(exact.values())
    ulp = _replaced(found.ulp, where, [item.ulp for item in verdicts])
    width = _replaced(found.width, where, [0.0] * len(verdicts))
    scaled, scaled_width = found.scaled, found.scaled_width
    if scaled is not None and scaled_width is not None and found.scale_exponent is not None:
        units = found.scale_exponent[where].tolist()
        figures = [item.scaled(unit) for item, unit in zip(verdicts, units, strict=True)]
        scaled = _replaced(scaled, where, figures)
        scaled_width = _replaced(scaled_width, where, [0.0] * len(verdicts))
    # whether a zero has the right sign is the fast pass's word: an exact zero has none
    wrong = torch.tensor([item.misrounded for item in verdicts], device=device)
    misrounded = found.misrounded.clone()
    misrounded[where] = wrong | (misrounded[where] & found.zero_sign[where])
    undecided = found.undecided.clone()
    undecided[where] = False
    return replace(
        found,
        ulp=ulp,
        width=width,
        misrounded=misrounded,
        undecided=undecided,
        scaled=scaled,
        scaled_width=scaled_width,
    )


def _replaced(values: Tensor, where: Tensor, new: list[float]) -> Tensor:
    values = values.clone()
    values[where] = torch.tensor(new, dtype=values.dtype, device=values.device)
    return values
