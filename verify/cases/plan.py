"""Plans the cases that `verify run` measures for a kernel and a dtype.

Unary elementwise kernels in 8 and 16 bits get every input. Other elementwise kernels get the special values, the
neighbourhoods of the op's landmarks, and three spreads of random values, from a fixed seed. Row-wise ops and
contractions get every row regime, at widths on both sides of a power of two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from verify import backends
from verify.cases import Case, case_of, counter
from verify.cases.covering import (
    CaseEffort,
    Chosen,
    Covering,
    chosen_case,
    covering,
    empty_sizes,
    endless_recipes,
    factors_of,
    has_numbers,
    run_recipes,
)
from verify.cases.scores import RECIPES as SCORE_RECIPES
from verify.cases.sizes import REACHES, fitted, fitted_rows, long_sizes, sizes_of, with_keys, work_of
from verify.cases.values import AT_BOUNDS, ENDLESS, MASKED, MATRIX_REGIMES, ROW_REGIMES, SIGNS
from verify.declare.captured import PREFIX, fits
from verify.declare.declaration import Kernel
from verify.ops.geometry import ByGeometry
from verify.truth.formats import named

# Numbers of rows beyond every way in which a kernel may split a sum over rows. Few columns make exact values quick.
SUMMED_ROWS = (9, 66, 257, 4097, 65_537, 1 << 20)
_SUMMED_COLUMNS, _SUMMED_INNER = 3, 2
_SUMMED_ELEMENTS = 1 << 23  # a declaration that demands wide rows gets fewer of them
# Widths of rows: narrow ones in turn, one for each regime, one for every regime, and one for float64.
_NARROW, _MIDDLE, _EXACT = (1, 3, 2, 5), 257, 33
_DISTINCT = 1000  # up to this many rows all differ; exact arithmetic takes a row at a time
# Numbers of keys for each recipe of scores. The law of accuracy tries all pairs. Exact values in float64 are expensive.
_KEYS = {"scores below -87": (1, 33, 192), "rising maxima": (128, 257), "falling maxima": (129,)}
_KEYS_ELSE, _KEYS_FLOAT64 = (65,), (5,)
# One recipe of ordinary values, two of demanding ones and one of extreme ones, for examples with more elements, or with
# more sums and products, as a network of a small image has.
_AT_LARGE, _LARGE, _LARGE_WORK = ("randn", "mean 1e3", "outlier", "huge 1e30"), 1 << 24, 1 << 30
# Limits of the cases that cover pairs, and their number. Each element of a float64 result is judged exactly.
_COVERING = {
    "small": CaseEffort(1 << 17, 70_000, 1 << 14),
    "large": CaseEffort(1 << 18, 1 << 21, 1 << 19),
    "float64": CaseEffort(64, 1 << 10, 1 << 10),
}


@dataclass(frozen=True)
class Group:
    """Holds cases whose figures are merged into one result per output.

    exhaustive: True: the cases are the whole input space.
    label: appended to gradient names ("dx" + label).
    only_gradients: True: another group has the outputs.
    pinned: True: the cases come from the project's corpus or from a file, and have results of their own.
    space: what names their inputs in the property hash of these results.
    results: only these results are judged; empty: all.
    pairs: number of pairs of sizes, recipes and operands covered by these cases and earlier dtypes, and of all.
    """

    cases: tuple[Case, ...]
    exhaustive: bool = False
    label: str = ""
    only_gradients: bool = False
    pinned: bool = False
    space: str = "pinned"
    results: tuple[str, ...] = ()
    pairs: tuple[int, int] = (0, 0)

    @property
    def covered(self) -> str:
        """Returns a note on the pairs that are covered; "" if there are none."""
        some, every = self.pairs
        return f"{some:,} of {every:,} pairs of sizes, recipes and operands are covered" if every else ""

    def judges(self, result: str) -> bool:
        """True if a result of its cases is judged."""
        return result in self.results if self.results else result.startswith("d") or not self.only_gradients

    def named(self, result: str) -> str:
        """Returns the name of a result of this group in the record."""
        return result + (self.label if self.pinned or result.startswith("d") else "")


@dataclass(frozen=True)
class PlanSizes:
    """Holds how much a plan measures. float64 is judged element by element in exact arithmetic, so it gets less.

    wide, large: used in turn, one for each regime.
    longest: a row longer than any block, for some regimes, with two rows.
    graph_elements: limit for the largest operand of an op that a PyTorch function defines.
    summed: numbers of rows in a sum over rows: for any dtype, and for the dtype that shows losses best. The interpreter
        takes milliseconds for a row.
    """

    elements: int
    float64_elements: int
    wide: tuple[int, ...]
    rows: int
    matrices: tuple[tuple[int, int, int], ...]
    graph_elements: int
    summed: tuple[tuple[int, ...], tuple[int, ...]]
    large: tuple[tuple[int, int, int], ...] = ()
    longest: int = 0


PLAN_SIZES = {
    "small": PlanSizes(
        elements=1 << 18,
        float64_elements=1 << 12,
        wide=(2048,),
        rows=3,
        matrices=((17, 65, 33), (32, 256, 16)),
        graph_elements=1 << 12,
        summed=((9,), (9, 257)),
    ),
    # An exact verdict takes longer for wider rows, on a CPU and on a GPU. So every regime has a middle width, and
    # widths that fill a block or leave it almost half empty take turns.
    "large": PlanSizes(
        elements=1 << 20,
        float64_elements=1 << 13,
        wide=(1025, 4096, 8193),
        rows=8,
        matrices=((17, 65, 33),),
        graph_elements=1 << 18,
        summed=(SUMMED_ROWS[:-1], SUMMED_ROWS),
        large=((128, 512, 128), (257, 1024, 96)),
        longest=65_537,
    ),
}


def plan(kernel: Kernel, dtype: str, backend: str, seed: int, *, rows_of: str = "") -> list[Group]:
    """Returns the groups of cases of one dtype.

    `rows_of` names another backend for sums over many rows: the interpreter would take hours where a GPU takes no time.
    """
    first, *others = kernel.op.geometry.of(_GROUPS)(kernel, dtype, backends.named(backend).scale, seed)
    # a case without each optional operand of a PyTorch function, and one without all of them
    names = () if kernel.op.meaning.shipped else tuple(each.name for each in kernel.op.operands if each.optional)
    absent = dict.fromkeys([*((name,) for name in names), names] if names else ())
    without = (msgspec.structs.replace(first.cases[0], absent=each) for each in absent)
    groups = [replace(first, cases=(*first.cases, *without)), *others]
    return [*groups, *_summed(kernel, dtype, PLAN_SIZES[backends.named(rows_of or backend).scale], seed)]


def pinned(kernel: Kernel, dtype: str, cases: Sequence[Case]) -> list[Group]:
    """Returns the corpus' cases of a kernel in a dtype as groups, without and with gradients."""
    groups = []
    for upstream in (False, True):
        chosen = tuple(dict.fromkeys(case.to_json() for case in cases if bool(case.upstream) == upstream))
        if chosen:
            group = tuple(Case.from_json(text) for text in chosen)
            groups.append(Group(group, label=" (pinned)", only_gradients=upstream, pinned=True))
    return groups


