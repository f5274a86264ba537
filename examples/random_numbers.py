"""Random numbers that follow from a seed: dropout has one right answer, stochastic rounding has two, a sampler many.

    verify run examples/random_numbers.py

Triton's generator is Philox4x32-10 with the offset as its counter. `verify.philox` gives a definition the same numbers.
So every element of a dropout has one right answer, whatever is fused with it. Stochastic rounding is declared instead:
`stochastic="seed"` demands neighbours of the exact number, taken as often as they are near it, whatever the generator.
`draws={"token": "seed"}` demands numbers that are drawn as often as the definition's probabilities say.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import verify

BLOCK = 256
DROPPED = 0.125


@triton.jit
def _dropout_kernel(x_ptr, seed_ptr, y_ptr, n, DROPPED: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n, other=0.0)
    kept = tl.rand(tl.load(seed_ptr), place) > DROPPED
    y = tl.where(kept, x.to(tl.float32) / (1.0 - DROPPED), 0.0)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=place < n)


def dropped(x, seed):
    """Dropout with the numbers that `tl.rand(seed, place)` gives."""
    u = verify.philox_uniform(verify.philox(seed, torch.arange(len(x), device=x.device))[0])
    return torch.where(u > DROPPED, x / (1 - DROPPED), 0.0)


@verify.kernel(
    like=dropped,
    shapes={"x": "n", "seed": ""},
    integers={"seed": "0 <= seed < 2**62"},
    dtypes=["float32", "bfloat16"],
    gradients=False,
)
def dropout(x, seed):
    """Dropout, the same for the same seed."""
    x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    _dropout_kernel[(triton.cdiv(len(x), BLOCK),)](x, seed, y, len(x), DROPPED=DROPPED, BLOCK=BLOCK)
    return y


# -- dropout inside larger kernels ------------------------------------------------------------------------


@triton.jit
def _bias_dropout_add_kernel(
    x_ptr, bias_ptr, residual_ptr, seed_ptr, y_ptr, n, width, DROPPED: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + place % width, mask=inside, other=0.0).to(tl.float32)
    kept = tl.rand(tl.load(seed_ptr), place) > DROPPED
    y = tl.where(kept, x / (1.0 - DROPPED), 0.0)
    y += tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


@verify.kernel(
    like=lambda x, bias, residual, seed: residual + dropped((x + bias).flatten(), seed).reshape(x.shape),
    shapes={"x": "n d", "bias": "d", "residual": "n d", "seed": ""},
    integers={"seed": "0 <= seed < 2**62"},
    dtypes=["float32", "bfloat16"],
    intermediate="float32",
    largest=1e4,
    gradients=False,
)
def bias_dropout_add(x, bias, residual, seed):
    """The end of a transformer's block: a bias, dropout and the residual in one pass."""
    x, bias, residual = (each.contiguous() for each in (x, bias, residual))
    y, n = torch.empty_like(x), x.numel()
    grid = (triton.cdiv(n, BLOCK),)
    _bias_dropout_add_kernel[grid](x, bias, residual, seed, y, n, x.shape[1], DROPPED=DROPPED, BLOCK=BLOCK)
    return y


@triton.jit
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, seed_ptr, y_ptr, S, D, scale, DROPPED: tl.constexpr, KEYS: tl.constexpr, FEATURES: tl.constexpr
):
    row = tl.program_id(0)
    key, feature = tl.arange(0, KEYS), tl.arange(0, FEATURES)
    mask = (key < S)[:, None] & (feature < D)[None, :]
    q = tl.load(q_ptr + row * D + feature, mask=feature < D, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + key[:, None] * D + feature[None, :], mask=mask, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + key[:, None] * D + feature[None, :], mask=mask, other=0.0).to(tl.float32)
    scores = tl.where(key < S, tl.sum(k * q[None, :], 1) * scale, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, 0))
    total = tl.sum(weights, 0)
    kept = tl.rand(tl.load(seed_ptr), row * S + key) > DROPPED
    weights = tl.where(kept, weights, 0.0)
    y = tl.sum(weights[:, None] * v, 0) / (total * (1.0 - DROPPED))
    tl.store(y_ptr + row * D + feature, y.to(y_ptr.dtype.element_ty), mask=feature < D)


def attention_dropped(q, k, v, seed):
    """Attention whose weights drop out by the place of a pair in the matrix of scores, after the sum of the softmax."""
    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return dropped(p.flatten(), seed).reshape(p.shape) @ v


