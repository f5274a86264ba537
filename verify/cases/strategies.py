"""Hypothesis strategies for cases: they draw structure (shape, recipe, layout, parameters), never contents.

`cases(kernel, dtype)` draws whole cases of one kernel. Simple comes first in every choice, because Hypothesis
shrinks towards the first: small shapes, contiguous layouts, the plainest recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from verify.cases.case import Case
from verify.cases.layouts import LAYOUTS
from verify.cases.values import ROW
from verify.declaration import Kernel
from verify.errors import UsageError

ELEMENT_RECIPES = ("normal", "active", "near", "mixed", "bits")
ROW_RECIPES = tuple(name for name in ROW if not name.startswith("around"))
MATRIX_RECIPES = ("randn", "mean 1e3", "outlier", "spread")
EPSILONS = (1e-5, 1e-6, 1e-12, 1e-3)
LAYOUT_NAMES = tuple(LAYOUTS)


@dataclass(frozen=True)
class Sizes:
    """How large the tensors of drawn cases may be. `many_rows` is a number of rows that outgrows a grid axis."""

    elements: int = 1 << 12
    width: int = 1 << 11
    depth: int = 300
    many_rows: int = 0


def interesting_sizes(largest: int) -> list[int]:
    """1, small numbers, powers of two and their neighbours, primes, and 0; simplest first."""
    sizes = [1, 2, 3, 5, 7, 13]
    power = 4
    while power <= largest:
        sizes += [power, power - 1, power + 1]
        power *= 2
    sizes += [97, 257, 1009, 4099, 0]
    return list(dict.fromkeys(size for size in sizes if size <= largest))


@st.composite
def shapes(draw: st.DrawFn, kernel: Kernel, sizes: Sizes) -> tuple[int, ...]:
    """Dims for the kernel's op: any shape, (..., N), or (M, K, N)."""
    kind = kernel.op.kind
    if kind == "contraction":
        small = interesting_sizes(65)
        return (
            draw(st.sampled_from(small)),
            draw(st.sampled_from(interesting_sizes(sizes.depth))),
            draw(st.sampled_from(small)),
        )
    if kind == "rowwise":
        width = draw(st.sampled_from(interesting_sizes(sizes.width)))
        leading = draw(st.sampled_from([(3,), (1,), (7,), (), (2, 3), (0,), (33,), (2, 1, 2)]))
        return (*leading, width)
    forms = [(1,), (2,), (), (0,)]
    forms += [(size,) for size in interesting_sizes(sizes.elements)]
    narrow = interesting_sizes(65)
    form = draw(st.sampled_from(["line", "matrix", "block"]))
    if form == "line":
        dims = draw(st.sampled_from(forms))
    elif form == "matrix":
        dims = (draw(st.sampled_from(narrow)), draw(st.sampled_from(narrow)))
    else:
        dims = tuple(draw(st.sampled_from([1, 2, 3, 8, 0])) for _ in range(draw(st.integers(3, 4))))
    if dims == () and kernel.op.shapes((), kernel.op.resolve(kernel.params)) != dict.fromkeys(kernel.operands, ()):
        return (1,)  # packed halves need a dimension to be packed along
    return dims


def recipes(kernel: Kernel) -> tuple[str, ...]:
    """The value recipes that make sense for the kernel's op."""
    by_kind = {"elementwise": ELEMENT_RECIPES, "rowwise": ROW_RECIPES, "contraction": MATRIX_RECIPES}
    return by_kind[kernel.op.kind]


def free_parameters(kernel: Kernel) -> dict[str, st.SearchStrategy[Any]]:
    """Strategies for the parameters that the kernel accepts and its declaration leaves open."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for name, default in kernel.op.params.items():
        if name in kernel.params or name not in kernel.accepted:
            continue
        if name in kernel.op.choices:
            found[name] = st.sampled_from(kernel.op.choices[name])
        elif name == "eps":
            found[name] = st.sampled_from(EPSILONS)
        else:
            found[name] = st.just(default)
    return found


@st.composite
def cases(
    draw: st.DrawFn,
    kernel: Kernel,
    dtype: str,
    *,
    sizes: Sizes | None = None,
    fill: Sequence[str] | None = None,
    layouts: Sequence[str] = ("contiguous",),
    upstream_layouts: Sequence[str] = ("contiguous",),
    upstream: Sequence[str] = ("normal",),
    dims: tuple[int, ...] | None = None,
) -> Case:
    """Cases of one kernel in one dtype. `layouts` are drawn for each operand on its own."""
    for name in (*layouts, *upstream_layouts):
        if name not in LAYOUTS:
            raise UsageError(f"unknown layout {name!r}; the layouts are: {', '.join(LAYOUTS)}")
    sizes = sizes or Sizes()
    chosen = dims if dims is not None else draw(shapes(kernel, sizes))
    recipe = draw(st.sampled_from(tuple(fill) if fill is not None else recipes(kernel)))
    params = dict(kernel.params) | {name: draw(values) for name, values in free_parameters(kernel).items()}
    placed: dict[str, str] = {}
    for operand in kernel.operands:
        placed[operand] = draw(st.sampled_from(tuple(layouts)))
    arriving = draw(st.sampled_from(tuple(upstream))) if kernel.differentiable else ""
    if arriving:
        for output in kernel.outputs:
            placed["d" + output] = draw(st.sampled_from(tuple(upstream_layouts)))
    return Case(
        dtype=dtype,
        dims=chosen,
        fill=recipe,
        seed=draw(st.integers(0, 2**16)),
        params=params,
        upstream=arriving,
        absent=kernel.absent,
        regime=recipe if kernel.op.kind != "elementwise" else "",
        layouts={name: layout for name, layout in placed.items() if layout != "contiguous"},
    )
