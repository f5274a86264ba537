"""Accuracy: every output and gradient is within the kernel's own limit of the exact answer.

`accuracy` varies shapes, strides, values, parameters and absent operands, and looks for a large error. In rows with
one confident logit it judges only gradients, by a limit that is wider by 32 ULP. `mixed dtypes` computes the truth
from the given weights, so a kernel that rounds them first exceeds its limit.

Details:

* accuracy: Hypothesis varies shapes, value recipes and parameters and tries to make the error large (`target`). Fixed
  cases come first. Shipped ops have any rank from 0 to 5, single elements, primes, sizes on both sides of a block, and
  empty tensors, which give empty results and a weight gradient of zero. All ops have every recipe, parameter and shape
  once, every recipe with every parameter, a stride for each operand alone, and None for each optional operand. A kernel
  may refuse None with an error. Other fixed cases have subnormal weights, or one long dimension of a PyTorch function:
  whole blocks, one index more, and one less, as far as exact values are affordable.

  The law repeats each call without a gradient: where no operand requires one, under `torch.no_grad()` and under
  `torch.inference_mode()`. It judges the outputs if their bits differ. In plain cases it also repeats the call with
  the gradient of one operand alone, as with frozen weights.

  In rows with one confident logit, only gradients are judged. Rounding the argument of an exponential may cost 32 ULP
  there, so their limit is wider by that. Outputs are not judged: a loss is the small remainder of 1.

  With `exhaustive`, an op of one 16-bit number is tried on all 65,536 numbers. A kernel may declare a `largest`
  magnitude. Beyond it, terms of a sum may exceed the format, and the limit is wider by the same factor:
  65,504 x 65,504 - 65,504 x 65,504 + 2 in float16 is 2, and a float32 sum of these terms is off by up to 256.
* mixed dtypes: the law combines float32 weights and biases with 16-bit data. A kernel refuses them with an error, or
  uses them without rounding. The truth is computed from the given values, so a kernel that rounds them first exceeds
  its limit.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import msgspec
from torch import Tensor

from verify.cases import Case, problem_of
from verify.cases.case import operand_dtype
from verify.cases.classes import class_of, classed
from verify.cases.covering import CaseEffort, chosen_case, covering, factors_of
from verify.cases.scores import LENGTHS
from verify.cases.scores import RECIPES as SCORE_RECIPES
from verify.cases.sizes import REACHES_OF_LAWS, long_sizes, with_keys
from verify.cases.strategies import CaseSpace, Layouts, Sizes, fixed_shapes, recipes
from verify.cases.values import CONFIDENT, SMALL
from verify.declare.declaration import Kernel
from verify.errors import KernelError, TruthError
from verify.laws.law import Broken, Excess, Subject, law, plain_case, plain_cases, said_of, space_of
from verify.measure.call import Measured, alone, inferred, run_baseline, run_kernel
from verify.measure.case import sampled_question
from verify.measure.effort import Effort, beyond, differing, sampled
from verify.measure.element import WholeResult, worst_element
from verify.measure.findings import KERNEL
from verify.measure.judge import JudgedBy, judge_by
from verify.ops.geometry import ByGeometry, Shapes
from verify.records.figure import UNIT
from verify.records.readings import NONFINITE
from verify.records.record import CLASSES, Origin, value_of
from verify.truth import formats
from verify.truth.fast import Truth, evaluate
from verify.truth.ulp import fetched, widen

_EXACT = Sizes(elements=1 << 8, width=1 << 8, depth=64)
_LONG_FROM = 1 << 12  # a profile with at least this many elements has cases with a long dimension
_PAIRED, _ROUNDS = CaseEffort(1 << 17, 70_000, 1 << 15), 2  # limits of the cases that cover pairs; rounds of recipes
_ONE_MORE = ((1025,), (4097,), (65_537,))
# An exponential whose argument is up to 17, rounded twice to 2^-20 each time, may be off by this many ULP.
_ROUNDED_ARGUMENT = 32.0
_NARROW = 2.0**-10  # ULP: an interval of an error that is no wider decides a rounding at most
_ELEMENTS, _DRAWN = 1 << 14, 2.0**24  # elements of a large result that are judged, and numbers in all their steps


def _space(subject: Subject) -> CaseSpace:
    # float64 has no wider reference: every element is judged exactly, which takes up to a millisecond
    sizes = _EXACT if subject.dtype == "float64" else subject.sizes
    fill = (*recipes(subject.kernel), *(SCORE_RECIPES if subject.kernel.op.scores else ()))
    return space_of(subject, sizes=sizes, fill=fill)


def _examples(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    layouts = Layouts(("contiguous", "stepped"), contiguous=subject.kernel.contiguous)
    chosen = dataclasses.replace(chosen, layouts=layouts)
    return (
        *chosen.each_choice(),
        *chosen.each_pair(),
        *chosen.each_alone(),
        *_any_size(subject),
        *_every_pattern(subject),
        *_scored(subject),
        *_long(subject),
        *_pairs(subject),
        *_subnormal_weights(subject),
    )


_SIZES: ByGeometry[Shapes] = ByGeometry(
    elementwise=(
        *((1,), (2,), (), (0,), (7,), (3, 5), (1, 1), (2, 3, 5), (3, 0), (0, 3), (2, 1, 3, 2), (2, 0, 3)),
        *((1, 2, 1, 3, 2), (13, 17), (127,), (128,), (129,), (1023,), (1025,), (1009,), (2, 3, 4, 43)),
    ),
    rowwise=(
        *((1, 1), (1,), (3,), (2, 3), (0, 5), (2, 3, 5), (1, 1, 1), (2, 0, 5), (2, 1, 3, 7), (1, 2, 1, 2, 13)),
        *((2, 127), (2, 128), (2, 129), (3, 1023), (1, 1025), (65, 3), (2, 1009), (0,), (3, 0)),
    ),
    contraction=(
        *((1, 1, 1), (2, 3, 5), (0, 3, 5), (2, 0, 5), (2, 3, 0), (1, 65, 1), (63, 5, 65), (17, 1, 13)),
        *((1, 129, 33), (127, 2, 3), (129, 3, 2), (33, 64, 31), (3, 31, 17), (0, 0, 0)),
    ),
)


def _any_size(subject: Subject) -> tuple[Case, ...]:
    """Returns plain cases of a shipped op: any rank, empty, one element, primes, both sides of a block."""
    geometry, exact = subject.kernel.op.geometry, subject.dtype == "float64"
    if geometry.named:
        return ()
    sizes = _EXACT if exact else subject.sizes
    shapes = [dims for dims in geometry.of(_SIZES) if not exact or math.prod(dims) <= _EXACT.elements]
    if geometry.multiplies:
        shapes = [dims for dims in shapes if dims[1] <= sizes.depth]
    elif geometry.by_row:
        shapes = [*(dims for dims in shapes if dims[-1] <= sizes.width), (2, sizes.width + 1)]
    else:
        shapes = [*(dims for dims in shapes if dims or not geometry.packed), (sizes.elements + 1,)]
    return plain_cases(subject, space_of(subject, shapes=shapes))


def _long(subject: Subject) -> tuple[Case, ...]:
    """Returns long cases: one element more than blocks hold, and each named dimension of a PyTorch function alone."""
    kernel, reach = subject.kernel, REACHES_OF_LAWS[subject.backend.scale]
    if subject.sizes.elements < _LONG_FROM or (subject.dtype == "float64" and len(kernel.dtypes) > 1):
        return ()
    long: tuple[tuple[int, ...], ...] = _ONE_MORE if kernel.op.geometry.by_element else ()
    long += tuple(dims for some in long_sizes(kernel.op, reach).values() for dims in some)
    cases = [plain_case(subject, dims) for dims in dict.fromkeys(long)]
    return tuple(msgspec.structs.replace(case, seed=seed) for seed, case in enumerate(cases, 1))


def _pairs(subject: Subject) -> tuple[Case, ...]:
    """Returns cases of a PyTorch function that cover pairs: sizes, recipes, one operand with a recipe, one layout."""
    kernel = subject.kernel
    if subject.sizes.elements < _LONG_FROM or subject.dtype == "float64" or not kernel.op.geometry.named:
        return ()
    found = covering(kernel, factors_of(kernel, recipes(kernel)), _PAIRED, _ROUNDS).cases
    return tuple(chosen_case(kernel, subject.dtype, each, seed) for seed, each in enumerate(found, 1))


def _scored(subject: Subject) -> tuple[Case, ...]:
    """Returns a case for each recipe of a softmax over products and each number of keys where kernels tend to fail."""
    lengths = LENGTHS[:1] if subject.dtype == "float64" else LENGTHS
    chosen = enumerate(product(SCORE_RECIPES, with_keys(subject.kernel.op, lengths)), 1)
    largest = subject.kernel.largest.get(subject.dtype)
    return tuple(
        msgspec.structs.replace(plain_case(subject, dims), fill=recipe, regime=recipe, seed=seed, largest=largest)
        for seed, (recipe, dims) in chosen
    )


def _every_pattern(subject: Subject) -> tuple[Case, ...]:
    """Returns a case with all numbers of a 16-bit format, for an op of one number."""
    kernel, fmt = subject.kernel, formats.named(subject.dtype)
    if not subject.sizes.every_pattern or not kernel.op.is_unary or fmt.bits > 16:
        return ()
    upstream = "ones" if kernel.differentiable else ""
    plain = plain_case(subject, (1 << fmt.bits,))
    return (msgspec.structs.replace(plain, fill="patterns", upstream=upstream),)


def _subnormal_weights(subject: Subject) -> tuple[Case, ...]:
    """Returns a case whose weights are subnormal or zero.

    Biases are zero, so that no other term hides a flushed weight. The case has no gradient: each term of a gradient
    rounds by half of the least number, so a correct sum of many terms may exceed the limit.
    """
    kernel, plain = subject.kernel, plain_case(subject, fixed_shapes(subject.kernel, subject.sizes)[0])
    shapes = kernel.op.shapes(plain.dims, kernel.op.resolve(plain.params))
    values: dict[str, str] = {}
    for operand in kernel.op.operands:
        weight = operand.role in ("scale", "shift", "matrix") and operand.derive is None
        if operand.domain is None and weight and operand.name in kernel.operands:
            fmt, count = formats.named(operand_dtype(plain, operand)), math.prod(shapes[operand.name])
            least = 0 if operand.role == "shift" and values else (1 << fmt.mantissa_bits) - 1
            bits = [least - place if place % 16 == 0 else 0 for place in range(count)]
            values[operand.name] = "".join(f"{max(each, 0):0{fmt.bits // 4}x}" for each in bits)
    return (msgspec.structs.replace(plain, values=values, upstream=""),) if any(values.values()) else ()


@law("accuracy", _space, examples=_examples)
def accuracy(subject: Subject, case: Case) -> float | None:
    """Every result is within the declared limit of the exact answer.

    Judges the results of one case, and the results of inference and of single gradients if their bits differ.
    """
    kernel = subject.kernel
    try:
        measured = run_kernel(kernel, case, subject.backend.device)
    except KernelError as error:
        refused = error.__cause__ is not None and not str(error).startswith(f"{kernel.name} raised in backward")
        if set(case.absent) == set(kernel.absent) or not refused:
            raise
        return None  # the kernel may refuse None for an operand before it computes anything
    score = judge_measured(subject, case, measured)
    others: list[tuple[dict[str, Tensor], str, dict[str, Tensor]]]
    others = [({}, mode, outputs) for mode, outputs in inferred(kernel, case, measured).items()]
    if case.upstream and case.seed == 0:
        others += [(measured.upstream, mode, gradients) for mode, gradients in alone(kernel, case, measured).items()]
    for upstream, mode, results in others:
        try:
            score = max(score, judge_measured(subject, case, Measured(measured.inputs, upstream, results)))
        except Broken as broken:
            raise broken.restated(f"{broken.rule} {mode}", case, broken.facts) from None
    return score


def judge_measured(subject: Subject, case: Case, measured: Measured) -> float:
    """Returns the largest error of results of given inputs, in ULP.

    Raises `Broken` if it exceeds the kernel's limit.
    """
    return max(judge_known(subject, case, facts) for facts in _affordable(subject, case, measured.to_read))


def broken_by(subject: Subject, case: Case, measured: Measured) -> Broken | None:
    """Returns how results of given inputs exceed the kernel's own limit; None if they keep it."""
    try:
        judge_measured(subject, case, measured)
    except Broken as broken:
        return broken
    return None


