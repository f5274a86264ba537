"""What a hunt searches: the candidates of one result of one kernel, and how many of them make one call.

A candidate is the smallest thing that an output element depends on: one element of every operand, one row, or
a row of x with a column of the weight. Its numbers are genes. Thousands of candidates fill the tensors of one
call; one candidate alone, or a few copies of it, make a `Case` that anybody can replay.

A gradient that sums over rows depends on all of them: there a candidate is a few rows of every operand and of
every arriving gradient, which repeat to as many as the generation has, and each has a call of its own. A candidate of a
PyTorch function is a case at small sizes (`verify.hunt.units`); many make one call, or each has its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from verify.cases import Case, case_of
from verify.cases.classes import DEMANDING_FROM, DEMANDING_TO, ORDINARY_FROM, ORDINARY_TO
from verify.cases.explicit import LIMIT, repeated, spell
from verify.cases.plan import is_unary, summed_results
from verify.declare.declaration import Kernel, expected_shape
from verify.errors import UsageError
from verify.hunt.draws import Draws
from verify.hunt.ordinals import to_tensor
from verify.hunt.units import Unit, copied, unit_of
from verify.measure.call import run_kernel
from verify.ops.op import Largest, largest_words, up_to
from verify.records.record import DEMANDING, EXTREME
from verify.truth.formats import Format, named, of

Population = dict[str, Tensor]  # gene -> ordinals, one candidate per line

WIDTH = 128  # of the rows and dot products that are searched
WIDTH_FLOAT64 = 16  # judged element by element in exact arithmetic
WIDTH_SUMS = PERIOD = 16  # columns of a sum over rows, and rows of it that differ
ROWS = "number of rows"  # beside the shared genes of a generation: no operand has such a name
# Both sides of what a kernel may split its rows by. An interpreted one takes milliseconds for each row.
_SPLITS = (256, 8, 64, 4_096, 16, 128, 1_024, 32, 132, 65_536, 264)
_MOST_ROWS = {"cpu": 257, "cuda": 65_537}
_LINE = 256  # an elementwise call is a matrix of this width: kernels have a fast path for neither extreme
_COPIES = {"elementwise": (1, 32), "rowwise": (1, 8), "contraction": (1, 16), "graph": (1, 8)}


@dataclass(frozen=True)
class Gene:
    """The numbers that one operand, or one arriving gradient ("d" + output), adds to a candidate."""

    name: str
    fmt: Format
    size: int
    role: str  # of the operand; "upstream" for an arriving gradient
    limit: int  # the largest ordinal that is tried: the largest finite number, or what the user set
    row: bool  # whether its numbers are summed over: a row, a column or a vector beside rows
    lines: int = 1  # rows of an operand that it holds, columns of an arriving gradient
    shape: tuple[int, ...] | None = None  # of a PyTorch function, that of one candidate
    least: int = 0  # the smallest ordinal beside 0 that is tried

    def within(self, ordinals: Tensor) -> Tensor:
        """The ordinals, those that are too large at the limit and those that are too small at 0."""
        inside = ordinals.clamp(-self.limit, self.limit)
        return inside if self.least <= 1 else torch.where(inside.abs() < self.least, 0, inside)


@dataclass(frozen=True)
class SearchSpace:
    """All candidates of one result. `shared` genes (weight and bias of a row-wise op) serve a whole call."""

    kernel: Kernel
    dtype: str
    result: str
    fmt: Format  # of the result
    width: int
    parts: int  # halves of the weight that an output is made of: 2 for gated contractions
    genes: tuple[Gene, ...]
    shared: tuple[Gene, ...]
    largest: Largest | None = None  # magnitude that no input exceeds
    most_rows: int = 0  # of a sum over rows; 0 where the result has none
    unit: Unit | None = None  # of a PyTorch function
    magnitudes: tuple[float, float] | None = None  # of all inputs but 0, where the limit is that of some classes alone

    @property
    def alone(self) -> bool:
        """Whether each candidate has a call of its own."""
        return bool(self.most_rows) or (self.unit is not None and self.unit.axis is None)

    @property
    def changing(self) -> bool:
        """Whether what all candidates share is new in every generation: how many rows, whole numbers."""
        return self.alone or any(operand.range is not None for operand in self.kernel.op.operands)

    @property
    def kind(self) -> str:
        return self.kernel.op.kind

    @property
    def floor(self) -> float:
        """The least noise, in ULP: see `Kernel.noise_floor`."""
        return self.kernel.noise_floor(self.dtype, self.result)

    @property
    def gradient(self) -> bool:
        return self.result not in self.kernel.op.all_outputs

    @property
    def sentence(self) -> str:
        """What is searched, in one line; part of the property hash."""
        what = {
            "elementwise": "single elements",
            "rowwise": f"rows of {self.width}",
            "contraction": f"dot products of {self.width}",
            "graph": "cases of " + ", ".join(f"{name} = {size}" for name, size in self._named),
        }[self.kind]
        if self.most_rows:
            what = f"sums over rows of {self.width}"
        given = ", ".join(gene.name for gene in (*self.genes, *self.shared))
        range_ = "finite"
        if isinstance(self.largest, dict):
            range_ = largest_words(self.largest)
        elif self.largest is not None:
            range_ = f"at most {self.largest:g} in magnitude"
        if self.magnitudes is not None:
            least, most = self.magnitudes
            range_ += f", 0 or {least:g} to {most:g} in magnitude"
        return f"hunt: {what}, {given} {range_}"

    @property
    def _named(self) -> list[tuple[str, int]]:
        return [] if self.unit is None else list(zip(self.kernel.op.dims, self.unit.dims, strict=True))

    @property
    def enumerable(self) -> bool:
        """Whether candidates lie on one short line, stretches of which can be tried one by one."""
        return [gene.size for gene in self.genes] == [1] and self.genes[0].fmt.bits <= 32

    def evaluations(self, count: int) -> int:
        """How many candidates a call on `count` lines judges: a contraction crosses all rows with all columns."""
        return count * count if self._crossed else count

    def lines(self, evaluations: int) -> int:
        """How many lines a call may have to judge at most so many candidates."""
        return math.isqrt(evaluations) if self._crossed else evaluations

    def fits(self, count: int) -> int:
        """As many candidates for one call, or fewer, as the kernel takes."""
        while self.unit is not None and count > 1 and not self.kernel.allows(self.unit.times(count)):
            count -= 1
        return count

    @property
    def _crossed(self) -> bool:
        return self.kind == "contraction" and not self.most_rows

    def rows(self, turn: int, draws: Draws) -> int:
        """How many rows the candidates of a generation have: beside a split in turn, or any number."""
        splits = [split for split in _SPLITS if split < self.most_rows]
        if turn % 2 == 0:
            rows = splits[turn // 2 % len(splits)] + (-1 if turn // 2 // len(splits) % 2 else 1)
        else:
            rows = min(1 + int(draws.step(1, self.most_rows.bit_length() - 1)[0]), self.most_rows)
        return _allowed(self.kernel, _sum_dims(self.kernel, rows, self.width), 0)

    def tensors(self, population: Population, shared: Population) -> tuple[dict[str, Tensor | None], dict[str, Tensor]]:
        """Operands and arriving gradients of one call."""
        inputs, upstream = self._tensors(population, shared)
        if self.most_rows:
            rows = int(shared[ROWS])
            data = {operand.name for operand in self.kernel.op.operands if operand.role == "data"}
            upstream = {name: repeated(value, rows) for name, value in upstream.items()}
            inputs |= {name: repeated(value, rows) for name in data if (value := inputs[name]) is not None}
        return inputs, upstream

    def _tensors(
        self, population: Population, shared: Population
    ) -> tuple[dict[str, Tensor | None], dict[str, Tensor]]:
        """The same, with the rows of a sum once."""
        inputs: dict[str, Tensor | None] = {operand.name: None for operand in self.kernel.op.operands}
        upstream: dict[str, Tensor] = {}
        for gene in (*self.genes, *self.shared):
            ordinals = population[gene.name] if gene in self.genes else shared[gene.name][0]
            tensor = to_tensor(ordinals, gene.fmt)
            tensor = self._few(tensor, gene, int(shared[ROWS])) if self.most_rows else self._laid(tensor, gene)
            if gene.role == "upstream":
                upstream[gene.name[1:]] = tensor
            else:
                inputs[gene.name] = tensor
        count = size_of(population)
        for operand in self.kernel.op.operands:
            if operand.range is not None and operand.name not in self.kernel.absent:
                inputs[operand.name] = self._whole_numbers(operand.name, shared[operand.name], count)
        return inputs, upstream

    def _whole_numbers(self, name: str, value: Tensor, count: int) -> Tensor:
        """An integer operand of a call: every candidate has the same."""
        if self.unit is None:
            line = math.gcd(count, _LINE)
            return value.expand(count // line, line).contiguous()
        return copied(value, count) if name in self.unit.laid else value

    def _few(self, tensor: Tensor, gene: Gene, rows: int) -> Tensor:
        """What one candidate of a sum has of an operand or, column by column, of an arriving gradient."""
        table = tensor.reshape(gene.lines, -1)
        if gene.role == "upstream":
            return table.T[:rows].contiguous()
        return table[:rows] if gene.role == "data" else table if gene.role == "matrix" else tensor.reshape(-1)

    def _laid(self, tensor: Tensor, gene: Gene) -> Tensor:
        if self.unit is not None:
            return tensor.reshape(-1, *gene.shape[1:]) if gene.shape else tensor.reshape(())
        if self.kind == "elementwise":
            count, size = tensor.shape
            line = math.gcd(count, _LINE)
            return tensor.reshape(count // line, line, size).transpose(1, 2).reshape(count // line, size * line)
        if self.kind == "contraction" and gene.role != "data":
            count = tensor.shape[0]
            halves = tensor.reshape(count, self.parts, -1).transpose(0, 1).reshape(self.parts * count, -1)
            return halves.contiguous() if gene.role == "matrix" else halves.reshape(-1).contiguous()
        return tensor.contiguous()

    def per_candidate(self, flat: Tensor, count: int) -> Tensor:
        """A flat tensor like the result as (candidates, elements of each)."""
        if self.most_rows or self.unit is not None:
            return flat.reshape(count, -1)
        if self.kind == "elementwise":
            line = math.gcd(count, _LINE)
            size = flat.numel() // count
            return flat.reshape(count // line, size, line).transpose(1, 2).reshape(count, size)
        if self.kind == "rowwise":
            return flat.reshape(count, -1)
        size = flat.numel() // (count * count)
        return flat.reshape(count, size, count).transpose(1, 2).reshape(count * count, size)

    def case(self, candidate: Population, shared: Population, copies: int) -> Case:
        """One candidate, `copies` times, as a case that spells out its bits."""
        copied = {name: value.expand(copies, -1) for name, value in candidate.items()}
        inputs, upstream = self._tensors(copied, shared)
        values = {name: spell(tensor) for name, tensor in inputs.items() if tensor is not None}
        values |= {"d" + name: spell(tensor) for name, tensor in upstream.items()}
        dims = {
            "elementwise": (1, copies),
            "rowwise": (copies, self.width),
            "contraction": (copies, self.width, copies),
            "graph": () if self.unit is None else self.unit.times(copies),
        }[self.kind]
        if self.most_rows:
            dims = _sum_dims(self.kernel, int(shared[ROWS]), self.width)
        return _case(self.kernel, self.dtype, dims, gradient=self.gradient, values=values)

    def contexts(self) -> list[int]:
        """Numbers of copies with which a candidate is tried again: alone, then filling a vector or a tile.

        A library may take another path for one element than for many, so a find may need company to show.
        """
        if self.alone:
            return [1]
        largest = max(gene.size for gene in self.genes)
        return [copies for copies in _COPIES[self.kind] if copies * largest <= LIMIT and self.fits(copies) == copies]


def _case(kernel: Kernel, dtype: str, dims: tuple[int, ...], *, gradient: bool, values: Mapping[str, str]) -> Case:
    fill, upstream = "ones" if values else "normal", "ones" if gradient else ""
    return case_of(kernel, dtype, dims=dims, fill=fill, upstream=upstream, values=dict(values))


def results_with(result: str, kernel: Kernel, dtype: str, device: str, dims: tuple[int, ...]) -> dict[str, Format]:
    """What the kernel returns in a dtype and in which formats, by one plain call that checks its contract."""
    case = _case(kernel, dtype, dims, gradient=bool(kernel.differentiable), values={})
    measured = run_kernel(kernel, case, device)
    if result not in measured.results:
        raise UsageError(f"kernel {kernel.name!r} provides no {result}: autograd has no path to it")
    return {name: of(tensor.dtype) for name, tensor in measured.results.items()}


def searchable(kernel: Kernel, dtype: str, result: str) -> str | None:
    """None when the result can be hunted, else the rule that forbids it."""
    op = kernel.op
    if all(operand.range is not None for operand in op.operands):
        return f"a hunt changes floating-point numbers; all operands of {op.name!r} are whole ones"
    if result in op.integers:
        return f"a hunt drives an error up; {result} of {op.name!r} holds whole numbers, which are right or wrong"
    if named(dtype).bits <= 16 and is_unary(op):
        return f"every {dtype} input of {op.name!r} can be tried: a hunt would prove less than `verify run` does"
    known = [*kernel.outputs, *("d" + operand.name for operand in kernel.differentiable)]
    if result not in known:
        return f"kernel {kernel.name!r} has results {', '.join(known)}; received {result!r}"
    if op.kind == "contraction" and result not in (*op.all_outputs, *summed_results(kernel)):
        return f"a hunt searches sums over rows; {result} of {op.name!r} sums over columns"
    return None


def space_of(
    kernel: Kernel, dtype: str, result: str, device: str, *, width: int = 0, largest: Largest | None = None
) -> SearchSpace:
    """The space of one result; raises UsageError with the rule where there is none.

    Where demanding or extreme inputs have a limit of their own, or none, they are not searched: what is found is judged
    by that of ordinary ones.
    """
    reason = searchable(kernel, dtype, result)
    if reason is not None:
        raise UsageError(reason)
    whole = _space(kernel, dtype, result, device, width, largest)
    magnitudes = of_one_limit(kernel, dtype, result)
    if magnitudes is None:
        return whole
    genes, shared = (tuple(_narrowed(gene, *magnitudes) for gene in some) for some in (whole.genes, whole.shared))
    return replace(whole, genes=genes, shared=shared, magnitudes=magnitudes)


def of_one_limit(kernel: Kernel, dtype: str, result: str) -> tuple[float, float] | None:
    """The least and the largest magnitude, beside 0, whose classes have the limit of ordinary inputs; None for all."""
    limit = kernel.limit(dtype, result)
    if kernel.limit_of(dtype, DEMANDING, result) != limit:
        return ORDINARY_FROM, ORDINARY_TO
    if kernel.limit_of(dtype, EXTREME, result) != limit:
        return DEMANDING_FROM, DEMANDING_TO
    return None


def _narrowed(gene: Gene, least: float, most: float) -> Gene:
    bits = gene.fmt.round(Fraction(least))
    at_least = bits + (gene.fmt.value(bits) < Fraction(least))
    return replace(gene, least=at_least, limit=min(gene.limit, _limit(gene.fmt, most)))


def _space(kernel: Kernel, dtype: str, result: str, device: str, width: int, largest: Largest | None) -> SearchSpace:
    if kernel.op.kind == "graph":
        return _graph_space(kernel, dtype, result, device, width, largest)
    sums = result in summed_results(kernel) and kernel.op.kind != "elementwise"
    width = width or (WIDTH_SUMS if sums else WIDTH_FLOAT64 if dtype == "float64" else WIDTH)
    if sums:
        width = _allowed(kernel, _sum_dims(kernel, PERIOD, width), 1)
    if sums and width * PERIOD > LIMIT:
        most = LIMIT // PERIOD
        raise UsageError(
            f"--width is at most {most:,} for {result}: a case spells out {PERIOD} rows; received {width:,}"
        )
    dims = {"elementwise": (3, 16), "rowwise": (3, width), "contraction": (16, width, 16)}[kernel.op.kind]
    found = results_with(result, kernel, dtype, device, dims)
    if sums:
        most = _MOST_ROWS["cpu" if dtype == "float64" else torch.device(device).type]
        genes = _sum_genes(kernel, dtype, width, found, largest)
        return SearchSpace(kernel, dtype, result, found[result], width, 1, genes, (), largest, most)
    genes, shared, parts = _genes(kernel, dtype, result, width, found, largest)
    return SearchSpace(kernel, dtype, result, found[result], width, parts, genes, shared, largest)


def _graph_space(
    kernel: Kernel, dtype: str, result: str, device: str, width: int, largest: Largest | None
) -> SearchSpace:
    op = kernel.op
    unit = unit_of(kernel, result, width or (WIDTH_FLOAT64 if dtype == "float64" else WIDTH))
    found = results_with(result, kernel, dtype, device, unit.dims)
    genes: list[Gene] = []
    shapes = op.shapes(unit.dims, op.params)
    given: list[tuple[str, str, tuple[int, ...]]]
    given = [(operand.name, operand.role, shapes[operand.name]) for operand in op.operands if operand.range is None]
    if result not in op.all_outputs:
        given += [
            ("d" + name, "upstream", expected_shape(op, unit.dims, op.params, name))
            for name in kernel.outputs
            if name not in op.integers
        ]
    for name, role, shape in given:
        fmt = found[name[1:]] if role == "upstream" else named(dtype)
        size, limit = math.prod(shape), _limit(fmt, up_to(largest, "" if role == "upstream" else name))
        genes.append(Gene(name, fmt, size, role, limit, size > 1, math.prod(shape[:-1]), shape))
    own = tuple(gene for gene in genes if unit.axis is None or gene.name in unit.laid)
    shared = tuple(gene for gene in genes if gene not in own)
    return SearchSpace(kernel, dtype, result, found[result], 0, 1, own, shared, largest, unit=unit)


def _sum_dims(kernel: Kernel, rows: int, width: int) -> tuple[int, ...]:
    return (rows, width) if kernel.op.kind == "rowwise" else (rows, width, WIDTH_SUMS)


def _allowed(kernel: Kernel, dims: tuple[int, ...], axis: int) -> int:
    """The size of one axis, or the nearest to it that the kernel's domain allows."""
    for away in range(LIMIT if kernel.where else 1):
        for size in (dims[axis] + away, dims[axis] - away):
            if size > 0 and kernel.allows((*dims[:axis], size, *dims[axis + 1 :])):
                return size
    return dims[axis]


