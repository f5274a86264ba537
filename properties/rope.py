"""Promises of the rotary embedding. Figures are ULP against the exact value of the given operands."""

from __future__ import annotations

import torch

import verify
from kernels import rope as triton_rope

# float64 works too: at most 1.5 ULP, by Kahan's sum of two products, which tests/kernels/test_rope.py compares with
# fractions. Angles are a cosine and a sine: beyond 1, a product of two large numbers may leave float32.
FLOATS = ["bfloat16", "float16", "float32"]
LIMITS = {"bfloat16": 0.51, "float16": 0.51, "float32": 0.51}
SHAPES = {"q": "batch heads sequence d", "k": "batch kv_heads sequence d", "cos": "c sequence r", "sin": "c sequence r"}
WHERE = "(c == 1 or c == batch) and r % 2 == 0 and r <= d and d <= 256"
BITS = ["rows", "position"]  # an element depends on its own operands alone, whatever the launch is


def half_turned(x):
    """The second half, negated, before the first half."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotated(q, k, cos, sin):
    """The rotary embedding of Hugging Face's Llama; numbers without an angle stay, as in Phi-3's."""
    r = cos.shape[-1]
    q_turned, k_turned = (x[..., :r] * cos.unsqueeze(1) + half_turned(x[..., :r]) * sin.unsqueeze(1) for x in (q, k))
    return torch.cat((q_turned, q[..., r:]), -1), torch.cat((k_turned, k[..., r:]), -1)


@verify.kernel(
    like=rotated,
    shapes=SHAPES,
    where=WHERE,
    dtypes=FLOATS,
    max_ulp=LIMITS,
    domain={"cos": "-1 <= cos <= 1", "sin": "-1 <= sin <= 1"},
    outputs=["q_out", "k_out"],
    gradients=["q", "k"],
    refuses=False,
    same_bits=BITS,
)
def rope(q, k, cos, sin):
    """The Triton kernel on queries and keys."""
    return triton_rope.rope(q, k, cos.detach(), sin.detach())
