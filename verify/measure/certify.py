"""Measures the distance of the fast references from the exact value.

This is done for every op, every combination of its named parameters and every result. Cases are built as for kernels,
in float32 and bfloat16, and cover regimes, landmarks, special values and spreads. Elementwise results are compared on
thousands of points. Row-wise results and matrix products are compared on random elements of every row regime, at widths
on both sides of powers of two. Rows whose large elements cancel are added, as no recipe makes them. The outcome is the
largest |fast - exact| / (2^-53 * scale).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import torch

from verify import ops
from verify.backends import architecture
from verify.cases import Case, counter, inputs_of, problem_of
from verify.cases.explicit import spell
from verify.cases.values import MATRIX_REGIMES, ROW_REGIMES, Stream, fill
from verify.errors import TruthError
from verify.ops.op import Op, Point, Problem
from verify.truth.certificate import SLACK, Entry
from verify.truth.enclosure import Enclosure
from verify.truth.exact import settle
from verify.truth.formats import named

ELEMENTS = 4096
PER_CASE = 48
WIDTHS = (1, 2, 3, 31, 64, 257, 1024)
WIDE = (5_000,)
CANCELLING = (2, 31, 64, 257)
MATRICES = ((5, 33, 7), (3, 300, 4))
EPSILONS = (1e-5, 1e-12)
BOTH_EVERY = 16  # both exact routes evaluate one point in this many; one route evaluates the others


def certify(
    names: Sequence[str],
    *,
    device: str,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
    elements: int = ELEMENTS,
) -> list[Entry]:
    """Returns one entry per op, combination of named parameters, and result."""
    entries = []
    for name in names or ops.names():
        op = ops.get(name)
        for params in variants(op):
            progress(f"certify {name} {params}")
            entries += _certify_op(op, params, device, seed, elements)
    return entries


def variants(op: Op) -> list[dict[str, Any]]:
    """Returns every combination of the parameters that have a closed list of choices."""
    keys = list(op.choices)
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*op.choices.values())]


def _cases(op: Op, params: dict[str, Any], seed: int, elements: int) -> Iterator[Case]:
    """Yields the cases of an op with some parameters."""

    def case(**fields: Any) -> Case:
        return Case(**{"seed": seed, "params": params, "upstream": "normal", **fields})

    if op.geometry.by_element:
        for dtype in ("float32", "bfloat16"):
            yield case(dtype=dtype, dims=(elements // 64, 64), fill="mixed")
        yield case(dtype="float32", dims=(elements // 128, 64), fill="near")
        return
    if op.geometry.multiplies:
        for recipe, dims in itertools.product(MATRIX_REGIMES, MATRICES):
            yield case(dtype="float32", dims=dims, fill=recipe)
        return
    has_eps = "eps" in op.params
    for place, (recipe, width) in enumerate(itertools.product(ROW_REGIMES, WIDTHS)):
        extra = {**params, "eps": EPSILONS[place % 2]} if has_eps else params
        yield case(dtype="float32", dims=(3, width), fill=recipe, params=extra)
    for width, recipe in itertools.product(WIDE, ("mean 1e4", "nearly constant", "huge 1e30")):
        yield case(dtype="float32", dims=(1, width), fill=recipe)
    for place, width in enumerate(CANCELLING):
        extra = {**params, "eps": EPSILONS[place % 2]} if has_eps else params
        values = {each.name: _cancelling(each.name, 3, width, seed) for each in op.operands if each.role == "data"}
        # a bias would hide the small elements
        values |= {each.name: "0" * 8 * width for each in op.operands if each.role == "shift" and each.optional}
        yield case(dtype="float32", dims=(3, width), fill="randn", params=extra, values=values)


def _cancelling(name: str, rows: int, width: int, seed: int) -> str:
    """Returns rows of opposite numbers of all magnitudes, one of which is scaled down by 2^-60.

    The large numbers cancel in the mean. So small numbers lie near the mean, and their errors count.
    """
    stream, count, half = f"certify/{name}", rows * width, width // 2
    exponents = (counter.below(seed, f"{stream}/exponent", count, 121) - 60).double()
    numbers = (counter.bell(seed, stream, count) * torch.exp2(exponents)).reshape(rows, width)
    numbers[:, half : 2 * half] = -numbers[:, :half]
    numbers = numbers[:, counter.uniform(seed, f"{stream}/order", width).argsort()]
    numbers[:, 0] *= 2.0**-60
    return spell(numbers.float())


def _certify_op(op: Op, params: dict[str, Any], device: str, seed: int, elements: int) -> list[Entry]:
    """Returns the entries of an op with some parameters: the largest distance of each result."""
    worst: dict[str, tuple[float, str]] = {}
    counts: dict[str, int] = {}
    for case in _cases(op, params, seed, elements):
        problem = build(op, case, device)
        fast = op.fast(problem)
        for result in problem.results:
            value = fast[result].value.reshape(-1)
            scale = torch.maximum(fast[result].scale.reshape(-1).abs(), value.abs())
            indices = _indices(op, value.numel(), seed, result)
            points = op.points(problem, result, indices)
            gathered = torch.tensor(indices, dtype=torch.int64, device=value.device)
            values, scales = value[gathered].tolist(), scale[gathered].tolist()
            for place, (index, point) in enumerate(zip(indices, points, strict=True)):
                units = distance(
                    point,
                    values[place],
                    scales[place],
                    both=place % BOTH_EVERY == 0,
                    what=f"{op.name}.{result}",
                )
                counts[result] = counts.get(result, 0) + 1
                if result not in worst or units > worst[result][0]:
                    recipe = "cancelling" if case.values else case.fill
                    worst[result] = (units, f"{recipe} {case.dtype} {case.dims} [{index}] -> {values[place]!r}")
    return [
        Entry(
            op=op.name,
            params=params,
            result=result,
            device=architecture(device),
            units=round(units, 3),
            n=counts[result],
            seed=seed,
            torch=str(torch.__version__),
            worst=where,
        )
        for result, (units, where) in worst.items()
    ]


def build(op: Op, case: Case, device: str) -> Problem:
    """Returns the problem of a case without a kernel. Upstream gradients have the shapes of the op's outputs."""
    inputs = inputs_of(op, case, device)
    params = op.resolve(case.params)
    outputs = op.all_outputs
    upstream = {
        name: fill(
            case.upstream,
            named(case.dtype),
            op.result_shapes(case.dims, params)[name],
            Stream(case.seed, f"upstream/{name}", torch.device(device)),
        )
        for name in outputs
    }
    return problem_of(op, case, inputs, upstream, (*outputs, *op.gradients))