def captured(kernel: Kernel, dtype: str) -> list[Group]:
    """Returns the calls of the file of inputs= that have this dtype, without and with gradients."""
    found, named_dtypes = kernel.op.captured, kernel.captured_dtypes(dtype)
    if found is None:
        return []
    recipes = [f"{PREFIX}{number}" for number, call in enumerate(found.calls) if fits(call, named_dtypes)]
    groups = []
    for upstream in [False, True] if kernel.differentiable else [False]:
        cases = tuple(
            case_of(kernel, dtype, dims=found.dims(kernel.op, int(recipe.removeprefix(PREFIX))), fill=recipe,
                    upstream=recipe if upstream else "", regime=kernel.op.geometry.regime(recipe))
            for recipe in recipes
        )  # fmt: skip
        space = f"captured {found.digest}"
        groups.append(Group(cases, label=" (captured)", only_gradients=upstream, pinned=True, space=space))
    return groups if recipes else []


def _case(kernel: Kernel, dtype: str, seed: int, **fields: object) -> Case:
    """Returns a case within the kernel's domain.

    A case with all patterns also exceeds the kernel's largest magnitude.
    """
    made = case_of(kernel, dtype, seed=seed, **fields)
    largest = None if made.fill == "patterns" else kernel.largest.get(dtype)
    return msgspec.structs.replace(made, dims=fitted(kernel, made.dims), largest=largest)