@dataclass(frozen=True)
class Known:
    """Holds results of one problem and the rules of each that has elements, all on one device.

    If `whole` is given, they are some elements of one result.
    """

    results: dict[str, Tensor]
    rules: dict[str, JudgedBy]
    whole: WholeResult | None = None


def _affordable(subject: Subject, case: Case, measured: Measured) -> Iterator[Known]:
    """Yields all results together if the judge can afford that, else some elements of one result after the other.

    These are elements at which the results and PyTorch's differ most, and drawn ones. Raises TruthError if even one
    element is beyond the budget.
    """
    kernel, budget = subject.kernel, Effort.of(subject.backend)
    few, drawn = min(budget.elements, _ELEMENTS), min(budget.drawn, _DRAWN)
    results = measured.results
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, tuple(results))
    if budget.holds(kernel.op, problem):
        yield known(subject, case, measured)
        return
    beside = dict[str, Tensor]()
    with contextlib.suppress(KernelError):  # PyTorch may lack the memory or refuse the operands
        beside = run_baseline(kernel, case, subject.backend.device, measured).results
    until = min(subject.until, time.monotonic() + budget.seconds)
    for left, name in zip(range(len(results), 0, -1), results, strict=True):
        seconds = max(until - time.monotonic(), 0.0) / left
        least = dataclasses.replace(budget, elements=few, drawn=drawn, seconds=seconds)
        sample = sampled(kernel.op, problem, name, differing(results[name], beside.get(name)), least, case.seed)
        if sample is None:
            raise TruthError(beyond(name, case))
        some = sampled_question(kernel, case, measured, sample, subject.target, case.seed)
        own = {name: sample.of(results[name])}
        some = some.explaining({KERNEL: own}).others.get(KERNEL, some)
        yield Known(own, {name: some.judged_by(name)}, some.whole)