def distance(point: Point, value: float, scale: float, *, both: bool, what: str) -> float:
    """Returns |value - exact| in units of 2^-53 * scale, beyond an absolute slack.

    Returns infinity if only one of the two is NaN or infinite.
    """

    def narrow(enclosure: Enclosure) -> bool:
        width = enclosure.high - enclosure.low
        return width * (1 << 90) <= max(abs(enclosure.low), abs(enclosure.high)) or width < Fraction(SLACK) / 1024

    enclosure, _, _ = settle(point, narrow, both=both)
    if enclosure.kind == "nan":
        return 0.0 if value != value else float("inf")
    if enclosure.kind != "real":
        return 0.0 if value == float(enclosure.kind) else float("inf")
    if value != value or value in (float("inf"), float("-inf")):
        return float("inf")
    if scale != scale or scale == float("inf"):
        raise TruthError(f"{what}: the scale of a finite result is {scale!r}")
    gap = abs(Fraction(value) - (enclosure.low + enclosure.high) / 2) - Fraction(SLACK)
    if gap <= 0:
        return 0.0
    if scale == 0.0:
        return float("inf")
    return float(gap / (Fraction(scale) / (1 << 53)))


def _indices(op: Op, count: int, seed: int, result: str) -> list[int]:
    if op.geometry.by_element or count <= PER_CASE:
        return list(range(count))
    return sorted(set(counter.below(seed, f"certify/{result}", PER_CASE, count).tolist()))