def _elementwise(kernel: Kernel, dtype: str, scale: str, seed: int) -> list[Group]:
    """Returns every input of a unary kernel in up to 16 bits; else one large case of mixed values."""
    fmt = named(dtype)
    gradients = bool(kernel.differentiable)
    if fmt.bits <= 16 and kernel.op.is_unary:
        arriving = "ones" if gradients else ""
        everything = _case(kernel, dtype, seed, dims=(1 << fmt.bits,), fill="patterns", upstream=arriving)
        groups = [Group((everything,), exhaustive=math.prod(everything.dims) == 1 << fmt.bits)]
        if gradients:
            # dy = 1 alone would miss a backward pass that ignores dy
            weighted = _case(kernel, dtype, seed, dims=(1 << 14,), fill="mixed", upstream="normal")
            groups.append(Group((weighted,), label=" (random dy)", only_gradients=True))
        return groups
    sizes = PLAN_SIZES[scale]
    count = sizes.float64_elements if fmt.name == "float64" else sizes.elements
    # The width depends on the op and the dtype, not on the seed, so that figures of two seeds can be compared. A kernel
    # that is right only for the numbers of elements in `PLAN_SIZES` is wrong for some here.
    width = 193 + int(counter.below(0, f"plan/{kernel.op.name}/{dtype}", 1, 64)[0])
    dims = (count // width + count // 16384 + 1, width)
    upstream = "normal" if gradients else ""
    return [Group((_case(kernel, dtype, seed, dims=dims, fill="mixed", upstream=upstream),))]


def _rowwise(kernel: Kernel, dtype: str, scale: str, seed: int) -> list[Group]:
    """Returns every row regime at a narrow and a middle width, some at a wide one, some at the longest."""
    sizes = PLAN_SIZES[scale]
    upstream = "normal" if kernel.differentiable else ""
    cases = []
    for place, recipe in enumerate((*ROW_REGIMES, *endless_recipes(kernel, dtype))):
        narrow = _NARROW[place % len(_NARROW)]
        widths = [narrow, _MIDDLE] + [sizes.wide[place % len(sizes.wide)]] * (place % 2)
        shapes = [(sizes.rows, width) for width in widths]
        if sizes.longest and place % 3 == 2:
            shapes.append((2, sizes.longest))
        if dtype == "float64":
            shapes = [(sizes.rows, narrow), (sizes.rows, _EXACT)]
        arriving = "" if recipe in ENDLESS else upstream
        cases += [
            _case(kernel, dtype, seed, dims=dims, fill=recipe, upstream=arriving, regime=recipe) for dims in shapes
        ]
    return [Group(tuple(cases))]


def _graph(kernel: Kernel, dtype: str, scale: str, seed: int) -> list[Group]:
    """Returns cases for a PyTorch function.

    Ordinary values have small and larger sizes, each long dimension alone, and each empty one. Then follow cases that
    cover pairs of sizes and recipes. With examples, each example has all regimes.
    """
    geometry, chosen, pairs = kernel.op.geometry, list[Chosen](), (0, 0)
    if geometry.examples:
        large = {
            dims
            for dims in geometry.examples
            if sum(map(math.prod, kernel.op.shapes(dims, kernel.op.params).values())) > _LARGE
            or work_of(kernel.op, dims) > _LARGE_WORK
        }
        chosen += [
            Chosen(dims, {"recipe": recipe})
            for recipe in geometry.recipes or run_recipes(kernel, dtype)
            for dims in geometry.examples
            if recipe in _AT_LARGE or dims not in large
        ]
    else:
        plain = sizes_of(kernel.op, 64 if dtype == "float64" else PLAN_SIZES[scale].graph_elements)[:1]
        # a float64 result is judged exactly at every element, so no dimension is long, unless it is the only dtype
        exact = dtype == "float64" and len(kernel.dtypes) > 1
        reached = [] if exact else [some[-1] for some in long_sizes(kernel.op, REACHES[scale]).values() if some]
        long = [dims for dims in dict.fromkeys(reached) if dims not in plain]
        # sums of integers exceed what float32 holds where they are many and large
        of_long = [SIGNS] if has_numbers(kernel.op) else [SIGNS, AT_BOUNDS[1]]
        # a branch of a function may be taken for few numbers of many; a block of a long row may be masked as a whole
        endless = endless_recipes(kernel, dtype)
        of_long += [MASKED] * (MASKED in endless) + ["active"] * (kernel.op.gate == "plain")
        chosen += [Chosen(dims, {"recipe": ROW_REGIMES[0]}) for dims in plain]
        chosen += [Chosen(dims, {"recipe": recipe}) for recipe in of_long for dims in long]
        chosen += [Chosen(dims, {"recipe": ROW_REGIMES[0]}) for dims in empty_sizes(kernel) if dims not in plain]
        covered = pairs_of(kernel, dtype, scale)
        # other numbers of the same sizes show state that a kernel keeps from call to call
        chosen, pairs = [*chosen, *covered.cases, chosen[0]], (covered.covered, covered.pairs)
        chosen += [Chosen(dims, {"recipe": recipe}) for recipe in endless if recipe != MASKED for dims in long]
    for recipe in SCORE_RECIPES if kernel.op.scores else ():
        lengths = _KEYS_FLOAT64 if dtype == "float64" else _KEYS.get(recipe, _KEYS_ELSE)
        sizes = with_keys(kernel.op, lengths) or sizes_of(kernel.op, 1 << 6)[:1]
        chosen += [Chosen(dims, {"recipe": recipe}) for dims in sizes]
    cases = (
        chosen_case(kernel, dtype, each, seed + number)
        for place, each in enumerate(chosen)
        for number in (range(geometry.seeds) if geometry.examples else [place])
    )
    return [Group(tuple(cases), pairs=pairs)]


def pairs_of(kernel: Kernel, dtype: str, scale: str) -> Covering:
    """Returns the cases of a PyTorch function that cover pairs.

    A dtype has one round, and goes on from that of the dtype before.
    """
    effort = _COVERING["float64" if dtype == "float64" else scale]
    factors = factors_of(kernel, run_recipes(kernel, dtype))
    return covering(kernel, factors, effort, 1, first=kernel.dtypes.index(dtype))


def _contraction(kernel: Kernel, dtype: str, scale: str, seed: int) -> list[Group]:
    """Returns every matrix regime at the fixed shapes, and at large ones in turn."""
    sizes = PLAN_SIZES[scale]
    upstream = "normal" if kernel.differentiable else ""
    cases = []
    for place, recipe in enumerate(MATRIX_REGIMES):
        shapes = sizes.matrices + ((sizes.large[place % len(sizes.large)],) if sizes.large else ())
        for dims in shapes if dtype != "float64" else shapes[:1]:
            cases.append(_case(kernel, dtype, seed, dims=dims, fill=recipe, upstream=upstream, regime=recipe))
    return [Group(tuple(cases))]


_GROUPS = ByGeometry(_elementwise, _rowwise, _contraction, _graph)


def summed_results(kernel: Kernel) -> tuple[str, ...]:
    """Returns the gradients that sum over rows: of weights and biases."""
    if not kernel.op.geometry.sums_rows:
        return ()
    return tuple("d" + operand.name for operand in kernel.differentiable if operand.role != "data")


def summed_dims(kernel: Kernel, numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns dims with few columns for each number of rows."""
    wanted = (kernel.op.geometry.dims_of(rows, _SUMMED_COLUMNS, _SUMMED_INNER) for rows in numbers)
    return [dims for dims in (fitted_rows(kernel, each) for each in wanted) if math.prod(dims) <= _SUMMED_ELEMENTS]


def _summed(kernel: Kernel, dtype: str, sizes: PlanSizes, seed: int) -> list[Group]:
    """Returns cases with many rows. Most are in float32, which shows the loss of a few among many."""
    results = summed_results(kernel)
    rows = sizes.summed[dtype == ("float32" if "float32" in kernel.dtypes else kernel.dtypes[0])]
    cases = [
        _case(kernel, dtype, seed, dims=dims, fill=fill, upstream="normal", regime="many rows")
        for dims in summed_dims(kernel, rows)
        for fill in ["repeated rows" if dims[0] > _DISTINCT else "randn"]
    ]
    return [Group(tuple(cases), label=" (many rows)", only_gradients=True, results=results)] if results else []
