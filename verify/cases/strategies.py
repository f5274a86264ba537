"""Defines Hypothesis strategies for cases.

They draw structure (shape, recipe, layout, parameters), never values.

`space(kernel, dtype)` holds the choices for cases of one kernel. `.cases()` draws from it, and `.each_choice()` lists a
few cases that have every choice once. Simple choices come first, because the others vary the first: small shapes,
contiguous layouts, the plainest recipe. `.roll()` takes one case at random, a hundred times faster, for very many cases
without a search.
"""

import math
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import msgspec
from hypothesis import strategies as st

from verify.cases.case import Case, case_of
from verify.cases.covering import empty_sizes, own_recipes
from verify.cases.sizes import fitted, fitted_all, sizes_of
from verify.cases.values import CONFIDENT, MATRIX_REGIMES, ROW_REGIMES
from verify.declare.declaration import Kernel
from verify.ops.geometry import ByGeometry, Shapes

ELEMENT_RECIPES = ("normal", "active", "near", "mixed", "bits")
ROW_RECIPES = (*ROW_REGIMES, CONFIDENT)
_RECIPES = ByGeometry(ELEMENT_RECIPES, ROW_RECIPES, MATRIX_REGIMES, ROW_RECIPES)
EPSILONS = (1e-5, 1e-6, 1e-12, 1e-3)
# Recipes of the upstream gradient for laws that hold without one too. With "", no operand requires a gradient.
EITHER_PATH = ("normal", "normal", "normal", "")
Dims = tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """Limits the tensors of drawn cases.

    rows: exceeds the number of programs that a kernel launches at once.
    many_rows: exceeds a grid axis.
    every_pattern: True: an op of one 16-bit number is tried on all of them.
    addresses: True: the sizes from which on offsets need more than 32 bits are searched, which takes seconds.
    """

    elements: int = 1 << 12
    width: int = 1 << 11
    depth: int = 300
    rows: int = 1 << 10
    many_rows: int = 0
    every_pattern: bool = False
    addresses: bool = False


@dataclass(frozen=True)
class Chance:
    """Makes choices, one of several or a number within two ends: Hypothesis does, or a random generator."""

    pick: Callable[[Sequence[Any]], Any]
    number: Callable[[int, int], int]


_STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {}