def _sum_genes(
    kernel: Kernel, dtype: str, width: int, found: Mapping[str, Format], largest: Largest | None
) -> tuple[Gene, ...]:
    op, dims = kernel.op, _sum_dims(kernel, PERIOD, width)
    params: dict[str, Any] = op.resolve(kernel.params)
    shapes = op.shapes(dims, params)
    genes = []
    for operand in op.operands:
        if operand.name not in kernel.absent:
            shape, fmt = shapes[operand.name], named(kernel.operand_dtype(dtype, operand.name))
            lines = math.prod(shape[:-1])
            genes.append(
                Gene(
                    operand.name,
                    fmt,
                    math.prod(shape),
                    operand.role,
                    _limit(fmt, up_to(largest, operand.name)),
                    row=True,
                    lines=lines,
                )
            )
    for output in kernel.outputs:
        size = math.prod(expected_shape(op, dims, params, output))
        limit = _limit(found[output], up_to(largest, ""))
        genes.append(Gene("d" + output, found[output], size, "upstream", limit, row=True, lines=size // PERIOD))
    return tuple(genes)


def _genes(
    kernel: Kernel, dtype: str, result: str, width: int, found: Mapping[str, Format], largest: Largest | None
) -> tuple[tuple[Gene, ...], tuple[Gene, ...], int]:
    op = kernel.op
    params: dict[str, Any] = op.resolve(kernel.params)
    dims = {"elementwise": (1, 1), "rowwise": (1, width), "contraction": (1, width, 1)}[op.kind]
    shapes = op.shapes(dims, params)
    genes, shared = [], []
    for operand in op.operands:
        if operand.name in kernel.absent or operand.range is not None:
            continue
        row = op.kind == "rowwise" or (op.kind == "contraction" and operand.role in ("data", "matrix"))
        size, fmt = math.prod(shapes[operand.name]), named(kernel.operand_dtype(dtype, operand.name))
        gene = Gene(operand.name, fmt, size, operand.role, _limit(fmt, up_to(largest, operand.name)), row)
        if op.kind == "rowwise" and operand.role != "data":
            shared.append(gene)
        else:
            genes.append(gene)
    parts = shapes["weight"][0] if op.kind == "contraction" else 1
    if result not in op.all_outputs:
        size = width if op.kind == "rowwise" else 1
        genes += [
            Gene(
                "d" + output,
                found[output],
                size,
                "upstream",
                _limit(found[output], up_to(largest, "")),
                op.kind == "rowwise",
            )
            for output in kernel.outputs
        ]
    return tuple(genes), tuple(shared), parts


def _limit(fmt: Format, largest: float) -> int:
    """The ordinal of the largest number to try: at most `largest`, at least the smallest positive."""
    if largest >= fmt.max_finite:
        return fmt.max_bits
    bits = fmt.round(Fraction(largest))
    return max(1, bits - (fmt.value(bits) > Fraction(largest)))


def one_of(population: Population, index: int) -> Population:
    """A single candidate of a population."""
    return {name: value[index : index + 1] for name, value in population.items()}


def size_of(population: Population) -> int:
    """How many candidates a population has."""
    return int(next(iter(population.values())).shape[0])


def joined(parts: list[Population]) -> Population:
    """Several populations as one."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