def known(subject: Subject, case: Case, measured: Measured) -> Known:
    """Returns results of given inputs with their rules.

    Small tensors go to the CPU, where the truth's many operations cost less than their launches on a GPU.
    """
    kernel, inputs, upstream, results = subject.kernel, measured.inputs, measured.upstream, measured.results
    every = {
        **{("in", name): value for name, value in inputs.items() if value is not None},
        **{("up", name): value for name, value in upstream.items()},
        **{("out", name): value for name, value in results.items()},
    }
    if max((value.numel() for value in every.values()), default=0) <= SMALL:
        every = dict(zip(every, fetched(list(every.values())), strict=True))
    given = {name: every.get(("in", name)) for name in inputs}
    returned = {name: every["out", name] for name in results}
    problem = problem_of(kernel.op, case, given, {name: every["up", name] for name in upstream}, tuple(results))
    kinds = {name: formats.of(tensor.dtype) for name, tensor in returned.items()}

    truths = evaluate(kernel.op, problem, kinds)
    if (own := kernel.op.meaning.chosen(problem, returned)) is not problem:  # the kernel's choices at ties and kinks
        problem, truths = own, evaluate(kernel.op, own, kinds)

    def rules(name: str, truth: Truth) -> JudgedBy:
        floor = kernel.noise_floor(case.dtype, name)
        return JudgedBy(kernel.op, problem, name, truth, kinds[name], kernel.policy, case.seed, floor)

    return Known(returned, {name: rules(name, truth) for name, truth in truths.items() if returned[name].numel()})


