"""Triton kernels of torchao 0.18 for FP8 and INT8 in blocks.

pip install --no-deps torchao
verify run examples/public/torchao_fp8.py
"""

from __future__ import annotations

import functools

import torch

import verify

torchao = functools.partial(verify.kernel, requires="torchao", gradients=False, layouts="contiguous")
gpu = functools.partial(torchao, backends=["cuda"])
quantiser = functools.partial(gpu, dtypes=["bfloat16", "float32"])
TOKENS = functools.partial(verify.quantised, "e4m3", block=(1, 128), scale="float32", nan="any")
SQUARES = verify.quantised("e4m3", block=(128, 128), scale="float32", nan="any")


@quantiser(quantise=TOKENS())
def act_quant(x):
    """FP8 with a scale for 128 numbers. A block of zeros is 0 / 0."""
    from torchao.kernel.blockwise_quantization import fp8_blockwise_act_quant

    return fp8_blockwise_act_quant(x)


@quantiser(quantise=SQUARES)
def weight_quant(x):
    """FP8 with a scale for 128 x 128 numbers. A block of zeros is 0 / 0."""
    from torchao.kernel.blockwise_quantization import fp8_blockwise_weight_quant

    return fp8_blockwise_weight_quant(x)


@torchao(quantise=TOKENS(least=1e-12), dtypes=["bfloat16", "float32"])
def act_quant_lhs(x):
    """FP8 with a scale for 128 numbers, for training."""
    from torchao.prototype.blockwise_fp8_training.kernels import triton_fp8_blockwise_act_quant_lhs

    return triton_fp8_blockwise_act_quant_lhs(x)


@gpu(
    like=lambda a, b: a @ b.mT,
    shapes={"a": "m k", "b": "n k"},
    operands={"a": TOKENS(), "b": SQUARES},
    dtypes=["bfloat16"],
    accumulate="14 bits, promoted every 128",
)
def fp8_gemm(a_codes, a_scales, b_codes, b_scales):
    """A product of FP8 with scales of blocks, in the default dtype."""
    from torchao.kernel.blockwise_quantization import blockwise_fp8_gemm

    torch.set_default_dtype(torch.bfloat16)
    try:
        return blockwise_fp8_gemm(a_codes, a_scales, b_codes, b_scales)
    finally:
        torch.set_default_dtype(torch.float32)


@torchao(
    like=torch.matmul,
    shapes={"a": "m k", "b": "k n"},
    integers={"a": "-128 <= a <= 127", "b": "-128 <= b <= 127"},
    operand_dtypes={"a": "int8", "b": "int8"},
    dtypes=["float32"],
)
def int8_mm(a, b):
    """A product of INT8 in 32 bits."""
    from torchao.kernel.intmm_triton import int8_mm_kernel_configs, int_matmul_kernel

    c = torch.empty(a.shape[0], b.shape[1], dtype=torch.int32, device=a.device)
    return int_matmul_kernel(a, b, c, int8_mm_kernel_configs[0]).long()
