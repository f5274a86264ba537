"""Judges other answers than the kernel's: trivial ones, those of changed definitions, and those of known mistakes.

If zeros keep a limit, then a kernel that keeps it proves nothing. So zeros, half the truth, the mean, copies of
operands, and the truth with errors of several sizes are judged on ordinary inputs as if a kernel had returned them. A
result is vacuous if zeros or halves would pass, unless they are right. Zeros are right for the gradient of a constant.
The other answers tell what the limit cannot see: a softcap of small numbers differs little from a copy. So do blind
spots: errors in the definition that the limit would not catch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from verify.cases import Case, counter
from verify.cases.classes import class_of
from verify.cases.values import SIGNS
from verify.declare.quantiser import Encoded
from verify.measure.counting import tally
from verify.measure.judge import JudgedBy
from verify.measure.tally import Tally, rms_limit
from verify.ops.graph.blind import mutated
from verify.ops.op import Kept, Op, Problem, Regime
from verify.records.figure import UNIT, shown
from verify.records.readings import APART
from verify.records.record import ORDINARY, value_of
from verify.truth.formats import Format, torch_dtype
from verify.truth.quantised.causes import misread
from verify.truth.ulp import ulp_exponent

SEEN = 4096  # at most this many elements of each case
EMPTY = ("zeros", "half of them")  # a limit that they keep says nothing
SHARES = (0.01, 0.03, 0.1, 0.3)  # errors, as shares of the truth; the first is at least two spacings of the format
_SPACINGS = 2


def rungs(fmt: Format) -> dict[str, float]:
    """Maps the name of each answer with an error of some size to its share of the truth, the smallest first.

    Two spacings of bfloat16 are up to 1.6%, of float8 up to 25% or 50%.
    """
    least = _SPACINGS * 2.0**-fmt.mantissa_bits
    wider = [share for share in SHARES if share > least]
    first = {} if wider == list(SHARES) else {"values two spacings off": 0.0}
    return first | {f"values {share:.0%} off": share for share in wider}


def trivial_at_ordinary(by: JudgedBy, segments: Tensor, parts: Sequence[tuple[Regime, str]]) -> dict[str, Tally]:
    """Judges trivial answers at ordinary elements. `segments` numbers the regime and class of each element."""
    ordinary = torch.tensor([class_of(*part) == ORDINARY and part[0].name not in APART for part in parts])
    return trivial_answers(by, ordinary.to(segments.device)[segments.clamp(min=0)] & (segments >= 0))


def trivial_answers(by: JudgedBy, ordinary: Tensor) -> dict[str, Tally]:
    """Judges trivial answers at some of the ordinary elements (a flat mask) of one case."""
    truth = by.truth
    places = torch.nonzero(ordinary & torch.isfinite(truth.value.reshape(-1))).reshape(-1)
    if not places.numel():
        return {}
    if places.numel() > SEEN:
        chosen = counter.below(by.seed, f"trivial/{by.result}", SEEN, places.numel())
        places = places[chosen.to(places.device)]
    value = truth.value.reshape(-1)[places]
    answers = _answers(by, places) if bool((value != 0).any()) else {"zeros": torch.zeros_like(value)}
    # side by side: the operations on a few elements cost as much as on ten times as many
    exact, count = torch.cat([*answers.values()]).to(torch_dtype(by.fmt)), len(answers)
    segments = torch.arange(count, device=value.device).repeat_interleave(value.numel())
    parts = tally(by.compared(exact, places.repeat(count))[1], segments=segments, n_segments=count)
    return dict(zip(answers, parts, strict=True))


def _answers(by: JudgedBy, places: Tensor) -> dict[str, Tensor]:
    """Returns the answers in float64, by their names in the verdict."""
    problem, values = by.problem, by.truth.value
    value = values.reshape(-1)[places]
    spacing = torch.ldexp(torch.full_like(value, _SPACINGS), ulp_exponent(value, by.fmt))
    mean = torch.full_like(value, float(value.mean()))
    found = {"zeros": torch.zeros_like(value), "half of them": value * 0.5, "their mean": mean}
    for name, share in rungs(by.fmt).items():
        found[name] = value + torch.copysign(torch.maximum(value.abs() * share, spacing), value)
    shape = tuple(values.shape)
    given = {**problem.inputs, **{f"d{name}": tensor for name, tensor in problem.upstream.items()}}
    for name, tensor in given.items():
        if tensor is not None and tuple(tensor.shape) == shape and name != by.result:
            found[f"a copy of {name}"] = tensor.detach().reshape(-1).to(value.device)[places].to(torch.float64)
    return found


_NEAR = 2.0**-6  # of a number and of the root mean square of all: no rounding moves a result so far, a mistake does
_SHOWN = 3
_WRONG, _LEFT = 0.05, 0.01  # how many elements are wrong, and how many may stay wrong under an explanation


def mistake(encoded: Encoded, op: Op, problem: Problem, result: str, got: Tensor, truth: Tensor) -> str:
    """Returns the mistakes that explain a result, in words; empty if nothing is wrong or nothing explains it.

    Each mistake of reading a quantised operand that `verify.truth.quantised.misread` lists makes other numbers of it.
    PyTorch computes the result of these in float64, and the kernel's is compared with it.
    Several may make the same numbers: scales half as large, or codes of a format with half their values.
    """
    if result in op.integers or not got.numel() or _off(got, truth) <= _WRONG:
        return ""
    if not bool(got.any()) and bool(truth.any()):
        return "every element is 0"
    found: dict[str, list[str]] = {}
    for name, encoding in encoded.encodings.items():
        own = {part: key for key, (operand, part) in encoded.parts.items() if operand == name}
        parts = {part: value for part, key in own.items() if (value := problem.inputs[key]) is not None}
        for words, others, other in misread(encoding, parts):
            inputs = {**problem.inputs, **{own[part]: value for part, value in others.items()}}
            function = encoded.reading({**encoded.encodings, name: other})
            changed = replace(problem, inputs=inputs, kept=Kept())
            made = op.meaning.in_place_of(function, changed).get(result)
            if made is not None and _off(got, made) <= _LEFT:
                found.setdefault(words, []).append(name)
    return "; or ".join(f"{' or '.join(names)}: {words}" for words, names in list(found.items())[:_SHOWN])


def _off(got: Tensor, numbers: Tensor) -> float:
    """Returns the share of elements that are far from numbers, or NaN where these are not."""
    got, numbers = got.double(), numbers.double()
    known = torch.isfinite(numbers)
    size = torch.where(known, numbers, 0.0)
    room = _NEAR * (size.abs() + size.square().mean().sqrt())
    same = (got == numbers) | (torch.isnan(got) & torch.isnan(numbers))
    return float((~(same | ((got - numbers).abs() <= room))).double().mean())


BUDGET = 24  # the number of changed definitions tried in one case
KEPT = 5
_MOST = 1 << 14  # the largest product of a case's sizes
# The least rms of a change that is reported, in units of the rms that noise and rounding explain. No accuracy could
# show a smaller change.
LEAST_SEEN = 0.5


def blind_spots(
    results: Sequence[JudgedBy],
    limits: Mapping[str, float],
    budget: int = BUDGET,
    *,
    least: float = LEAST_SEEN,
    constants: bool = False,
) -> list[tuple[float, str]]:
    """Returns the errors that pass in all results of a case, with their share of the limit, the largest first.

    Each constant and each step of a `like=` program is changed by 1% or left out. The result is judged on the inputs of
    one case as if a kernel had returned it.

    An error is omitted if it moves no result by `least` times the rms that noise and rounding explain. With
    `constants=True` only changed constants are tried.
    """
    if not results or (op := results[0].op).gate != "noise":
        return []
    program, run = op.program(results[0].problem)
    numbers = {by.result: by for by in results if by.result not in op.integers}
    spots = []
    for mutation, values in mutated(program, run, list(numbers), budget, constants=constants):
        figures_of = []
        for name, by in numbers.items():
            # the host's operands make the changed result, while the truth of a large one stays on the GPU
            changed = values[name].to(by.truth.value.device, torch_dtype(by.fmt))
            figures = tally(by.compared(changed)[1])[0].figures()
            figure = value_of(figures.scaled_max or 0.0)
            figures_of.append((figure / limits[name], figures.rms or 0.0, figure, limits[name]))
        share, _, figure, limit = max(figures_of)
        rms = max(each[1] for each in figures_of)
        if share <= 1.0 and least <= rms <= min(rms_limit(by.fmt.name) for by in numbers.values()):
            size = f"at most {shown(figure)}{UNIT['noise']}, the limit is {limit:g}"
            spots.append((share, f"{mutation.words} would pass on inputs of one ordinary case: {size}"))
    return sorted(spots, reverse=True)


def case_of(cases: Sequence[Case]) -> Case | None:
    """Returns the largest case with ordinary inputs and at most `_MOST` elements, for this search; None if there is
    none.
    """
    ordinary = [case for case in cases if case.fill in ("randn", SIGNS) and not case.values]
    fit = [case for case in ordinary if 0 < math.prod(case.dims) <= _MOST]
    return max(fit, key=lambda case: (bool(case.upstream), math.prod(case.dims)), default=None)
