"""Kernels of DeepSeek-V3's inference code and of DeepGEMM: quantisers and a product in FP8.

    verify run examples/public/deepseek.py

`deepseek_v3` is the folder `inference` of the repository DeepSeek-V3; `deep_gemm` is DeepGEMM. The files of the kernels
are enough (benchmarks/kernel_files.py).
"""

from __future__ import annotations

import functools

import torch

import verify

v3 = functools.partial(verify.kernel, requires="deepseek_v3", gradients=False, layouts="contiguous")
gemm = functools.partial(verify.kernel, requires="deep_gemm", gradients=False, dtypes=["bfloat16", "float32"])
TOKENS = functools.partial(verify.quantised, "e4m3", block=(1, 128), least=1e-4, nan="any")
FP8, UE8M0 = TOKENS(scale="float32"), TOKENS(scale="float32", rule="rceil")


@v3(quantise=FP8, dtypes=["bfloat16", "float32"])
def act_quant(x):
    """FP8 with a scale for 128 numbers."""
    from deepseek_v3.kernel import act_quant

    return act_quant(x)


@v3(quantise=UE8M0, dtypes=["bfloat16", "float32"])
def act_quant_ue8m0(x):
    """FP8 with scales that are powers of two."""
    from deepseek_v3.kernel import act_quant

    return act_quant(x, scale_fmt="ue8m0")


@v3(
    like=lambda a, b: a @ b.mT,
    shapes={"a": "m k", "b": "n k"},
    operands={"a": FP8, "b": verify.quantised("e4m3", block=(128, 128), scale="float32")},
    dtypes=["bfloat16"],
    accumulate="14 bits, promoted every 128",
)
def fp8_gemm(a_codes, a_scales, b_codes, b_scales):
    """A product of FP8 with scales of blocks, in the default dtype."""
    from deepseek_v3.kernel import fp8_gemm

    torch.set_default_dtype(torch.bfloat16)
    try:
        return fp8_gemm(a_codes, a_scales, b_codes, b_scales)
    finally:
        torch.set_default_dtype(torch.float32)


@gemm(quantise=FP8)
def per_token_cast_to_fp8(x):
    """FP8 with a scale for 128 numbers, in PyTorch."""
    from deep_gemm.utils.math import per_token_cast_to_fp8

    return per_token_cast_to_fp8(x, use_ue8m0=False)


@gemm(quantise=verify.quantised("e2m1", block=(1, 32), scale="float32", least=1e-4, packed="low first", nan="any"))
def per_token_cast_to_fp4(x):
    """FP4 with a scale for 32 numbers. Ties go toward zero."""
    from deep_gemm.utils.math import per_token_cast_to_fp4

    return per_token_cast_to_fp4(x, use_ue8m0=False, gran_k=32)
