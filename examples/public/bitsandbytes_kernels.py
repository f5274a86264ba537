"""Kernels of bitsandbytes for the CPU: tables of 8 and 4 bits, INT8 by rows and in products.

    pip install --no-deps bitsandbytes
    verify run examples/public/bitsandbytes_kernels.py --backend cpu

The package is imported in the functions, so that other kernels run without it. Blocks have 64 numbers.
"""

from __future__ import annotations

import functools

import torch

import verify

BLOCK = 64
#: The numbers of the codes 0 to 15, as the documentation of `get_4bit_type` lists them.
# fmt: off
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]
FP4 = [each / 12 for each in (0, 0.0625, 8, 12, 4, 6, 2, 3, -0.0, -0.0625, -8, -12, -4, -6, -2, -3)]
# fmt: on

theirs = functools.partial(verify.kernel, requires="bitsandbytes", gradients=False)
blocks = functools.partial(theirs, shapes={"codes": f"n {BLOCK}*b", "absmax": "n b"}, dtypes=["float32"])


def scaled(numbers, absmax):
    """Numbers times the largest magnitude of their blocks."""
    return (numbers.unflatten(-1, (-1, BLOCK)) * absmax[..., None]).flatten(-2)


def table_of(numbers, codes, like):
    return torch.tensor(numbers, dtype=like.dtype, device=like.device)[codes]


def packed(codes):
    """Two codes in a byte, the first one in its high half."""
    return (codes[..., ::2] * 16 + codes[..., 1::2]).to(torch.uint8).contiguous()


def ops():
    import bitsandbytes  # noqa: F401

    return torch.ops.bitsandbytes


@blocks(
    like=lambda codes, absmax, table: scaled(table[codes], absmax),
    shapes={"codes": f"n {BLOCK}*b", "absmax": "n b", "table": "256"},
    integers={"codes": "0 <= codes < 256"},
)
def dequantize_blockwise(codes, absmax, table):
    """Codes of 8 bits that index a table."""
    return ops().dequantize_blockwise(codes.to(torch.uint8), absmax.reshape(-1), table, BLOCK, torch.float32)


def four_bits(kind, numbers):
    @blocks(
        like=lambda codes, absmax: scaled(table_of(numbers, codes, absmax), absmax),
        integers={"codes": "0 <= codes < 16"},
        name=f"dequantize_{kind}",
    )
    def dequantise(codes, absmax):
        """Codes of 4 bits, by `dequantize_4bit`."""
        return ops().dequantize_4bit(packed(codes), absmax.reshape(-1), BLOCK, kind, list(codes.shape), torch.float32)

    return dequantise


dequantize_nf4, dequantize_fp4 = four_bits("nf4", NF4), four_bits("fp4", FP4)


@theirs(quantise=verify.quantised("int8", block=(1, 0), scale="float32", nan="any", zero="any"), dtypes=["float16"])
def int8_rows(x):
    """INT8 with a scale for each row, by `int8_vectorwise_quant`, which returns 127 times the scale."""
    codes, stats, _ = ops().int8_vectorwise_quant(x)
    return codes, (stats / 127).reshape(-1, 1)


INTEGERS = {"codes": "-127 <= codes <= 127"}


@theirs(
    like=lambda codes, stats: codes * stats[:, None] / 127,
    shapes={"codes": "n d", "stats": "n"},
    integers=INTEGERS,
    dtypes=["float32"],
)
def int8_vectorwise_dequant(codes, stats):
    """INT8 rows times their largest magnitudes."""
    return ops().int8_vectorwise_dequant(codes.to(torch.int8), stats)


@theirs(
    like=lambda a, b: a @ b.T,
    shapes={"a": "m k", "b": "n k"},
    integers={"a": "-127 <= a <= 127", "b": "-127 <= b <= 127"},
    dtypes=["float32"],
)
def int8_linear_matmul(a, b):
    """The product of INT8 matrices in 32 bits."""
    return ops().int8_linear_matmul(a.to(torch.int8), b.to(torch.int8)).to(torch.int64)


@theirs(
    like=lambda sums, rows, columns: sums * rows[:, None] * columns / 127**2,
    shapes={"sums": "m n", "rows": "m", "columns": "n"},
    integers={"sums": "-1000000 <= sums <= 1000000"},
    dtypes=["float32"],
)
def int8_mm_dequant(sums, rows, columns):
    """32-bit sums times the scales of rows and columns."""
    return ops().int8_mm_dequant(sums.to(torch.int32), rows, columns, dtype=torch.float32)


@theirs(
    like=lambda a, b, rows, columns, bias: (a @ b.T) * rows[:, None] * columns / 127**2 + bias,
    shapes={"a": "m k", "b": "n k", "rows": "m", "columns": "n", "bias": "n"},
    integers={"a": "-127 <= a <= 127", "b": "-127 <= b <= 127"},
    dtypes=["float32"],
)
def int8_scaled_mm(a, b, rows, columns, bias):
    """An INT8 product with its scales and a bias."""
    return ops().int8_scaled_mm(a.to(torch.int8), b.to(torch.int8), rows, columns, bias, torch.float32)
