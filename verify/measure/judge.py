"""Judges a result: errors on the device, then exact figures for doubtful and worst elements, then tallies.

The order matters. First the fast truth gives every element an error interval. Then `verify.truth.exact` judges three
sets of elements: those whose rounding the interval leaves open, those that could be the maximum (overall and per
regime), and a random sample that checks the bounds. Their exact figures replace the fast ones before anything is
counted. So no maximum rests on float64 alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import torch
from torch import Tensor

from verify.cases import counter
from verify.declare.promises import default_noise
from verify.errors import KernelError
from verify.measure.counting import bias_of, of_judged, tally, top
from verify.measure.effort import Effort
from verify.measure.tally import KEEP, Tally
from verify.ops.op import Op, Point, Problem
from verify.truth.exact import Judged, judge_known
from verify.truth.fast import Truth, check_bound, decided
from verify.truth.formats import Format, named
from verify.truth.ulp import Errors, Policy, Yardstick, bits_of, from_bits, same_bits
from verify.truth.ulp import errors as errors_of

_JUST = 4.0  # a largest error above this multiple of the default limit is no accident of sampling


@dataclass(frozen=True)
class JudgedResult:
    """Holds the judged errors of one result of one case."""

    tallies: list[Tally]  # one per segment, in the order of the segment numbers
    exact: dict[int, Judged]  # flat index -> exact verdict, for the worst elements and all elements judged exactly
    escalated: int  # number of elements judged exactly
    errors: Errors  # of every element; exact where known
    judge: Callable[[int, bool], Judged]  # judges one element exactly, with mpmath too if True

    def printed(self, index: int) -> Judged:
        """Returns the verdict on a worst element that is printed. mpmath checks it beside Arb, which decided it."""
        if self.exact[index].routes == 1:
            self.exact[index] = replace(self.exact[index], routes=self.judge(index, True).routes)
        return self.exact[index]


@dataclass(frozen=True)
class JudgedBy:
    """Holds one result of one case with its truth and its rules. `floor` is the least noise, in ULP."""

    op: Op
    problem: Problem
    result: str
    truth: Truth
    fmt: Format
    policy: Policy = field(default_factory=Policy)
    seed: int = 0
    floor: float = 0.0

    @property
    def unit(self) -> Tensor | Yardstick | None:
        """Returns the unit of the error that decides; None for ULP."""
        return self.truth.unit(self.op.gate_of(self.result), self.floor)

    def error(self, judged: Judged, index: int) -> float:
        """Returns the error of one element that a limit applies to, in the unit that decides."""
        unit = self.unit
        if isinstance(unit, Yardstick):
            noise = float(unit.noise.reshape(-1)[index])
            return (judged.beside_noise if unit.beside else judged.in_noise)(noise, self.floor)
        return judged.ulp if unit is None else judged.scaled(self.truth.scale_exponent(index, self.fmt))

    def compared(self, got: Tensor, places: Tensor | None = None) -> tuple[Truth, Errors]:
        """Returns the truth to judge an output tensor by, of several right ones the nearest, and its errors.

        With `places`, `got` has only the elements at these flat indices. The unit is that of the first right answer:
        exact figures of single elements (`error`) have it too.
        """
        truth, unit = self.truth, self.unit
        if places is not None:
            truth = truth.at(places)
            if unit is not None:
                unit = unit.at(places) if isinstance(unit, Yardstick) else unit.reshape(-1)[places]
        near, policy = truth.for_result(got), self.policy
        return near, errors_of(got, near.value, self.fmt, low=near.low, bound=near.bound, scale=unit, policy=policy)

    def with_noise_again(self, got: Tensor) -> JudgedBy:
        """Returns the same with the noise of elements just beyond the default limit sampled again.

        The noise of an element is the root mean square of a few runs. Of a million elements, some get half the noise
        that more runs would give. A correct kernel then has up to twice its error there. Errors of broken kernels are
        far beyond that.
        """
        noise = self.truth.noise
        if self.op.gate_of(self.result) != "noise":
            return self.with_noise_beside(got)
        if noise is None:
            return self
        least, found = default_noise(self.fmt.name), replace(self, floor=0.0).compared(got)[1]
        size = found.upper
        beyond = size > least
        if not bool(beyond.any()) or not float(size.max()) <= _JUST * least:
            return self
        again = self.op.meaning.deviation(self.problem, self.result).to(noise.device)
        again = torch.where(beyond.reshape(noise.shape), torch.maximum(noise, again), noise)
        return replace(self, truth=replace(self.truth, noise=again))

    def with_noise_beside(self, got: Tensor) -> JudgedBy:
        """Returns the same with noise beside ULP (`floor` > 0), sampled if an element is beyond the limit in ULP."""
        noise = self.truth.noise
        if noise is None or self.op.gate_of(self.result) != "plain" or not self.floor > 0:
            return self
        plain = self.compared(got)[1]
        # not (x <= limit): a NaN is beyond it
        if bool((plain.ulp.abs() + plain.width <= 0.5 + self.floor * default_noise(self.fmt.name)).all()):
            return self
        deviation = self.op.meaning.deviation(self.problem, self.result).to(noise.device)
        return replace(self, truth=replace(self.truth, noise=deviation))


def judge_by(
    by: JudgedBy, got: Tensor, *, segments: Tensor | None = None, n_segments: int = 1, effort: Effort | None = None
) -> JudgedResult:
    """Judges one output tensor. `segments` numbers the regime of each element."""
    op, problem, result, truth, fmt, effort = by.op, by.problem, by.result, by.truth, by.fmt, effort or Effort()
    near, errors = by.compared(got)
    size = errors.ulp.numel()
    if segments is None:
        segments = torch.zeros(size, dtype=torch.int64, device=errors.ulp.device)
    unknown = torch.zeros_like(segments, dtype=torch.bool)
    if truth.unknown is not None:  # no route has a value for these elements, so they are not judged
        unknown = truth.unknown.reshape(-1).to(segments.device)
    # found once for each segment, so that a round reads every element once
    members = [torch.nonzero((segments == segment) & ~unknown).reshape(-1) for segment in range(n_segments)]
    patterns = bits_of(got.reshape(-1).detach())
    exact: dict[int, Judged] = {}
    given: dict[int, int] = {}  # the bits of the elements in `exact`

    points: dict[int, Point] = {}

    def judge(index: int, both: bool) -> Judged:
        interval = partial(near.interval, index)
        return judge_known(points[index], interval, fmt, given[index], both=both, policy=by.policy)

    def escalate(indices: Sequence[int]) -> dict[int, Judged]:
        """Judges elements exactly that were not before. Returns the verdicts that a route decided."""
        fresh = [index for index in indices if index not in exact]
        if not fresh:
            return {}
        bits = patterns[torch.tensor(fresh, device=patterns.device)].tolist()
        for index, point, pattern in zip(fresh, op.points(problem, result, fresh), bits, strict=True):
            points[index], given[index] = decided(point, truth, near, index), pattern & ((1 << fmt.bits) - 1)
        exact.update((index, judge(index, False)) for index in fresh)
        # without routes the element keeps its interval
        return {index: exact[index] for index in fresh if exact[index].routes}

    if size and effort.sample and truth.certificate != "exact":
        chosen = sorted(set(counter.below(by.seed, f"check/{result}", effort.sample, size).tolist()))
        check_bound(op.points(problem, result, chosen), truth, chosen)

    unclear = errors.undecided & ~(errors.figures[-1][1] <= effort.blurred) if effort.blurred else errors.undecided
    open_ones = torch.nonzero(unclear).reshape(-1)[: effort.open_limit].tolist()
    errors = settled(errors, escalate(open_ones))
    for _ in range(effort.rounds):
        contenders = _contenders(errors, members, exact, effort.keep)
        if not contenders:
            break
        errors = settled(errors, escalate(contenders))
    errors = settled(errors, escalate(sorted(_worst_indices(errors, members, effort.keep))))
    lost = torch.isinf(errors.figures[-1][1]) | unknown
    figures = {"ulp": errors.ulp, "width": errors.width, "scaled": errors.scaled, "scaled_width": errors.scaled_width}
    zeroed = {name: None if item is None else item.masked_fill(lost, 0.0) for name, item in figures.items()}
    errors = replace(errors, undecided=errors.undecided | lost, misrounded=errors.misrounded & ~lost, **zeroed)  # type: ignore[arg-type]
    tallies = tally(errors, segments=segments, n_segments=n_segments)
    # without a step that several elements share, each of them is an observation of its own
    whole = {value.numel() for value in problem.inputs.values() if value is not None} == {size}
    apart = whole and op.gate_of(result) == "plain"
    biases = bias_of(errors, near.value, fmt, tuple(got.shape), apart=apart, segments=segments, n_segments=n_segments)
    left = torch.bincount(segments[lost & (segments >= 0)], minlength=n_segments).tolist()
    both = zip(tallies, biases, left, strict=True)
    tallies = [msgspec.structs.replace(part, bias=bias, open=count) for part, bias, count in both]
    if exact:
        tallies = of_judged(tallies, errors, segments, {index: given[index] for index in exact})
    return JudgedResult(tallies, exact, sum(each.routes > 0 for each in exact.values()), errors, judge)


def demand_known_answers(device: torch.device | str) -> None:
    """Raises KernelError unless errors and comparisons of known bits come out right, on the device of a kernel.

    A kernel that runs in the process that judges it may have changed how arithmetic works there. It may also have
    replaced something that decides verdicts and that verify does not list.
    """
    fmt = named("float32")
    bits = torch.tensor([0x3F800000, 0x3F800001, 0x3F7FFFFF, 0, 1, fmt.inf_bits, fmt.nan_bits], device=device)
    got, least = from_bits(bits, fmt), 2.0**fmt.min_ulp_exponent
    truth = torch.tensor([1.0, 1.0, 1.0, least, 0.0, 1.0, 1.0], dtype=torch.float64, device=device)
    found = errors_of(got, truth, fmt)
    (counted,) = tally(found)
    right = [0.0, 1.0, -0.5, -1.0, 1.0, math.inf, math.inf]
    # few elements are compared as bytes, many on the device
    pairs = [(line, torch.cat([line[:-1], line[:1]])) for line in (got, got.repeat(4096))]
    same = all(same_bits([one], [one.clone()]) and not same_bits([one], [other]) for one, other in pairs)
    if found.ulp.tolist() != right or (counted.n, counted.misrounded, counted.nan) != (7, 6, 1) or not same:
        raise KernelError("beside this kernel, errors and comparisons of known bits no longer come out right")


def settled(errors: Errors, exact: Mapping[int, Judged]) -> Errors:
    """Returns the errors with the exact figure of every element that was judged exactly (flat index -> verdict)."""
    if not exact:
        return errors
    device, verdicts, yardstick = errors.ulp.device, list(exact.values()), errors.yardstick
    where = torch.tensor(list(exact), dtype=torch.int64, device=device)

    def replaced(values: Tensor, new: Sequence[float]) -> Tensor:
        values = values.clone()
        values[where] = torch.tensor(new, dtype=values.dtype, device=device)
        return values

    exactly = [0.0] * len(verdicts)
    scaled, scaled_width = errors.scaled, errors.scaled_width
    if scaled is not None and scaled_width is not None:
        if yardstick is not None:
            how = Judged.beside_noise if yardstick.beside else Judged.in_noise
            noise = yardstick.noise[where].tolist()
            figures = [how(item, unit, yardstick.floor) for item, unit in zip(verdicts, noise, strict=True)]
        else:
            assert errors.scale_exponent is not None
            units = errors.scale_exponent[where].tolist()
            figures = [item.scaled(unit) for item, unit in zip(verdicts, units, strict=True)]
        scaled, scaled_width = replaced(scaled, figures), replaced(scaled_width, exactly)
    # the fast pass decides whether a zero has the right sign: an exact zero has no sign
    wrong = torch.tensor([item.misrounded for item in verdicts], device=device)
    misrounded = errors.misrounded.clone()
    misrounded[where] = wrong | (misrounded[where] & errors.zero_sign[where])
    nonfinite = errors.nonfinite
    # the interval left open whether an infinity means the largest number or a value beyond it
    if scaled is None or (yardstick is not None and yardstick.beside):
        nonfinite = nonfinite.clone()
        nonfinite[where] |= torch.tensor([math.isinf(item.ulp) for item in verdicts], device=device)
    return replace(
        errors,
        ulp=replaced(errors.ulp, [item.ulp for item in verdicts]),
        width=replaced(errors.width, exactly),
        misrounded=misrounded,
        undecided=replaced(errors.undecided, exactly),
        nonfinite=nonfinite,
        scaled=scaled,
        scaled_width=scaled_width,
    )


def _contenders(errors: Errors, members: Sequence[Tensor], exact: dict[int, Judged], keep: int) -> list[int]:
    """Returns elements not yet judged exactly whose interval reaches the maximum of their segment, the furthest."""
    wanted = _worst_indices(errors, members, keep)
    for error, width in errors.figures:
        for mine in members:
            if not mine.numel():
                continue
            figures, widths = error[mine], width[mine]
            open_ones = (widths > 0) & torch.isfinite(figures) & (figures + widths >= figures.max())
            upper = torch.where(open_ones, figures + widths, -math.inf)
            wanted.update(mine[upper.topk(min(4 * KEEP, int(open_ones.sum()))).indices].tolist())
    return sorted(wanted - exact.keys())


def _worst_indices(errors: Errors, members: Sequence[Tensor], keep: int) -> set[int]:
    """Returns the worst elements of each segment by the error that decides the verdict."""
    ranked = errors.deciding
    return {index for mine in members for index in mine[top(ranked[mine], keep)].tolist()}