def judge_known(subject: Subject, case: Case, facts: Known) -> float:
    """Returns the largest error of results with known truths. Raises `Broken` if it exceeds the kernel's limit."""
    kernel = subject.kernel
    limits = [kernel.limit_of(subject.dtype, of_class, name) for name in facts.rules for of_class in CLASSES]
    least = min((limit for limit in limits if limit is not None), default=math.inf)
    proven = _proven_within(facts, least)
    if proven is not None:
        return proven
    largest = 0.0
    for name, rules in facts.rules.items():
        got = facts.results[name]
        by, widened = rules.with_noise_again(got), _beyond(kernel, subject.dtype, rules)
        shape = tuple(got.shape)
        segments, parts = classed(by.op, case, by.problem, name, shape, kernel.largest.get(subject.dtype))
        # a rounding at half an ULP decides nothing if the limit is beyond; that saves 50,000 exact values of a case
        blurred = 0.0 if kernel.op.gate == "noise" else max(0.0, min(_NARROW, (least - 0.5) / 2))
        effort = Effort(sample=0, keep=1, blurred=blurred)
        outcome = judge_by(by, got, segments=segments, n_segments=len(parts), effort=effort)
        gate = kernel.op.gate_of(name)
        for (regime, found), part in zip(parts, outcome.tallies, strict=True):
            special, of_class = regime.name == NONFINITE, class_of(regime, found)
            promised = kernel.limit_of(subject.dtype, of_class, name) if of_class else None
            if promised is None:
                continue
            limit = promised * widened
            if case.fill == CONFIDENT:  # a loss of such a row is the small remainder of 1, which no format keeps
                limit += math.inf if name in kernel.op.all_outputs else _ROUNDED_ARGUMENT
            upper = value_of(part.deciding.upper)
            within = upper <= limit and not part.nan
            if not special:
                largest = max(largest, upper)
            if within or not part.leaders:
                continue
            error, index = value_of(part.leaders[0].upper), part.leaders[0].place
            judged = outcome.printed(index)
            origin = Origin.here(subject.target, case.to_json(), name, index)
            scaled = None if gate == "plain" else error
            worst = worst_element(by.op, by.problem, got, judged, origin, scaled, facts.whole)
            lines = {
                "at": f"{name} {list(worst.index)}",
                **worst.inputs,
                "got": f"{worst.got} ({worst.got_hex})",
                "truth": worst.truth,
                "error": f"{error:.6g}{UNIT[gate]}",
                "limit": f"{limit:g}{UNIT[gate]}",
            }
            rule = "wrong at an infinite or NaN input" if special else "beyond the kernel's own limit"
            raise Broken(rule, case, lines, result=name, index=worst.origin.index, excess=Excess(error, limit))
    return largest