def _one_of(choices: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Returns a cached strategy that samples from these choices. Making one takes longer than drawing from it."""
    key = tuple((type(each), each) for each in choices)  # 1, 1.0 and True are equal
    if key not in _STRATEGIES:
        _STRATEGIES[key] = st.sampled_from(choices)
    return _STRATEGIES[key]


@lru_cache
def row_counts(largest: int) -> tuple[int, ...]:
    """Returns numbers of rows beyond 65, each a tenth more than the one before. Few of them are round."""
    counts = [66]
    while (more := counts[-1] * 11 // 10 + 1) <= largest:
        counts.append(more)
    return tuple(counts)


@lru_cache
def interesting_sizes(largest: int) -> tuple[int, ...]:
    """Returns 1, small numbers, powers of two and their neighbours, primes, and 0; simplest first."""
    sizes = [1, 2, 3, 5, 7, 13]
    power = 4
    while power <= largest:
        sizes += [power, power - 1, power + 1]
        power *= 2
    sizes += [97, 257, 1009, 4099, 0]
    return tuple(dict.fromkeys(size for size in sizes if size <= largest))


def _elements(chance: Chance, kernel: Kernel, sizes: Sizes) -> Dims:
    """Draws dims of an elementwise kernel: a line, a matrix or a block of small sizes."""
    narrow = interesting_sizes(65)
    form = chance.pick(("line", "matrix", "block"))
    if form == "line":
        dims = chance.pick(_lines(sizes.elements))
    elif form == "matrix":
        dims = (chance.pick(narrow), chance.pick(narrow))
    else:
        dims = tuple(chance.pick((1, 2, 3, 8, 0)) for _ in range(chance.number(3, 4)))
    return dims if dims or not kernel.op.geometry.packed else (1,)


def _rows(chance: Chance, kernel: Kernel, sizes: Sizes) -> Dims:
    width = chance.pick(interesting_sizes(sizes.width))
    return (*chance.pick(((3,), (1,), (7,), (), (2, 3), (0,), (33,), (2, 1, 2))), width)


def _products(chance: Chance, kernel: Kernel, sizes: Sizes) -> Dims:
    small = interesting_sizes(65)
    return chance.pick(small), chance.pick(interesting_sizes(sizes.depth)), chance.pick(small)


def _declared(chance: Chance, kernel: Kernel, sizes: Sizes) -> Dims:
    return chance.pick(sizes_of(kernel.op, sizes.elements))  # type: ignore[no-any-return]


_DRAWN = ByGeometry(_elements, _rows, _products, _declared)  # each draws dims for a kernel


@lru_cache
def _lines(elements: int) -> tuple[Dims, ...]:
    return ((1,), (2,), (), (0,), *((size,) for size in interesting_sizes(elements)))


def recipes(kernel: Kernel) -> tuple[str, ...]:
    """Returns the value recipes that make sense for the kernel's op."""
    return (*kernel.op.geometry.of(_RECIPES), *own_recipes(kernel.op))


def free_choices(kernel: Kernel) -> dict[str, tuple[Any, ...]]:
    """Returns the values of each accepted parameter that the declaration leaves open; the plainest first."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, default in kernel.op.params.items():
        if name in kernel.params or name not in kernel.accepted:
            continue
        if name in kernel.op.choices:
            found[name] = tuple(kernel.op.choices[name])
        elif name == "eps":
            found[name] = EPSILONS
        else:
            found[name] = (default,)
    return found


# First a row count and a width that no block divides. Then one element, none, several blocks, more dimensions, more
# elements than a 16-bit offset reaches, and whole blocks, for which a kernel may skip its masks. Products with a
# dimension of 1 have results that are sums of one term, so no other term hides an intermediate rounding.
_FIXED_SHAPES: ByGeometry[Shapes] = ByGeometry(
    elementwise=((5, 67), (3,), (), (0, 3), (1031,), (2, 1, 3, 5), (65, 33), (64, 64)),
    rowwise=((5, 67), (2, 1), (3,), (0, 5), (33, 1031), (2, 1, 3, 5), (65, 8), (8, 128)),
    contraction=(
        *((5, 67, 9), (1, 1, 1), (0, 3, 5), (3, 300, 2), (65, 33, 65), (33, 1, 33), (1, 33, 33), (33, 33, 1)),
        (64, 64, 64),
    ),
)
# A transposed operand with whole tiles of 64, and with more than one: a kernel may have a path for each.
_TILES = ((64, 64, 64), (71, 57, 66))


def fixed_shapes(kernel: Kernel, sizes: Sizes) -> tuple[Dims, ...]:
    """Returns the shapes of `each_choice` for laws that need no shapes of their own."""
    geometry = kernel.op.geometry
    if geometry.named:
        return (*sizes_of(kernel.op, sizes.elements)[:7], *empty_sizes(kernel))
    base, *others = geometry.of(_FIXED_SHAPES)
    place, most = geometry.of(ByGeometry((0, sizes.elements), (-1, sizes.width), (1, sizes.depth)))

    def fits(dims: Dims) -> bool:
        size = math.prod(dims) if geometry.by_element else dims[place]
        return size <= most and bool(dims or not geometry.packed)

    return fitted_all(kernel, (base, *filter(fits, others)))


@dataclass(frozen=True)
class Layouts:
    """Holds the layouts that operands may have, and the layouts of the upstream gradients.

    `contiguous` names operands that have no other layout.
    """

    operands: Sequence[str] = ("contiguous",)
    upstream: Sequence[str] = ("contiguous",)
    contiguous: Collection[str] = ()

    def of(self, operand: str) -> Sequence[str]:
        """Returns the layouts that an operand may have."""
        return ("contiguous",) if operand in self.contiguous else self.operands


@dataclass(frozen=True)
class CaseSpace:
    """Holds the choices for cases. `cases()` draws from them; `each_choice()` takes every one of them once.

    `space(...)` makes it.
    """

    kernel: Kernel
    dtype: str
    sizes: Sizes
    fill: tuple[str, ...]
    layouts: Layouts
    upstream: tuple[str, ...]
    shapes: tuple[Dims, ...]  # empty: any shape within `sizes`

    def cases(self) -> st.SearchStrategy[Case]:
        """Returns a strategy of cases with every factor drawn on its own."""
        return _draw(self)

    def roll(self, generator: random.Random) -> Case:
        """Returns one case with every factor taken at random."""
        return self._chosen(Chance(generator.choice, generator.randint))

    def _chosen(self, chance: Chance) -> Case:
        """Returns one case with every factor chosen by `chance`."""
        kernel = self.kernel
        dims = chance.pick(self.shapes) if self.shapes else kernel.op.geometry.of(_DRAWN)(chance, kernel, self.sizes)
        recipe = chance.pick(self.fill)
        params = dict(kernel.params) | {name: chance.pick(some) for name, some in free_choices(kernel).items()}
        placed = {operand: chance.pick(self.layouts.of(operand)) for operand in kernel.operands}
        arriving = chance.pick(self.upstream) if kernel.differentiable else ""
        if arriving:
            for output in kernel.outputs:
                placed["d" + output] = chance.pick(self.layouts.upstream)
        return self._case(dims, recipe, params, arriving, placed, seed=chance.number(0, 2**16))

    def each_choice(self, shapes: Sequence[Dims] | None = None) -> tuple[Case, ...]:
        """Returns one plain case, and one more for every other choice of every factor, the rest being plain.

        This is known in testing as base choice coverage. Whatever a search draws, each recipe, parameter, layout of
        each operand and shape is tried. `shapes` replaces the shapes.
        """
        kernel = self.kernel
        forms = fitted_all(kernel, shapes or self.shapes or fixed_shapes(kernel, self.sizes))
        open_params = {name: choices for name, choices in free_choices(kernel).items() if len(choices) > 1}
        plain = self._case(forms[0], self.fill[0], dict(kernel.params), self.upstream[0], {})
        found = [plain]

        def vary(**changed: Any) -> None:
            found.append(msgspec.structs.replace(plain, seed=len(found), **changed))

        for recipe in self.fill[1:]:
            vary(fill=recipe, regime=recipe if plain.regime else "")
        for name, choices in open_params.items():
            for choice in choices:
                vary(params=plain.params | {name: choice})
        for operand in kernel.operands:
            for layout in _displaced(self.layouts.of(operand)):
                vary(layouts={operand: layout})
        for dims in forms[1:]:
            vary(dims=dims)
        if plain.upstream:
            for arriving in dict.fromkeys(self.upstream):
                if arriving != plain.upstream:
                    vary(upstream=arriving)
            for output in kernel.outputs:
                for layout in _displaced(self.layouts.upstream):
                    vary(layouts={"d" + output: layout})
        geometry = kernel.op.geometry
        for tile in () if shapes or self.shapes or geometry.named else _TILES:
            turned = [operand for operand in kernel.operands if "transposed" in self.layouts.of(operand)]
            turned += ["d" + output for output in kernel.outputs if "transposed" in self.layouts.upstream]
            if turned and (plain.upstream or "transposed" in self.layouts.operands):
                vary(dims=fitted(kernel, geometry.dims_of(*tile)), layouts=dict.fromkeys(turned, "transposed"))
        return tuple(found)

    def each_pair(self) -> tuple[Case, ...]:
        """Returns the plain case with every other recipe together with every other value of every free parameter."""
        plain, *varied = self.each_choice()
        resolve = self.kernel.op.resolve
        some = [case for case in varied if resolve(case.params) != resolve(plain.params)]
        return tuple(
            msgspec.structs.replace(case, fill=recipe, regime=recipe if plain.regime else "", seed=seed)
            for seed, (recipe, case) in enumerate(product(self.fill[1:], some), len(varied) + 1)
        )

    def each_alone(self) -> tuple[Case, ...]:
        """Returns the plain case with None for each optional operand that the kernel takes, one at a time."""
        plain, kernel = self.each_choice()[0], self.kernel
        names = [operand.name for operand in kernel.op.operands if operand.optional and operand.name in kernel.operands]
        return tuple(msgspec.structs.replace(plain, absent=(*plain.absent, name)) for name in names)

    def _case(
        self, dims: Dims, recipe: str, params: dict[str, Any], arriving: str, placed: dict[str, str], seed: int = 0
    ) -> Case:
        kernel = self.kernel
        return case_of(
            kernel,
            self.dtype,
            dims=fitted(kernel, dims),
            fill=recipe,
            seed=seed,
            params=params,
            upstream=arriving if kernel.differentiable else "",
            regime=kernel.op.geometry.regime(recipe),
            layouts={name: layout for name, layout in placed.items() if layout != "contiguous"},
            largest=kernel.largest.get(self.dtype),
        )


def _displaced(layouts: Iterable[str]) -> list[str]:
    """Returns the layouts other than the plain one."""
    return [layout for layout in layouts if layout != "contiguous"]


def space(
    kernel: Kernel,
    dtype: str,
    *,
    sizes: Sizes | None = None,
    fill: Sequence[str] | None = None,
    layouts: Layouts = Layouts(),
    upstream: Sequence[str] = ("normal",),
    shapes: Sequence[Dims] = (),
) -> CaseSpace:
    """Returns the space of a kernel's cases in one dtype."""
    return CaseSpace(
        kernel=kernel,
        dtype=dtype,
        sizes=sizes or Sizes(),
        fill=tuple(fill) if fill is not None else recipes(kernel),
        layouts=layouts,
        upstream=tuple(upstream),
        shapes=fitted_all(kernel, shapes),
    )


@st.composite
def _draw(draw: st.DrawFn, chosen: CaseSpace) -> Case:
    return chosen._chosen(Chance(lambda some: draw(_one_of(some)), lambda low, high: draw(st.integers(low, high))))
