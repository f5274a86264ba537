"""Declares a quantised tensor: codes, scales, their layout in memory, and the rule that chooses them.

x[i, j] = (table[code[i, j]] - zero point[block of i, j]) * scale[block of i, j] * second
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from verify.errors import UsageError, from_zero, one_of
from verify.truth.codes import CodeFormat, Ties, code_format

ScaleRule = Literal["floor", "ceil", "rceil", "even", "nearest", "up", "4over6"]
By = Literal["", "division", "reciprocal"]
Overflow = Literal["saturate", "nan", "inf"]
Nan = Literal["kept", "block", "element", "any"]
Zero = Literal["any", "signed", "positive"]
Random = Literal["", "add", "less"]
Packed = Literal[
    "", "low first", "high first", "low first by rows", "high first by rows", "int32", "awq", "gptq", "gptq v2"
]
Swizzle = Literal["", "128x4"]
Second = Literal["", "float32"]
Before = Literal["", "float32", "bfloat16"]
AnyTies = Literal[Ties, "any"]

POWERS: tuple[ScaleRule, ...] = ("floor", "ceil", "rceil", "even")  # rules whose scales are powers of two
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}  # scales that are no codes
TILE = (128, 4)  # rows and columns of scales that lie together, in 512 bytes


class WrongForm(ValueError):
    """Raised if codes or scales do not have the shape or dtype of the declaration."""


@dataclass(frozen=True)
class Packing:
    """Holds how 4-bit codes share an integer. Integers of 32 bits also hold the zero points of eight columns."""

    dtype: torch.dtype
    order: tuple[int, ...]  # the place of each code in the integer, counted from the lowest four bits
    axis: int = -1  # -1: the codes of an integer are neighbours in a row; -2: in a column
    less: int = 0  # subtracted from a zero point before it is stored

    @property
    def is_word(self) -> bool:
        """True if the integers have 32 bits."""
        return len(self.order) == 8

    @property
    def words(self) -> str:
        """The order, as AWQ's documents write it: 0 4 1 5 2 6 3 7."""
        return " ".join(map(str, self.order))

    @property
    def mistaken(self) -> Packing:
        """The packing in another order: the order of the codes, or if this is it, the one that other kernels use."""
        plain = tuple(range(len(self.order)))
        return replace(self, order=plain if self.order != plain else _AWQ if self.is_word else (1, 0))

    def pack(self, codes: Tensor, axis: int) -> Tensor:
        """Returns the integers of codes, which are neighbours along an axis, -1 or -2."""
        places = self._places(axis, codes.device)
        groups: Tensor = torch.unflatten(codes, axis, (-1, len(self.order)))
        return (groups << places).sum(axis).to(self.dtype)

    def unpack(self, held: Tensor, axis: int) -> Tensor:
        """Returns the codes of integers, which are given as int64."""
        return (held.unsqueeze(axis) >> self._places(axis, held.device) & 15).flatten(axis - 1, axis)

    def _places(self, axis: int, device: torch.device) -> Tensor:
        return torch.tensor(self.order, device=device).mul(4).reshape(-1, *[1] * (-1 - axis))


_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
PACKINGS = {
    "low first": Packing(torch.uint8, (0, 1)),
    "high first": Packing(torch.uint8, (1, 0)),
    "low first by rows": Packing(torch.uint8, (0, 1), axis=-2),
    "high first by rows": Packing(torch.uint8, (1, 0), axis=-2),
    "int32": Packing(torch.int32, tuple(range(8))),
    "awq": Packing(torch.int32, _AWQ),
    "gptq": Packing(torch.int32, tuple(range(8)), axis=-2, less=1),
    "gptq v2": Packing(torch.int32, tuple(range(8)), axis=-2),
}


@dataclass(frozen=True)
class Parts:
    """Holds the tensors that a quantiser returns."""

    codes: Tensor
    scales: Tensor
    second: Tensor | None = None
    zeros: Tensor | None = None


