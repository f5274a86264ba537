"""RMS norm in Triton, forward and backward: layer norm's kernels without a mean, with one rounding per output.

>>> y = rms_norm(x, weight, eps=1e-6)
>>> y, s = rms_norm_residual(x, residual, weight)  # s = x + residual
>>> y = rms_norm_gated(x, gate, weight)  # times silu(gate)
>>> codes, scales = rms_norm_fp8(x, weight, group=128)  # e4m3; a scale for 128 columns
>>> codes, scales, s = rms_norm_fp8(x, weight, residual)  # a scale for each row

Each row v of N numbers gives

    rstd = 1 / sqrt(sum(v^2) / N + eps)         xhat = v rstd         y = xhat weight

v is x, or the sum s *before* it is rounded to the residual's dtype. For upstream gradients dy (of y) and ds (of s),
with g = dy weight and c2 = sum(g xhat) / N, a row gives

    dx = dresidual = rstd (g - xhat c2) + ds                dweight = sum over rows of dy xhat

With a gate z, u = dy silu(z) takes the place of dy, and dz = dy xhat weight silu'(z).

The kernels of layer_norm/ are compiled with CENTRE = 0. Its modules explain the paths, hard rows, column sums,
orders of sums and layouts; rows.py has the gate and FP8. Rounding points, in ULP of |weight xhat|, of
rstd (|g| + |xhat| mean|g xhat|) and of sum|dy xhat|:

- A sum of squares has only positive terms and is a float64 sum. It is off by less than N 2^-53 of itself, rstd by half
  of that. No row is hard because of its mean. 16-bit sums that leave float32 are computed in float64 pairs.
- FAST (16 bits): v up is exact, because `up` is a power of two. rstd, the product with it and the product with weight
  round to 24 bits: at worst 0.5 + 2^-11.4 for float16, 2^-14.4 for bfloat16. A residual adds one rounding of v to 24
  bits. backward.py has the backward pass.
- EXACT (float32 rows): float64 throughout, one rounding at the output. PAIRED: backward_paired.py, without C.
- WIDE (float64): the squares are added with an error-free cut, and rows are scaled by a power of two. Then v up rstd
  weight has three roundings, rstd two: below 4.

Layouts: results have the bits that contiguous operands give (layer_norm/launch.py). Derivatives of any order.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from .checks import Contract, check_contract
from .layer_norm import check_rows, checks
from .layer_norm.launch import launch_forward, new_fp8
from .layer_norm.operators import Maybe, forward_op
from .operators import operator

__all__ = ["rms_norm", "rms_norm_fp8", "rms_norm_gated", "rms_norm_residual"]

GROUPS = (16, 32, 64, 128, 256)  # columns that may share a scale
Convention = Literal["llama", "gemma", "olmo"]
_FORMS = {
    ("once", "llama"): "once", ("once", "olmo"): "once", ("once", "gemma"): "once gemma",
    ("model", "llama"): "model llama", ("model", "olmo"): "model", ("model", "gemma"): "model gemma",
}  # fmt: skip
_CHECK = {name: checks(name) for name in __all__}


def _form(name: str, contract: str, convention: str) -> str:
    """Returns the form of layer_norm.launch._roundings. Raises ValueError for an unknown contract or convention."""
    form = _FORMS.get((contract, convention))
    if form is None:
        check_contract(name, contract)
        raise ValueError(
            f'{name}: convention must be "llama", "gemma" (xhat (1 + weight)) or "olmo" (as torch.nn.RMSNorm); '
            f"got {convention!r}"
        )
    return form


def rms_norm(
    x: Tensor, weight: Maybe = None, *, eps: float = 1e-6, contract: Contract = "once",
    convention: Convention = "llama",
) -> Tensor:  # fmt: skip
    """Returns the RMS norm of x over its last dimension, in x's dtype; weight has any dtype.

    Args:
        contract: "model": the bits of the eager layer in 16 bits, which the convention names
        convention: y is R(R(xhat) weight) ("llama"), R(xhat (1 + weight)) ("gemma") or R(xhat weight) ("olmo", and
            torch.nn.RMSNorm); "once" leaves out the inner R
    """
    form = _form("rms_norm", contract, convention)
    return forward_op.checked(_CHECK["rms_norm"], x, None, None, weight, None, eps, False, None, form)[0]


def rms_norm_residual(
    x: Tensor, residual: Tensor, weight: Maybe = None, *, eps: float = 1e-6, contract: Contract = "once",
    convention: Convention = "llama",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns y and s: s = x + residual in the residual's dtype, y the RMS norm of the unrounded sum.

    contract="model": the norm of s, the rounded sum.
    """
    check, form = _CHECK["rms_norm_residual"], _form("rms_norm_residual", contract, convention)
    return forward_op.checked(check, x, residual, None, weight, None, eps, False, None, form)[:2]


def rms_norm_gated(
    x: Tensor, gate: Tensor, weight: Maybe = None, *, eps: float = 1e-6, contract: Contract = "once",
    convention: Convention = "llama",
) -> Tensor:  # fmt: skip
    """Returns the RMS norm of x times silu(gate) with one rounding, in the dtype of x and gate.

    It takes 16 bits and float32, and rows of up to 16,384 columns. contract="model" rounds the norm, then its product
    with silu(gate), which stays float32, as Qwen3-Next does.
    """
    check, form = _CHECK["rms_norm_gated"], _form("rms_norm_gated", contract, convention)
    return forward_op.checked(check, x, None, None, weight, None, eps, False, gate, form)[0]


# --- FP8: rows.py, forward only ---


@operator("verify_kernels::rms_norm_fp8")
def fp8_op(
    x: Tensor, residual: Maybe, weight: Maybe, eps: float, group: int, form: str = "once"
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns codes, s and scales; s is None without a residual."""
    if x.numel() == 0:
        return new_fp8(x, residual, group)
    return launch_forward(x, residual, None, weight, None, eps, False, None, group, form)


fp8_op.register_fake(lambda x, residual, weight, eps, group, form="once": new_fp8(x, residual, group))


def _check_fp8(x: Tensor, residual: Maybe, weight: Maybe, eps: float, group: int, form: str) -> None:
    _CHECK["rms_norm_fp8"](x, residual, None, weight, None, eps, False, None, form)
    check_rows("rms_norm_fp8", x, residual, weight)
    if group and (group not in GROUPS or x.shape[-1] % group):
        raise ValueError(
            f"rms_norm_fp8: group is one of {', '.join(map(str, GROUPS))} and divides x's last dimension, or is None "
            f"for one scale a row; group is {group!r}, the dimension {x.shape[-1]}"
        )


def rms_norm_fp8(
    x: Tensor, weight: Maybe = None, residual: Maybe = None, *, group: int | None = None, eps: float = 1e-6,
    contract: Contract = "once", convention: Convention = "llama",
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the RMS norm of x, or of x + residual, as codes of e4m3 and float32 scales, and s if there is a residual.

    Each number is code * scale. Nothing is rounded to 16 bits before it is quantised, except with contract="model".
    There are no gradients.

    Args:
        group: columns that share a scale; None: the whole row
    """
    form = _form("rms_norm_fp8", contract, convention)
    codes, s, scales = fp8_op.checked(_check_fp8, x, residual, weight, eps, group or 0, form)
    return (codes, scales) if residual is None else (codes, scales, s)
