"""Lists how a kernel may read a quantised operand wrongly, and the codes and scales that it then works with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from verify.truth.codes import CODE_FORMATS, code_format
from verify.truth.quantised.encoding import FLOATS, Encoding
from verify.truth.quantised.operands import tiled

Parts = Mapping[str, Tensor]
Mistake = tuple[str, Parts, Encoding]  # in words, and the parts and the encoding of the numbers that it makes


def misread(encoding: Encoding, parts: Parts) -> Iterator[Mistake]:
    """Yields each mistake that changes something."""
    codes, scales = parts["codes"], parts["scales"]
    if encoding.packed:
        columns = codes.shape[-1] if encoding.is_packed_by_rows else 1  # codes between the two of a byte
        swapped = codes.reshape(*codes.shape[:-2], -1, 2, columns).flip(-2).reshape(codes.shape)
        words = f"the codes of a byte are swapped: they lie {encoding.packed}, the kernel reads them the other way"
        yield words, {**parts, "codes": swapped}, encoding
    if encoding.swizzle:
        line = tiled(scales, math.nan if encoding.scale in FLOATS else 255)
        in_order = line[..., : math.prod(scales.shape[-2:])].reshape(scales.shape)
        words = f"the scales are read in the order of the blocks, they lie in {encoding.swizzle} tiles"
        yield words, {**parts, "scales": in_order}, encoding
    yield from _other_formats(encoding, parts)
    for step in (1, -1):
        if encoding.scale in FLOATS:
            continue
        last = len(code_format(encoding.scale).table) - 1
        words = f"the scale is read off by one code ({step:+d})"
        yield words, {**parts, "scales": (scales + step).clamp(0, last)}, encoding
    if scales.shape[-1] > 1:
        yield "the scale is that of the next block in a row", {**parts, "scales": scales.roll(-1, -1)}, encoding
        yield "the scale is that of the block before in a row", {**parts, "scales": scales.roll(1, -1)}, encoding
        first = scales[..., :1].expand(scales.shape)
        yield "the scale is that of the first block in a row", {**parts, "scales": first}, encoding
    one = (
        torch.ones_like(scales)
        if encoding.scale in FLOATS
        else torch.full_like(scales, code_format(encoding.scale).code_of[1.0])
    )
    yield "the scales are left out", {**parts, "scales": one}, encoding
    if encoding.zero_point:
        yield from _other_zeros(encoding, parts)
    if encoding.second:
        yield "the second scale is left out", {**parts, "second": torch.ones_like(parts["second"])}, encoding


def _other_zeros(encoding: Encoding, parts: Parts) -> Iterator[Mistake]:
    """Yields the mistakes that concern zero points."""
    zeros = parts["zeros"]
    if encoding.zero_point in FLOATS:
        none, middle, steps = (
            torch.zeros_like(zeros),
            torch.full_like(zeros, 2.0 ** (encoding.data.bits - 1)),
            (1.0, -1.0),
        )
    else:
        table = code_format(encoding.zero_point)
        none, steps = torch.full_like(zeros, table.code_of[0.0]), (1, -1)
        middle = torch.full_like(zeros, table.code_of.get(2.0 ** (encoding.data.bits - 1), 0))
    yield "the zero points are left out", {**parts, "zeros": none}, encoding
    if encoding.data.numbers[0] == 0:
        yield "the middle of the codes is taken as the zero point", {**parts, "zeros": middle}, encoding
    for step in steps:
        moved = zeros + step if zeros.is_floating_point() else (zeros + step) % len(table.table)
        yield f"the zero point is off by one ({step:+g})", {**parts, "zeros": moved}, encoding


def _other_formats(encoding: Encoding, parts: Parts) -> Iterator[Mistake]:
    """Yields the readings of codes, and of scales, in other formats of as many bits."""
    for other in CODE_FORMATS.values():
        if other.bits == encoding.data.bits and other.name not in (encoding.data.name, "e8m0"):
            words = f"the codes are read as {other.name}, they are {encoding.data.name}"
            yield words, parts, replace(encoding, data=other)
        if encoding.scale not in FLOATS and other.bits == 8 and other.name not in (encoding.scale, "int8"):
            words = f"the scales are read as {other.name}, they are {encoding.scale}"
            yield words, parts, replace(encoding, scale=other.name)
