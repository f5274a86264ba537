"""Defines the candidates of one result of one kernel, and how many of them make one call.

A candidate is the smallest input that an output element depends on: one element of every operand, one row, one row of a
dot product, or a small case of a PyTorch function. Each operand adds one variable to it: a line of numbers.
Thousands of candidates fill the tensors of one call and share its other operands. One candidate alone, or a few copies
of it, make a `Case` that every user can replay.

If an op treats each position of a dimension alone, as a softmax its rows, many candidates make one call. The program of
a PyTorch function shows which dimension that is, as for the laws about rows. A wrong choice costs evaluations and
nothing else, because finds are judged as cases of their own.

A gradient that sums over rows depends on all of them. There a candidate is a few rows of every operand and of every
arriving gradient, and has a call of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice

import torch
from torch import Tensor

from verify.cases import Case, case_of
from verify.cases.case import LIMIT, derive_all, spell
from verify.cases.classes import DEMANDING_FROM, DEMANDING_TO, ORDINARY_FROM, ORDINARY_TO
from verify.cases.plan import summed_results
from verify.cases.sizes import fitted, sizes_of
from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.laws.locality import independent_rows
from verify.measure.call import run_kernel
from verify.ops.domain import Domain
from verify.ops.graph.shapes import sizes_within
from verify.ops.op import Largest, Op, largest_words, up_to
from verify.records.record import DEMANDING, EXTREME
from verify.search.hunt.draws import Draws
from verify.truth.formats import Format, named, of
from verify.truth.ordinals import between, folded, to_tensor

Dims = tuple[int, ...]

WIDTH = 128  # length of the searched rows and dot products
WIDTH_FLOAT64 = 16  # shorter, because float64 is judged element by element in exact arithmetic
WIDTH_SUMS = ROWS_OF_SUMS = 16  # columns and rows of a sum over rows
_ELEMENTS = 512  # of the largest operand of a case that shows the rows of a function
_TRIED = 2_000  # number of sizes to choose from, the plainest first


@dataclass(frozen=True)
class CandidateLayout:
    """Holds the sizes of one candidate, and how candidates are laid in one call.

    `axis` is the dimension where they lie, None if each has a call of its own. `laid` names the tensors that have
    this dimension. `what` describes a candidate if its sizes do not.
    """

    dims: Dims
    axis: int | None
    laid: frozenset[str] = frozenset()
    what: str = ""

    def times(self, count: int) -> Dims:
        """Returns the sizes of a call of `count` candidates."""
        if self.axis is None:
            return self.dims
        return (*self.dims[: self.axis], self.dims[self.axis] * count, *self.dims[self.axis + 1 :])


def layout_of(kernel: Kernel, dtype: str, result: str, width: int) -> CandidateLayout:
    """Returns the layout of one result. `width` 0 is the default length of rows and dot products."""
    op = kernel.op
    data = frozenset(operand.name for operand in op.operands if operand.role == "data")
    data |= {"d" + name for name in op.all_outputs}
    if op.geometry.by_element:
        return CandidateLayout((1, 1), 1, data | {operand.name for operand in op.operands}, what="single elements")
    if result in summed_results(kernel):
        dims = fitted(kernel, op.geometry.dims_of(ROWS_OF_SUMS, width or WIDTH_SUMS, WIDTH_SUMS))
        if max(map(math.prod, op.shapes(dims, op.params).values())) > LIMIT:
            most = f"at most {LIMIT // ROWS_OF_SUMS:,} for {result}"
            raise UsageError(f"--width is {most}: a case spells out {ROWS_OF_SUMS} rows; received {width:,}")
        return CandidateLayout(dims, None, what=f"sums over rows in cases of {list(dims)}")
    width = width or (WIDTH_FLOAT64 if dtype == "float64" else WIDTH)
    if op.geometry.named:
        return _of_function(kernel, dtype, result, width)
    what = "rows" if op.geometry.by_row else "dot products"
    return CandidateLayout(op.geometry.dims_of(1, width), 0, data, what=f"{what} of {width}")


def _of_function(kernel: Kernel, dtype: str, result: str, elements: int) -> CandidateLayout:
    """Returns the layout of a PyTorch function. An operand has at most `elements` numbers if the domain allows it.

    Candidates lie along the first dimension that all of its tensors begin with, and whose indices are rows.
    """
    op = kernel.op
    if op.geometry.examples:
        found = CandidateLayout(min(op.geometry.examples, key=lambda dims: _numbers(op, dims)), None)
    else:
        found = _chosen(op, elements, None)
        floats = [each.name for each in op.operands if each.range is None]
        for rows in independent_rows(kernel, case_of(kernel, dtype, dims=sizes_of(op, _ELEMENTS)[0])):
            axis, laid = op.geometry.dims.index(rows.dimension), set(rows.axes)
            laid = {f"d{name}" if name in op.all_outputs else name for name in laid}
            layout = CandidateLayout(_chosen(op, elements, axis).dims, axis, frozenset(laid))
            first = set(rows.axes.values()) == {0} and rows.axis(result) is not None and not laid.isdisjoint(floats)
            if first and kernel.allows(layout.times(3)):
                found = layout
                break
    if reason := too_large(op, [found.dims]):
        raise UsageError(reason)
    return found


def too_large(op: Op, sizes: Sequence[Dims]) -> str:
    """Returns why no find of any of these sizes can be written down; "" if there are none, or if one can."""
    if (numbers := min((_numbers(op, dims) for dims in sizes), default=0)) <= LIMIT:
        return ""
    return (
        f"a hunt spells out its finds, at most {LIMIT:,} numbers of an operand; the smallest sizes of {op.name!r} "
        f"have {numbers:,}: shapes= with named dimensions, in the place of examples=, lets a hunt take smaller ones"
    )


def _numbers(op: Op, dims: Dims) -> int:
    """Returns the number of elements of the largest operand."""
    return max(math.prod(shape) for shape in op.shapes(dims, op.params).values())


def _chosen(op: Op, elements: int, axis: int | None) -> CandidateLayout:
    """Returns the largest, squarest sizes with at most `elements` numbers. The size along `axis` is the smallest."""
    sizes = list(islice(sizes_within(op.geometry, LIMIT), _TRIED))
    if axis is not None:
        least = min(dims[axis] for dims in sizes)
        sizes = [dims for dims in sizes if dims[axis] == least]

    def order(dims: Dims) -> tuple[bool, int, int]:
        rest = [size for place, size in enumerate(dims) if place != axis]
        numbers = _numbers(op, dims)
        return (True, min(rest, default=1), numbers) if numbers <= elements else (False, -numbers, 0)

    return CandidateLayout(max(sizes, key=order), axis)


def whole_operands(kernel: Kernel) -> list[str]:
    """Returns the integer operands of which a hunt draws the numbers."""
    some = [each for each in kernel.op.operands if each.range is not None and each.derive is None]
    return [each.name for each in some if each.name not in kernel.absent]


def whole_numbers(kernel: Kernel, dims: Dims, draws: Draws) -> dict[str, Tensor]:
    """Draws the integer operands of one candidate within their ranges."""
    found, shapes = {}, kernel.op.shapes(dims, kernel.op.params)
    for operand in kernel.op.operands:
        if operand.range is not None and operand.name in whole_operands(kernel):
            shape, (low, high) = shapes[operand.name], operand.range(dims)
            values = (draws.below(math.prod(shape), max(high - low, 1)) + low).reshape(shape)
            values = operand.range.arranged(values, dims)
            found[operand.name] = values.bool() if operand.boolean else values
    return found


Candidates = dict[str, Tensor]  # variable -> ordinals, one candidate per line

_LINE = 256  # an elementwise call is a matrix of this width: kernels have fast paths for very wide and very narrow ones


@dataclass(frozen=True)
class Variable:
    """Describes the numbers that one operand, or one arriving gradient ("d" + output), adds to a candidate."""

    name: str
    fmt: Format
    shape: tuple[int, ...]  # of one candidate
    role: str  # of the operand; "upstream" for an arriving gradient
    limit: int  # the largest ordinal to try: of the largest finite number, or of the user's `largest`
    row: bool  # True: its numbers are summed over. It is a row, a column, or a vector beside rows
    least: int = 0  # the smallest magnitude to try beside 0, as an ordinal
    domain: Domain | None = None  # of the operand

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def lines(self) -> int:
        """Returns the number of its rows."""
        return math.prod(self.shape[:-1])

    def within(self, ordinals: Tensor) -> Tensor:
        """Moves ordinals into the range to try: large ones to the limit, small ones to 0, all into the domain."""
        inside = ordinals.clamp(-self.limit, self.limit)
        if self.domain is not None:
            inside = folded(inside, *self._span(self.domain))
        # If the domain does not contain 0, `_span` has already excluded numbers that are too small.
        return inside if self.least <= 1 else torch.where(inside.abs() < self.least, 0, inside)

    def _span(self, domain: Domain) -> tuple[int, int]:
        """Returns the least and the greatest ordinal to try. Raises UsageError if there is none."""
        span = between(self.fmt, domain.low, domain.high)
        if span is not None:
            low, high = max(span[0], -self.limit), min(span[1], self.limit)
            if low > 0:
                low = max(low, self.least)
            elif high < 0:
                high = min(high, -self.least)
            if low <= high:
                return low, high
        raise UsageError(
            f"{self.name} has the domain {domain.text}: no {self.fmt.name} number in it has a magnitude with the limit "
            "of ordinary inputs",
            hint="max_ulp= with one limit for all classes",
        )


@dataclass(frozen=True)
class SearchSpace:
    """Holds all candidates of one result. A climb has equal `shared` variables, for example weight and bias."""

    kernel: Kernel
    dtype: str
    result: str
    fmt: Format  # of the result
    layout: CandidateLayout
    variables: tuple[Variable, ...]
    shared: tuple[Variable, ...]
    largest: Largest | None = None  # the magnitude that no input exceeds
    magnitudes: tuple[float, float] | None = None  # the least and the largest but 0; None: any

    @property
    def alone(self) -> bool:
        """True if each candidate has a call of its own."""
        return self.layout.axis is None

    @property
    def changing(self) -> bool:
        """True if candidates share integer operands, where small steps lead nowhere."""
        return any(operand.range is not None for operand in self.kernel.op.operands)

    @property
    def side_by_side(self) -> bool:
        """True if a candidate is one element of each operand. Then candidates lie side by side in a row."""
        return self.kernel.op.geometry.by_element

    @property
    def floor(self) -> float:
        """Returns the least noise, in ULP: see `Kernel.noise_floor`."""
        return self.kernel.noise_floor(self.dtype, self.result)

    @property
    def landmarks(self) -> tuple[float, ...]:
        """Returns the op's boundaries and the ends of domains."""
        op = self.kernel.op
        ends = (end for domain in op.domains.values() for end in domain.ends)
        return (*op.landmarks.boundaries(op.resolve(self.kernel.params)), *ends)

    @property
    def sentence(self) -> str:
        """Returns one line that says what is searched. It is part of the property hash."""
        sizes = map("{} = {}".format, self.kernel.op.geometry.dims, self.layout.dims)
        what = self.layout.what or f"cases of {', '.join(sizes)}"
        given = ", ".join(variable.name for variable in (*self.variables, *self.shared))
        range_ = "finite"
        if isinstance(self.largest, dict):
            range_ = largest_words(self.largest)
        elif self.largest is not None:
            range_ = f"at most {self.largest:g} in magnitude"
        if self.kernel.op.domains:
            range_ += f" with {self.kernel.op.domain_words}"
        if self.magnitudes is not None:
            least, most = self.magnitudes
            range_ += f", 0 or {least:g} to {most:g} in magnitude"
        return f"hunt: {what}, {given} {range_}"

    def fits(self, count: int) -> int:
        """Returns the largest number of candidates, up to `count`, that the kernel accepts in one call."""
        fewer = range(count, 0, -1) if self.kernel.op.geometry.named else ()
        return next((size for size in fewer if self.kernel.allows(self.layout.times(size))), count)

    def tensors(self, population: Candidates, shared: Candidates) -> tuple[dict[str, Tensor | None], dict[str, Tensor]]:
        """Returns the operands and the arriving gradients of one call. All candidates have the same integers."""
        op, count = self.kernel.op, size_of(population)
        inputs: dict[str, Tensor | None] = {operand.name: None for operand in op.operands}
        upstream: dict[str, Tensor] = {}
        for variable in (*self.variables, *self.shared):
            tensor = self._laid(to_tensor((population | shared)[variable.name], variable.fmt), variable)
            if variable.role == "upstream":
                upstream[variable.name[1:]] = tensor
            else:
                inputs[variable.name] = tensor
        for name in whole_operands(self.kernel):
            value = shared[name]
            if self.side_by_side:
                line = math.gcd(count, _LINE)
                value = value.expand(count // line, line).contiguous()
            elif name in self.layout.laid:
                value = value.repeat(count, *[1] * (value.ndim - 1))
            inputs[name] = value
        if op.derived:
            case = case_of(self.kernel, self.dtype, dims=self.layout.times(count))
            inputs = derive_all(op, case, inputs, next(iter(population.values())).device)
        return inputs, upstream

    def _laid(self, tensor: Tensor, variable: Variable) -> Tensor:
        """Lays all candidates out as an operand: elements side by side, others one behind the other."""
        if self.side_by_side:
            count, size = tensor.shape
            line = math.gcd(count, _LINE)
            return tensor.reshape(count // line, line, size).transpose(1, 2).reshape(count // line, size * line)
        return tensor.reshape(-1, *variable.shape[1:]) if variable.shape else tensor.reshape(())

    def per_candidate(self, flat: Tensor, count: int) -> Tensor:
        """Reshapes a flat tensor of the result's size to (candidates, elements of each)."""
        if self.side_by_side:
            line = math.gcd(count, _LINE)
            size = flat.numel() // count
            return flat.reshape(count // line, size, line).transpose(1, 2).reshape(count, size)
        return flat.reshape(count, -1)

    def case(self, candidate: Candidates, shared: Candidates, copies: int) -> Case:
        """Returns a case that spells out the bits of one candidate, `copies` times."""
        many = {name: value.expand(copies, -1) for name, value in candidate.items()}
        inputs, upstream = self.tensors(many, shared)
        own = {operand.name for operand in self.kernel.op.operands if operand.derive is None}
        values = {name: spell(tensor) for name, tensor in inputs.items() if tensor is not None and name in own}
        values |= {"d" + name: spell(tensor) for name, tensor in upstream.items()}
        gradient = self.result not in self.kernel.op.all_outputs
        return _case(self.kernel, self.dtype, self.layout.times(copies), gradient=gradient, values=values)

    def contexts(self) -> list[int]:
        """Returns the numbers of copies with which to run a candidate again: alone, then enough to fill a vector or a
        tile.

        A library may compute one element by another path than many, so an error may show only among copies.
        """
        copies = 32 if self.side_by_side else 8
        largest = max(variable.size for variable in self.variables)
        fits = not self.alone and copies * largest <= LIMIT and self.fits(copies) == copies
        return [1, copies] if fits else [1]


def _case(kernel: Kernel, dtype: str, dims: tuple[int, ...], *, gradient: bool, values: Mapping[str, str]) -> Case:
    fill, upstream = "ones" if values else "normal", "ones" if gradient else ""
    return case_of(kernel, dtype, dims=dims, fill=fill, upstream=upstream, values=dict(values))


def searchable(kernel: Kernel, dtype: str, result: str) -> str | None:
    """Returns None if the result can be hunted, else the rule that forbids it."""
    op = kernel.op
    if kernel.encoding is not None:
        return f"a hunt drives the error of a number up; {kernel.name!r} is a quantiser: `verify run` tries every scale"
    if result in kernel.draws:
        return f"a hunt drives the error of a number up; {result} is drawn at random, and a run tries its distribution"
    if all(operand.range is not None for operand in op.operands):
        return f"a hunt changes floating-point numbers; all operands of {op.name!r} are whole ones"
    if named(dtype).bits <= 16 and op.is_unary:
        return f"every {dtype} input of {op.name!r} can be tried: a hunt would prove less than `verify run` does"
    known = [*kernel.outputs, *("d" + operand.name for operand in kernel.differentiable)]
    if result not in known:
        return f"kernel {kernel.name!r} has results {', '.join(known)}; received {result!r}"
    if op.geometry.multiplies and result not in (*op.all_outputs, *summed_results(kernel)):
        return f"a hunt searches sums over rows; {result} of {op.name!r} sums over columns"
    return too_large(op, op.geometry.examples) or None


def space_of(
    kernel: Kernel, dtype: str, result: str, device: str, *, width: int = 0, largest: Largest | None = None
) -> SearchSpace:
    """Returns the space of one result. Raises UsageError with the rule if there is none.

    Finds are judged by the limit of ordinary inputs. So the space omits demanding or extreme inputs if they have
    another limit or none.
    """
    reason = searchable(kernel, dtype, result)
    if reason is not None:
        raise UsageError(reason)
    whole, limit = _space(kernel, dtype, result, device, width, largest), kernel.limit(dtype, result)
    if kernel.limit_of(dtype, DEMANDING, result) != limit:
        magnitudes = ORDINARY_FROM, ORDINARY_TO
    elif kernel.limit_of(dtype, EXTREME, result) != limit:
        magnitudes = DEMANDING_FROM, DEMANDING_TO
    else:
        return whole
    variables, shared = (
        tuple(_narrowed(variable, *magnitudes) for variable in some) for some in (whole.variables, whole.shared)
    )
    return replace(whole, variables=variables, shared=shared, magnitudes=magnitudes)


def _narrowed(variable: Variable, least: float, most: float) -> Variable:
    bits = variable.fmt.up_to(least)
    at_least = bits + (variable.fmt.value(bits) < Fraction(least))
    return replace(variable, least=at_least, limit=min(variable.limit, _limit(variable.fmt, most)))


def _space(kernel: Kernel, dtype: str, result: str, device: str, width: int, largest: Largest | None) -> SearchSpace:
    """Returns the space over all magnitudes up to `largest`."""
    op = kernel.op
    layout = layout_of(kernel, dtype, result, width)
    space = SearchSpace(kernel, dtype, result, named(dtype), layout, (), (), largest)
    call = (3, 16) if space.side_by_side else layout.times(space.fits(3))
    case = _case(kernel, dtype, call, gradient=bool(kernel.differentiable), values={})
    found = {name: of(tensor.dtype) for name, tensor in run_kernel(kernel, case, device).results.items()}
    if result not in found:
        raise UsageError(f"kernel {kernel.name!r} provides no {result}: autograd has no path to it")
    shapes = op.shapes_with_outputs(layout.dims, op.resolve(kernel.params), op.all_outputs)
    drawn = [each for each in op.operands if each.range is None and each.derive is None]
    operands = [each for each in drawn if each.name not in kernel.absent]
    given: list[tuple[str, str, Format]]
    given = [(each.name, each.role, named(kernel.operand_dtype(dtype, each.name))) for each in operands]
    if result not in op.all_outputs:
        given += [("d" + name, "upstream", found[name]) for name in kernel.outputs if name not in op.integers]
    variables = tuple(
        Variable(
            name,
            fmt,
            shapes[name],
            role,
            _limit(fmt, up_to(largest, "" if role == "upstream" else name)),
            row=not space.side_by_side and math.prod(shapes[name]) > 1,
            domain=None if role == "upstream" else op.domains.get(name),
        )
        for name, role, fmt in given
    )
    own = tuple(variable for variable in variables if layout.axis is None or variable.name in layout.laid)
    shared = tuple(variable for variable in variables if variable not in own)
    return replace(space, fmt=found[result], variables=own, shared=shared)


def _limit(fmt: Format, largest: float) -> int:
    """Returns the ordinal of the largest number to try: at most `largest`, at least the smallest positive number."""
    return max(1, fmt.up_to(largest))


def one_of(population: Candidates, index: int) -> Candidates:
    """Returns the population of a single candidate."""
    return {name: value[index : index + 1] for name, value in population.items()}


def size_of(population: Candidates) -> int:
    """Returns the number of candidates."""
    return int(next(iter(population.values())).shape[0])


def joined(parts: list[Candidates]) -> Candidates:
    """Joins several populations into one."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