def _beyond(kernel: Kernel, dtype: str, rules: JudgedBy) -> float:
    """Returns the factor that widens the limit for inputs beyond the magnitude that the kernel promises; 1 for others.

    A unit of the scale does not grow beyond the format's largest number. The loss among terms beyond that number does.
    """
    if dtype not in kernel.largest or kernel.op.gate != "scaled":
        return 1.0
    given = {name: widen(value).abs() for name, value in rules.problem.inputs.items() if value is not None}
    if all(bool((size <= kernel.promised_to(dtype, name)).all()) for name, size in given.items()):
        return 1.0
    scale = rules.truth.scale[rules.truth.scale.isfinite()]
    return max(1.0, float(scale.max()) / float(rules.fmt.max_finite)) if scale.numel() else 1.0


def _proven_within(facts: Known, limit: float) -> float | None:
    """Returns the largest error if every element is proven to be within the limit; else None.

    Most cases need no exact value at all: the laws of all mutants take 75% more time without this. None leaves the case
    to the exact judge, which also finds the worst element.
    """
    largest = 0.0
    for name, by in facts.rules.items():
        _, found = by.compared(facts.results[name])
        if not bool(found.within(limit).all()):
            return None
        largest = max(largest, float((found.upper if by.op.gate == "noise" else found.deciding).max()))
    return largest


# -- mixed dtypes --------------------------------------------------------------------------------------


def _has_weights(subject: Subject) -> str | None:
    if not _weights(subject):
        if subject.kernel.operand_dtypes.get(subject.dtype):
            return "the declaration says which operands have another dtype"
        return f"{said_of(subject)} has no operand besides its data"
    return None if formats.named(subject.dtype).bits <= 16 else "float32 weights are wider than 16-bit data only"


def _weights(subject: Subject) -> tuple[str, ...]:
    """Returns the operands that users often keep in float32."""
    kernel, said = subject.kernel, subject.kernel.operand_dtypes.get(subject.dtype, {})
    kept = ("scale", "shift")
    return tuple(
        o.name for o in kernel.op.operands if o.role in kept and o.name in kernel.operands and o.name not in said
    )


@law(
    "mixed dtypes",
    _space,
    applies=_has_weights,
    examples=lambda subject, chosen: chosen.each_choice(chosen.shapes or fixed_shapes(subject.kernel, Sizes())[:2]),
    share=0.25,
)
def mixed_dtypes(subject: Subject, case: Case) -> float | None:
    """Float32 weights beside 16-bit data are refused, or used as they are.

    Judges a case with float32 weights. An exception of the kernel is a refusal.
    """
    mixed = msgspec.structs.replace(case, dtypes=case.dtypes | dict.fromkeys(_weights(subject), "float32"))
    try:
        return judge_measured(subject, mixed, run_kernel(subject.kernel, mixed, subject.backend.device))
    except KernelError as error:
        if error.__cause__ is None:  # the kernel took the operands and returned an invalid result
            raise
        return None


LAWS = (accuracy, mixed_dtypes)
