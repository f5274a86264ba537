"""Makes quantised operands: quantises numbers, decodes them, and lays codes and scales out as kernels read them.

    parts = drawn(encoding, x)                  # {"codes": ..., "scales": ...}: one element for each code and scale
    meant(encoding, parts)                      # the numbers for which they stand, exactly, by steps that like= traces
    laid(encoding, "codes", parts["codes"])     # what a kernel receives: packed, in tiles

An operand has any number of dimensions. The last two are rows and columns, and each matrix is quantised by itself.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from verify.truth.codes import code_format
from verify.truth.quantised.blocks import in_blocks
from verify.truth.quantised.encoding import FLOATS, TILE, Encoding
from verify.truth.quantised.rules import place, reach, reach_of_second, reach_of_zero

Shape = tuple[int, ...]
_OWN = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e4m3fnuz": torch.float8_e4m3fnuz,
        "e5m2fnuz": torch.float8_e5m2fnuz, "int8": torch.int8}  # fmt: skip


def shapes_of(encoding: Encoding, tokens: tuple[str, ...]) -> dict[str, str]:
    """Maps each part to its shape in named dimensions. `tokens` is the shape of the operand."""
    lead, matrix = tokens[:-2], ("1", *tokens)[-2:]
    grid = [
        "1" if not size else token if size == 1 else f"({token}+{size - 1})//{size}"
        for token, size in zip(matrix, encoding.block, strict=True)
    ]
    found = {"codes": tokens, "scales": (*lead, *grid), "zeros": (*lead, *grid), "second": (*lead, "1")}
    return {name: " ".join(found[name]) for name in encoding.names}


def dtype_of(encoding: Encoding, part: str) -> str:
    """Returns the floating-point dtype of a part; "" if the part holds codes."""
    kind = encoding.format_of(part)
    return kind if kind in FLOATS else ""


# -- drawing ----------------------------------------------------------------------------------------------


def drawn(encoding: Encoding, x: Tensor) -> dict[str, Tensor]:
    """Quantises numbers by the rule of the encoding and returns the parts.

    Codes are int64, also those of scales and zero points. Floating-point scales and zero points are float64. A number
    that is not finite becomes NaN if the format has NaN, else 0.
    """
    wide = x.double()
    matrices = wide.reshape(-1, *(1, *wide.shape)[-2:])
    made, lead = [_quantised_matrix(encoding, each) for each in matrices], tuple(wide.shape[:-2])
    grid = encoding.grid((matrices.shape[1], matrices.shape[2]))
    forms = {"codes": tuple(wide.shape), "scales": (*lead, *grid), "zeros": (*lead, *grid), "second": (*lead, 1)}
    return {name: torch.stack([each[name] for each in made]).reshape(forms[name]) for name in encoding.names}


def _quantised_matrix(encoding: Encoding, x: Tensor) -> dict[str, Tensor]:
    """Quantises one matrix as `drawn` does. Its parts have no leading dimensions."""
    shape = (x.shape[0], x.shape[1])
    known = torch.isfinite(x)
    finite = torch.where(known, x, 0.0)
    lowest, least = -encoding.data.numbers[0], -_block_maxima(encoding, -finite).clamp(min=0)
    amax = _block_maxima(encoding, finite if encoding.zero_point else finite.abs()).clamp(min=0)
    if encoding.zero_point:
        amax = amax - least
    elif lowest > encoding.data.largest:  # int8 and int4: every other block reaches the lowest code too
        odd = torch.arange(amax.numel()).reshape(amax.shape) % 2 == 1
        amax = torch.where(odd, amax * (encoding.data.largest / lowest), amax)
    second = torch.ones((), dtype=torch.float64)
    if encoding.second and float(amax.max()):
        second = reach_of_second(encoding, amax.max(), amax.max()).nominal
    scale = reach(encoding, amax, amax, second).nominal
    whole = encoding.spread(scale, shape) * second
    quotient = torch.where(whole > 0, finite / whole, 0.0)
    zeros = reach_of_zero(encoding, least, least, scale).nominal if encoding.zero_point else None
    if zeros is not None and encoding.packing:
        zeros = zeros.clamp(min=encoding.packing.less)  # a zero point of 0 less one is not a code
    shift = None if zeros is None else encoding.spread(zeros, shape)
    at = place(encoding, quotient, shift)
    codes = torch.tensor([encoding.data.code_of[number] for number in encoding.data.numbers])[at]
    if encoding.data.negative_zero is not None:
        codes = torch.where((encoding.data.tensor("numbers")[at] == 0) & (x < 0), encoding.data.negative_zero, codes)
    codes = torch.where(known, codes, (*encoding.data.nan_codes, encoding.data.code_of.get(0.0, 0))[0])
    found = {"codes": codes, "scales": _as_codes(encoding.scale, scale), "second": second.reshape(1)}
    return found if zeros is None else {**found, "zeros": _as_codes(encoding.zero_point, zeros)}


def _block_maxima(encoding: Encoding, values: Tensor) -> Tensor:
    """Returns the largest number of each block. The padding at an edge is 0."""
    grid = encoding.grid((values.shape[0], values.shape[1]))
    return in_blocks(values, encoding, 0.0).amax(1).reshape(grid)


def _as_codes(format: str, values: Tensor) -> Tensor:
    """Returns the codes of numbers in a format. For a floating-point format returns the numbers themselves."""
    if format in FLOATS:
        return values
    table = code_format(format)
    codes = torch.tensor([table.code_of[number] for number in table.numbers])
    return codes[torch.searchsorted(table.tensor("numbers"), values)]


# -- meaning ----------------------------------------------------------------------------------------------


def meant(encoding: Encoding, parts: Mapping[str, Tensor]) -> Tensor:
    """Returns the numbers for which the parts stand, as float64."""
    codes = parts["codes"]
    rows, columns = ("1", *codes.shape)[-2:]

    def of_blocks(part: str) -> Tensor:
        values = encoding.spread(encoding.numbers_of(part, parts[part]), (int(rows), int(columns)))
        return values.reshape(codes.shape)

    whole = of_blocks("scales")
    numbers = encoding.numbers_of("codes", codes)
    if encoding.zero_point:
        numbers = numbers - of_blocks("zeros")
    numbers = numbers * whole
    if not encoding.second:
        return numbers
    return numbers * parts["second"].double().unsqueeze(-1).reshape(*codes.shape[:-2], 1, 1)


# -- layout -----------------------------------------------------------------------------------------------


def laid(encoding: Encoding, part: str, values: Tensor) -> Tensor:
    """Returns a part as a kernel receives it: in its dtype, packed, in tiles. Tiles are padded with NaN.

    A kernel that uses the padding then returns NaN.
    """
    if part == "codes" and encoding.packing:
        return encoding.packing.pack(values, encoding.packing.axis)
    if part == "zeros" and encoding.packing and encoding.packs_zeros:
        return encoding.packing.pack(values - encoding.packing.less, -1)
    if part == "scales" and encoding.swizzle:
        values = tiled(values, math.nan if encoding.scale in FLOATS else 255)
    if values.is_floating_point():
        return values
    # PyTorch's dtype of the format, uint8 if it has none; int4 becomes int8
    format = encoding.format_of(part)
    if format == "int4":
        return (values - 16 * (values >= 8)).to(torch.int8)
    return values.to(torch.uint8).view(_OWN.get(format, torch.uint8))


def tiled(scales: Tensor, padding: float) -> Tensor:
    """Returns the scales of each matrix as one vector, in tiles of 128 x 4. `padding` fills incomplete tiles."""
    rows, columns = scales.shape[-2:]
    high, wide = -(-rows // TILE[0]), -(-columns // TILE[1])
    full = torch.nn.functional.pad(scales, (0, wide * TILE[1] - columns, 0, high * TILE[0] - rows), value=padding)
    tiles = full.reshape(*scales.shape[:-2], high, 4, 32, wide, 4).movedim(-2, -4).transpose(-2, -3)
    return tiles.reshape(*scales.shape[:-2], -1).contiguous()