@dataclass(frozen=True)
class Encoding:
    """Holds a declaration. The docstring of `quantised` explains each field."""

    data: CodeFormat
    block: tuple[int, int]
    scale: str
    second: Second = ""
    packed: Packed = ""
    swizzle: Swizzle = ""
    rule: ScaleRule = "floor"
    by: By = ""
    least: float = 0.0
    least_scale: float = 0.0
    ties: AnyTies = "even"
    overflow: Overflow = "saturate"
    nan: Nan = "kept"
    zero: Zero = "any"
    before: Before = ""
    zero_point: str = ""
    random: Random = ""
    random_bits: int = 0
    fused: bool = False  # True: the kernel computes the numbers that it quantises, by like=

    # -- shapes -----------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors that a quantiser returns, in order."""
        return ("codes", "scales", *(["zeros"] if self.zero_point else []), *(["second"] if self.second else []))

    def format_of(self, part: str) -> str:
        """Returns the format of a part: that of its codes, or a floating-point format of `FLOATS`."""
        return {"codes": self.data.name, "scales": self.scale, "zeros": self.zero_point, "second": self.second}[part]

    def numbers_of(self, part: str, held: Tensor) -> Tensor:
        """Returns the numbers that a part holds, in float64: as they are, or as codes of a format."""
        kind = self.format_of(part)
        return held.double() if kind in FLOATS else code_format(kind).decode(held)

    def filled(self, part: str, like: Tensor, number: float) -> Tensor:
        """Returns a part with one number everywhere; with the code 0 if its format does not have the number."""
        kind = self.format_of(part)
        return torch.full_like(like, number if kind in FLOATS else code_format(kind).code_of.get(number, 0))

    @property
    def span(self) -> float:
        """The amax of a block with the scale 1, or its range if it has a zero point."""
        return self.data.largest - (self.data.numbers[0] if self.zero_point else 0.0)

    @property
    def packing(self) -> Packing | None:
        """How codes share an integer; None if each has its own."""
        return PACKINGS.get(self.packed)

    @property
    def packs_zeros(self) -> bool:
        """True if zero points share an integer as codes do."""
        return bool(self.zero_point) and self.packing is not None and self.packing.is_word

    @property
    def packs(self) -> tuple[int, int]:
        """The number of rows, and of columns, that share an integer."""
        count, axis = (len(self.packing.order), self.packing.axis) if self.packing else (1, 0)
        return count if axis == -2 else 1, count if axis == -1 or self.packs_zeros else 1

    @property
    def words(self) -> str:
        """The declaration in words.

        For example: `e2m1 in blocks of 1 x 16, scales e4m3fn (nearest), one more in float32; codes packed low first`.
        """
        sizes = " x ".join(str(size) if size else "all" for size in self.block)
        parts = [f"{self.data.name} in blocks of {sizes}, scales {self.scale} ({self.rule})"]
        parts[0] += f", zero points {self.zero_point}" if self.zero_point else ""
        parts[0] += f", one more in {self.second}" if self.second else ""
        parts += [f"elements rounded by {self.random_bits} random bits ({self.random})"] if self.random else []
        parts += [f"codes packed {self.packed}"] if self.packed else []
        parts += [f"scales in {self.swizzle} tiles"] if self.swizzle else []
        return "; ".join(parts)

    @property
    def declaration(self) -> str:
        """The call of `verify.quantised` that makes this declaration."""
        named = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        rest = [
            f"{name}={value!r}"
            for name, (value, default) in named.items()
            if name in ("block", "scale", "rule") or (value != default and name not in ("data", "fused"))
        ]
        return f"verify.quantised({', '.join([repr(self.data.name), *rest])})"

    def block_in(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Returns the rows and columns of a block of a tensor with this shape, at least one: there may be none."""
        return self.block[0] or max(shape[0], 1), self.block[1] or max(shape[1], 1)

    def grid(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Counts the blocks of a tensor along rows and along columns."""
        rows, columns = self.block_in(shape)
        return -(-shape[0] // rows), -(-shape[1] // columns)

    def shapes(self, shape: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        """Maps each part to its shape, for data of this shape."""
        grid = self.grid(shape)
        tiles = tuple(-(-size // tile) for size, tile in zip(grid, TILE, strict=True))
        scales = (math.prod(tiles) * math.prod(TILE),) if self.swizzle else grid
        rows, columns = self.packs
        codes = (shape[0] // rows, shape[1] // (columns if rows == 1 else 1))
        zeros = (grid[0], grid[1] // columns) if self.packs_zeros else grid
        return {"codes": codes, "scales": scales, "zeros": zeros, "second": (1,)}

    # -- reading ----------------------------------------------------------------------------------

    def demand_form(self, parts: Parts, shape: tuple[int, int]) -> None:
        """Raises WrongForm unless each part has its shape and a dtype that can hold it."""
        words = {"codes": self.packing.dtype.itemsize if self.packing else 1, "zeros": 4 if self.packs_zeros else 1}
        for name, wanted in self.shapes(shape).items():
            part = getattr(parts, name)
            if name not in self.names:
                continue
            kind = self.format_of(name)
            is_flat = name == "second" or (name == "scales" and self.swizzle)
            if part is None or (math.prod(part.shape) != math.prod(wanted) if is_flat else tuple(part.shape) != wanted):
                given = "nothing" if part is None else str(tuple(part.shape))
                raise WrongForm(f"{name} has the shape {wanted} for data of {shape} ({self.words}); received {given}")
            size = words.get(name, 1)
            if FLOATS.get(kind, part.dtype) != part.dtype or (kind not in FLOATS and part.element_size() != size):
                wanted_dtype = kind if kind in FLOATS else f"{'int32' if size == 4 else 'one byte each'} ({kind})"
                raise WrongForm(f"{name} is {wanted_dtype}; received {part.dtype}")

    def codes_of(self, parts: Parts) -> Tensor:
        """Returns the codes as int64, one in each element."""
        held = _integers(parts.codes)
        if self.packing:
            held = self.packing.unpack(held, self.packing.axis)
        return held & ((1 << self.data.bits) - 1)

    def scales_of(self, parts: Parts, shape: tuple[int, int]) -> Tensor:
        """Returns the scales as float64, in the order of the blocks."""
        held, (rows, columns) = parts.scales, self.grid(shape)
        values = self.numbers_of("scales", held if self.scale in FLOATS else _integers(held))
        if self.swizzle:
            high, wide = -(-rows // TILE[0]), -(-columns // TILE[1])
            tiles = values.reshape(high, wide, 32, 4, 4).transpose(2, 3).reshape(high, wide, *TILE)
            values = tiles.transpose(1, 2).reshape(high * TILE[0], wide * TILE[1])[:rows, :columns]
        return values.reshape(rows, columns)

    def zeros_of(self, parts: Parts) -> Tensor:
        """Returns the zero points as float64; 0 if there are none."""
        held = parts.zeros if self.zero_point else None
        if held is None:
            return torch.zeros((), dtype=torch.float64, device=parts.codes.device)
        if self.zero_point in FLOATS:
            return held.double()
        codes, table = _integers(held), code_format(self.zero_point)
        if self.packing and self.packs_zeros:
            codes = self.packing.unpack(codes, -1) + self.packing.less
        return table.decode(codes & len(table.table) - 1)

    def second_of(self, parts: Parts) -> Tensor:
        """Returns the scale of the whole tensor as float64; 1 if there is none."""
        held = parts.second if self.second else None
        one = torch.ones((), dtype=torch.float64, device=parts.codes.device)
        return one if held is None else held.double().reshape(())

    def decode(self, parts: Parts, shape: tuple[int, int]) -> Tensor:
        """Returns the numbers that the parts encode, as float64."""
        self.demand_form(parts, shape)
        scales = self.scales_of(parts, shape) * self.second_of(parts)
        zeros = self.zeros_of(parts).expand(scales.shape)
        numbers = self.data.decode(self.codes_of(parts)) - self.spread(zeros, shape)
        return numbers * self.spread(scales, shape)

    def spread(self, scales: Tensor, shape: tuple[int, int]) -> Tensor:
        """Repeats the scale of each block for each of its elements."""
        (rows, columns), (high, wide) = self.block_in(shape), self.grid(shape)
        lead = scales.shape[:-2]
        whole = scales[..., :, None, :, None].expand(*lead, high, rows, wide, columns)
        whole = whole.reshape(*lead, high * rows, wide * columns)
        return whole[..., : shape[0], : shape[1]]


def _integers(part: Tensor) -> Tensor:
    """Returns the bytes, or the integers of 32 bits, of a tensor as int64."""
    return part.long() if part.element_size() == 4 else part.contiguous().view(torch.uint8).long()


def quantised(
    data: str,
    *,
    block: tuple[int, int],
    scale: str,
    second: Second = "",
    packed: Packed = "",
    swizzle: Swizzle = "",
    rule: ScaleRule | None = None,
    by: By = "",
    least: float = 0.0,
    least_scale: float = 0.0,
    ties: AnyTies = "even",
    overflow: Overflow = "saturate",
    nan: Nan = "kept",
    zero: Zero = "any",
    before: Before = "",
    zero_point: str = "",
    random: Random = "",
    random_bits: int = 0,
) -> Encoding:
    """Returns the declaration of a quantised tensor of rows and columns.

    Raises UsageError if a value is unknown or two of them contradict each other.

    Args:
        data: The format of the codes, such as "e4m3", "e2m1" or "int8".
        block: The number of rows and of columns that share a scale; 0 means all.
        scale: The format of the scales: "e8m0", "e4m3", "float32" and others.
        second: "float32" if a second scale multiplies the whole tensor. The quantiser returns it as a third tensor.
        packed: Two 4-bit codes share a byte. The first is in the low half ("low first") or in the high half. They are
            neighbours in a row, or in a column ("low first by rows"). Or eight share an int32, and so do the zero
            points of eight columns: in a row with the first in the lowest bits ("int32"), in AWQ's order 0 4 1 5 2 6 3
            7 ("awq"), or in a column ("gptq v2"). "gptq" stores each zero point less one.
        swizzle: "128x4" if the scales are stored in tiles of 128 x 4, as tensor cores read them.
        rule: How amax, the largest magnitude of a block, gives the scale. "floor", "ceil" and "even" give
            2^(exponent of amax - exponent of the largest number). They first round amax down to a power of two, up to
            one, or to the mantissa of the data. "rceil" rounds amax / largest up to a power of two. "nearest" and "up"
            round amax / largest to the format of the scale. "4over6" also allows 1.5 times that scale in each block,
            so that amax becomes 4 in e2m1; with a second scale, the largest scale is 448 or 256. Default: "floor" for
            e8m0, else "nearest".
        by: How amax / largest is computed in float32: by "division", or by "reciprocal", times a rounded 1 / largest.
            "": both are right. A scale that only one of them gives is then right under another scale.
        least: The least amax; smaller ones count as this.
        least_scale: The least scale; smaller ones count as this.
        ties: Where an element halfway between two codes goes: "even", "up", "away", "to zero", or "any". "truncate"
            rounds every element toward zero, and "outward" away from zero.
        overflow: The result of an element beyond the largest number: "saturate", "nan" or "inf".
        nan: With "kept", NaN in x must give NaN, and the rest of its block is free. With "element", the rest of the
            block is judged as usual. With "block", the whole block must be NaN. With "any", the block is not judged.
        zero: The sign of a zero: "any", "signed" (the sign of x) or "positive".
        before: The format in which a fused kernel holds the numbers before it quantises them: "float32" or "bfloat16".
            "": both are right.
        zero_point: The format of zero points, such as "uint4" or "int8". Each block has one, and a number is
            (code - zero point) * scale. The scale follows from the range of the block with 0. The zero point is the
            code of 0. In "float32", "float16" and "bfloat16" it is not rounded to an integer, and is added to x / scale
            before that is rounded.
        random: How a quantiser rounds elements by random bits, which it receives as a second operand `bits`. An element
            is the fraction f of the way from the code toward zero to the next one. It becomes the next one for "add" if
            floor(f 2^n) + bits >= 2^n, as hardware does, and for "less" if bits < f 2^n.
        random_bits: The number n of these bits, up to 32.
    """
    table = code_format(data)
    if scale not in FLOATS:
        code_format(scale)
        scale = code_format(scale).name
    rule = ("floor" if scale == "e8m0" else "nearest") if rule is None else rule
    zero_point = code_format(zero_point).name if zero_point and zero_point not in FLOATS else zero_point
    made = Encoding(
        table, block, scale, second, packed, swizzle, rule, by, least, least_scale, ties, overflow, nan, zero, before,
        zero_point, random, random_bits
    )  # fmt: skip
    for name, hint in get_type_hints(Encoding).items():
        if get_origin(hint) is Literal:
            one_of("quantised", name, getattr(made, name), get_args(hint))
    for name, number in {"least": least, "least_scale": least_scale}.items():
        from_zero("quantised", name, number)
    if overflow != "saturate" and not (table.nan_codes if overflow == "nan" else table.inf_codes):
        raise UsageError(
            f"quantised: overflow={overflow!r} needs a code for it, and {table.name} has none",
            hint='overflow="saturate"',
        )
    if zero_point and (any(not number.is_integer() for number in table.numbers) or rule in POWERS):
        raise UsageError(
            f"quantised: zero points belong to integers with scales by the rules nearest and up; received {table.name} "
            f"by the rule {rule}",
            hint='quantised("uint4", block=(1, 32), scale="float16", zero_point="uint4")',
        )
    if not isinstance(random_bits, int) or bool(random) != (0 < random_bits <= 32):
        raise UsageError(
            "quantised: random= and random_bits= from 1 to 32 belong together; "
            f"received {random!r} and {random_bits!r}",
            hint='random="add", random_bits=16',
        )
    if not (isinstance(block, tuple) and len(block) == 2 and all(type(size) is int and size >= 0 for size in block)):
        raise UsageError(f"quantised: block is (rows, columns); received {block!r}", hint="block=(1, 32); 0 means all")
    if rule not in POWERS and scale == "e8m0":
        raise UsageError(
            f"quantised: e8m0 holds powers of two, by the rules {', '.join(POWERS)}; received {rule!r}",
            hint='rule="rceil" rounds amax / largest up to a power of two',
        )
    if rule == "4over6" and (table.name, scale) != ("e2m1", "e4m3fn"):
        raise UsageError(
            f"quantised: the rule 4over6 is about codes in e2m1 with scales in e4m3; received {table.name} and {scale}",
            hint='quantised("e2m1", block=(1, 16), scale="e4m3", second="float32", rule="4over6")',
        )
    if packed and table.bits != 4:
        raise UsageError(f"quantised: packed is about codes of 4 bits; {table.name} has {table.bits}", hint='packed=""')
    if made.packs_zeros and (block[1] != 1 or zero_point in FLOATS or code_format(zero_point).bits != 4):
        raise UsageError(
            f"quantised: packed={packed!r} packs zero points of 4 bits, one for each column; received "
            f"zero_point={zero_point!r} and block={block!r}",
            hint=f'quantised("uint4", block=(128, 1), scale="float16", zero_point="uint4", packed={packed!r})',
        )
    return made
