"""Twins of examples/structured.py with one defect each, and kernels that take their operands in other ways."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

import verify
from examples.structured import BACK, BACKWARD, GATED, PERMUTED, ROUNDED, VARLEN, gradients, scores


@verify.kernel(**{**VARLEN, "gradients": False})
def leaks_into_the_next(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor) -> Tensor:
    """The second sequence sees the last key of the first."""
    parts = []
    for a, b in pairwise(offsets.tolist()):
        first = max(a - 1, 0)
        keys = (x[None, first:b] for x in (k, v))
        parts.append(functional.scaled_dot_product_attention(q[None, a:b], *keys)[0])
    return torch.cat(parts)


@verify.kernel(**BACKWARD)
def without_delta(q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor) -> tuple[Tensor, ...]:
    """The backward pass forgets the sum of do times o."""
    found = gradients(*(x.float() for x in (q, k, v, 0 * o, lse, do)))
    return tuple(x.bfloat16() for x in found)


@verify.kernel(**ROUNDED)
def truncates(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The probabilities are cut to bfloat16."""
    p = scores(q, k).softmax(-1)
    return (p.view(torch.int32) & -65536).view(torch.float32) @ v


@verify.kernel(**ROUNDED)
def rounds_nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The probabilities stay float32, which is another function than the declared one."""
    return scores(q, k).softmax(-1) @ v


@verify.kernel(**{**ROUNDED, "like": lambda q, k, v: scores(q, k).softmax(-1) @ v})
def rounds_undeclared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The probabilities are rounded, and the definition does not say so."""
    return scores(q, k).softmax(-1).bfloat16().float() @ v


def norm_gradients(x: Tensor, mean: Tensor, rstd: Tensor, dy: Tensor) -> Tensor:
    n = (x - mean[:, None]) * rstd[:, None]
    return (dy - dy.mean(-1, keepdim=True) - n * (dy * n).mean(-1, keepdim=True)) * rstd[:, None]


@verify.kernel(
    like=norm_gradients,
    shapes={"x": "n d", "mean": "n", "rstd": "n", "dy": "n d"},
    derive={"mean": lambda x: x.mean(-1), "rstd": lambda x: (x.var(-1, correction=0) + 1e-5).rsqrt()},
    outputs=["dx"],
    output_dtypes={"dx": "float32"},
    dtypes=["float32"],
    gradients=False,
)
def norm_backward(x: Tensor, mean: Tensor, rstd: Tensor, dy: Tensor) -> Tensor:
    return norm_gradients(x, mean, rstd, dy)


@verify.kernel(
    like=lambda x, weights, table: sum(x @ w for w in weights)[table],
    shapes={"x": "n d", "weights": ["d e", "d e"], "table": "m"},
    integers={"table": "distinct n"},
    dtypes=["float32"],
)
def listed(x: Tensor, weights: list[Tensor], *, table: Tensor) -> Tensor:
    return (x @ (weights[0] + 0) + x @ weights[1])[table]


@verify.kernel(
    like=lambda x, p: x[p], shapes={"x": "n d", "p": "n"}, integers={"p": "permutation n"}, dtypes=["float32"]
)
def permuted(x: Tensor, p: Tensor) -> Tensor:
    return x[p]


@verify.kernel(
    like=lambda x, p: x[p],
    shapes={"x": "n d", "p": "n"},
    integers={"p": "permutation n"},
    dtypes=["float32"],
    gradients=False,
)
def keeps_the_first_row(x: Tensor, p: Tensor) -> Tensor:
    """The row that goes to place 4 stays where it was."""
    y = x[p]
    y[4:5] = x[4:5]
    return y


@verify.kernel(**{**GATED, "gradients": False})
def biased_weights(s: Tensor, b: Tensor) -> Tensor:
    """The weights are the biased scores."""
    chosen = (torch.sigmoid(s) + b).topk(2, -1).values
    return chosen / chosen.sum(-1, keepdim=True)


@verify.kernel(**{**PERMUTED, "gradients": False})
def backwards_within_experts(x: Tensor, expert: Tensor) -> Tensor:
    """The tokens of an expert come in the wrong order."""
    return torch.cat([x[expert == each].flip(0) for each in range(4)])


@verify.kernel(**{**BACK, "gradients": False})
def there_and_there(x: Tensor, p: Tensor, back: Tensor) -> Tensor:
    """The permutation is applied twice."""
    return x[p][p]