@verify.kernel(
    like=attention_dropped,
    shapes={"q": "t d", "k": "s d", "v": "s d", "seed": ""},
    integers={"seed": "0 <= seed < 2**62"},
    where="t <= 64 and s <= 64 and d <= 32",
    dtypes=["float32"],
    largest=8.0,
    gradients=False,
)
def attention_dropout(q, k, v, seed):
    """Attention with dropout of its weights. The counter is row * S + key, as Triton kernels for ROCm have it."""
    q, k, v = (each.contiguous() for each in (q, k, v))
    (t, d), s = q.shape, k.shape[0]
    y = torch.empty_like(q)
    sizes = {"KEYS": triton.next_power_of_2(s), "FEATURES": triton.next_power_of_2(d)}
    _attention_kernel[(t,)](q, k, v, seed, y, s, d, d**-0.5, DROPPED=DROPPED, **sizes)
    return y


# -- a sampler --------------------------------------------------------------------------------------------


@triton.jit
def _sample_kernel(logits_ptr, temperature_ptr, seed_ptr, token_ptr, V, BLOCK: tl.constexpr):
    row, number = tl.program_id(0), tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * V + number, mask=number < V, other=-float("inf")).to(tl.float32)
    u = tl.rand(tl.load(seed_ptr), row * V + number)
    noise = -tl.log(-tl.log(tl.maximum(u, 1e-7)))
    token = tl.argmax(logits / tl.load(temperature_ptr + row) + noise, 0)
    tl.store(token_ptr + row, token)


@verify.kernel(
    like=lambda logits, temperature: (logits / temperature[:, None]).softmax(-1),
    shapes={"logits": "r v", "temperature": "r", "seed": ""},
    where="v <= 4096",
    domain={"temperature": "0.5 <= temperature <= 2"},
    integers={"seed": "0 <= seed < 2**31"},
    outputs=["token"],
    draws={"token": "seed"},
    dtypes=["float32"],
)
def sample(logits, temperature, seed):
    """Draws a token for each row by the largest of logits with Gumbel noise."""
    logits, temperature = logits.contiguous(), temperature.contiguous()
    rows, count = logits.shape
    token = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if token.numel():
        _sample_kernel[(rows,)](logits, temperature, seed, token, count, BLOCK=triton.next_power_of_2(count))
    return token


# -- stochastic rounding ----------------------------------------------------------------------------------

SEEDED = {"integers": {"seed": "0 <= seed < 2**31"}, "stochastic": "seed", "gradients": False}


@triton.jit
def _round_kernel(x_ptr, seed_ptr, y_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(x_ptr + place, mask=place < n, other=0.0).to(tl.int32, bitcast=True)
    random = tl.randint(tl.load(seed_ptr), place).to(tl.int32, bitcast=True) & 0xFFFF
    up = tl.where(random < (bits & 0xFFFF), 0x10000, 0)
    cut = (bits & -0x10000) + up
    tl.store(y_ptr + place, cut.to(tl.float32, bitcast=True).to(tl.bfloat16), mask=place < n)


@verify.kernel(
    like=lambda x, seed: x,
    shapes={"x": "n", "seed": ""},
    dtypes=["float32"],
    output_dtypes={"y": "bfloat16"},
    **SEEDED,
)
def to_bfloat16(x, seed):
    """Float32 to bfloat16: 16 random bits decide whether the 16 bits that are cut off count."""
    x = x.contiguous()
    y = torch.empty_like(x, dtype=torch.bfloat16)
    _round_kernel[(triton.cdiv(len(x), BLOCK),)](x, seed, y, len(x), BLOCK=BLOCK)
    return y


def rounded_at_random(x, seed):
    """Float32 to bfloat16 in PyTorch, as low-precision optimisers round their parameters."""
    generator = torch.Generator(x.device).manual_seed(int(seed))
    random = torch.randint(0, 1 << 16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    bits = x.view(torch.int32)
    up = (random < (bits & 0xFFFF)).to(torch.int32) << 16
    return ((bits & -0x10000) + up).view(torch.float32).bfloat16()


def adamw(p, g, m, v, seed):
    """The new parameters and the new means of the gradient and of its square."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v


@verify.kernel(
    like=adamw,
    shapes={**dict.fromkeys("pgmv", "n"), "seed": ""},
    writes={"p": "p_", "m": "m_", "v": "v_"},
    domain={"v": "0 <= v"},
    dtypes=["bfloat16"],
    operand_dtypes={"m": "float32", "v": "float32"},
    output_dtypes={"p_": "bfloat16", "m_": "float32", "v_": "float32"},
    largest=1e4,
    **{**SEEDED, "stochastic": {"p_": "seed"}},
)
def adamw_bfloat16(p, g, m, v, seed):
    """A step of AdamW on parameters in bfloat16. Rounded to nearest, most of them would never change."""
    g = g.float()
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.copy_(rounded_at_random(p.float().addcdiv(m, v.sqrt().add_(1e-8), value=-1e-3), seed))
