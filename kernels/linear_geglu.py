"""A linear layer to 2 d features and GEGLU in one kernel: p1 * gelu(p2), rounded once.

    linear_geglu(x, weight, bias)     p = x @ weight.T + bias;  p[..., :d] * gelu(p[..., d:])

Mathematics (x: [..., K], W: [2d, K], b: [2d], y: [..., d]), with p = x @ W^T + b and its halves p1, p2:

    y = p1 gelu(p2)        dp1 = dy gelu(p2)        dp2 = dy p1 gelu'(p2)
    gelu(a) = a Phi(a) ("none") or a sigmoid(2 sqrt(2/pi) (a + 0.044715 a^3)) ("tanh")

Rounding points. Products are exact (16 bits) or fused (float32, float64). A sum is one chain in the order of k, float32
(float64 for float64), and does not depend on the tile shape, the strides or the number of rows. A tile holds the same
columns of both halves. So bias, gelu and the product are applied to the unrounded sums, and y is rounded once. float32
is IEEE float32 throughout; with `allow_tf32=True` the matrix units drop 13 bits of x and W. In bfloat16 gelu(p2) and
gelu'(p2) reach down to 2^-252, far below float32, because a large factor can bring the product back into range.

Launches. On Hopper, hopper_product.py computes 16-bit products. The second 128 rows of B's tile are the same features
of the second half, and 32 rows of tiles stay together, which is faster than 8. At M, K, 2d = 8192, 4096, 22016 the
forward pass takes 0.998 (bfloat16) and 0.989 (float16) of the time of cuBLAS's bare product on an H200.

Backward. One kernel writes dp1 and dp2 into one packed [M, 2d] tensor and sums its columns (db). dx = dp @ W is a
product of its own. So is dW = dp^T @ x, a sum over rows in two or three levels (linear_weight.py). p is stored, or
computed again with recompute=True. Every sum has a fixed order, so a dy that is not contiguous or starts off a multiple
of 16 bytes is copied first.
"""

from __future__ import annotations

from torch import Tensor

from .checks import MODEL, Contract, check_approximate, under
from .linear_act import _linear
from .linear_layers import autocast, check_layer, check_operands, wants_gradient


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, save_pre: bool, allow_tf32: bool) -> None:
    check_approximate("linear_geglu", activation.removeprefix(MODEL).removeprefix("geglu_"))
    check_operands("linear_geglu", "x", x, (("weight", weight), ("bias", bias)))
    if weight.dim() == 2 and weight.shape[0] % 2:
        n = weight.shape[0]
        raise ValueError(f"linear_geglu: weight must have an even number of output features, two halves, got {n}")
    check_layer("linear_geglu", x, weight, bias)


def linear_geglu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    recompute: bool = False,
    allow_tf32: bool = False,
    contract: Contract = "once",
) -> Tensor:
    """Returns p1 * gelu(p2), rounded once, with p = x @ weight.T + bias and its halves p1, p2.

    x: [..., K] and weight: [2d, K] may have any strides. The result is [..., d]. If a gradient is needed, p is stored,
    rounded to x's dtype. recompute=True stores nothing and computes p again. contract="model" rounds p and gelu(p2)
    too, as p1 * torch.nn.functional.gelu(p2) does.
    """
    how = under(contract, "linear_geglu", f"geglu_{approximate}")
    x, weight, bias = autocast(x, weight, bias)
    save = not recompute and wants_gradient(x, weight, bias)
    return _linear.checked(_check, x, weight, bias, how, save, allow_tf32)[0]
