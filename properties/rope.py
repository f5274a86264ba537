"""Promises of the rotary embedding. Figures are ULP against the exact value of the given operands."""

from __future__ import annotations

import pytest
import torch

import verify
from kernels import rope as triton_rope

# Sizes are small, and heads, batches and float16 are left to tests/kernels/test_rope.py: an element depends on its own
# operands alone, and 16 bits have one code. The tests compare float64 with fractions too: at most 1.5 ULP.
# Beyond 1, which no cosine is, a product of two numbers may leave float32.
FLOATS = ["bfloat16", "float32"]
LIMITS = {"bfloat16": 0.51, "float32": 0.51}
ANGLES = {"cos": "-1 <= cos <= 1", "sin": "-1 <= sin <= 1"}
PARTS = {
    "shapes": {"q": "2 3 sequence d", "k": "2 2 sequence d", "cos": "1 sequence r", "sin": "1 sequence r"},
    "where": "r % 2 == 0 and r <= d and d <= 32 and sequence <= 33",
    "domain": ANGLES,
    "outputs": ["q_out", "k_out"],
}
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
    like=rotated, **PARTS, dtypes=FLOATS, max_ulp=LIMITS, gradients=["q", "k"], refuses=False, same_bits=BITS
)
def rope(q, k, cos, sin):
    """The Triton kernel on queries and keys."""
    return triton_rope.rope(q, k, cos.detach(), sin.detach())


# tests/kernels/test_rope.py compares layouts and special values with Llama's function, test_composition.py compiles and
# transforms calls, so these laws are slow tests. `verify run --profile ci` tries every law in every dtype.
LAWS = ["special values", "layout independence", "upstream layout independence", "nothing overwritten"]

test_rope = pytest.mark.slow(verify.laws_for(rope, dtypes=["bfloat16"], laws=LAWS))
