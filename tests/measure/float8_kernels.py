"""Kernels with float8 operands and results, for tests: casts, elementwise functions, a product, a norm."""

import torch

import verify

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SATURATE = verify.Policy(overflow="saturate")


def _cast(x):
    return x.to(E4M3)


def _declared(name, dtypes, **rest):
    return verify.kernel(name=name, dtypes=dtypes, gradients=False, **rest)


cast = _declared("cast", ["float32", "bfloat16"], like=_cast, output_dtypes={"y": E4M3}, policy=SATURATE)(
    lambda x: torch.nan_to_num(x.float(), nan=float("nan")).clamp(-448, 448).to(E4M3)
)
relu = _declared("relu", ["float8_e4m3fn", "float8_e5m2"], like=lambda x: torch.relu(x))(
    lambda x: torch.relu(x.float()).to(x.dtype)
)
product = _declared("product", ["float8_e5m2"], like=lambda a, b: a * b, output_dtypes={"y": "bfloat16"})(
    lambda a, b: (a.float() * b.float()).bfloat16()
)
silu = _declared("silu", ["float8_e4m3fn"], op="silu")(
    lambda x: torch.nn.functional.silu(x.float()).to(x.dtype) if x.dtype == E4M3 else _refuse(x)
)
truncated = _declared("truncated", ["bfloat16"], like=lambda x: x.to(E5M2), output_dtypes={"y": E5M2})(
    # the upper byte of float16, which drops the last eight bits instead of rounding
    lambda x: (x.half().view(torch.int16) >> 8).to(torch.int8).view(E5M2)
)


def _refuse(x):
    raise TypeError(f"x is float8_e4m3fn; received {x.dtype}")
