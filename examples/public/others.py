"""Single kernels: bitsandbytes' Adam, OpenAI's triton_kernels, unsloth's quantiser, flex attention, Triton's tutorial.

    verify run examples/public/others.py

`bitsandbytes_triton` is the folder `backends/triton` of bitsandbytes 0.50; the files of the kernels are enough
(benchmarks/kernel_files.py).
"""

from __future__ import annotations

import functools

import torch

import verify

# -- bitsandbytes ------------------------------------------------------------------------------------------


def adam(p, m, v, g):
    """The tenth step of Adam."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 0.001 * (m / (1 - 0.9**10)) / ((v / (1 - 0.999**10)).sqrt() + 1e-8), m, v


@verify.kernel(
    like=adam,
    shapes=dict.fromkeys("pmvg", "n"),
    domain={"v": "0 <= v"},
    writes={"p": "p_", "m": "m_", "v": "v_"},
    operand_dtypes={"m": "float32", "v": "float32"},
    layouts="contiguous",
    requires="bitsandbytes_triton",
)
def adam_32bit(p, m, v, g):
    """Adam with states in 32 bits, in place."""
    from bitsandbytes_triton.kernels_optim import optimizer_update_32bit_impl

    rest = (None, 0.0, 0.0, 0.9, 0.999, 0.0, 0.0, 1e-8, 0.0, 10, 0.001)
    optimizer_update_32bit_impl("adam", g, p, m, v, *rest)


# -- triton_kernels, unsloth -------------------------------------------------------------------------------


def swiglu(x):
    """SwiGLU of alternating columns, clipped at 7; the linear half is raised by one."""
    gate, linear = x[:, ::2].clamp(max=7), x[:, 1::2].clamp(-7, 7)
    return gate * (1.702 * gate).sigmoid() * (linear + 1)


@verify.kernel(
    like=swiglu,
    shapes={"x": "n 2*d"},
    layouts="contiguous",
    gradients=False,
    requires="triton_kernels",
    backends=["cuda"],
)
def swiglu_clipped(x):
    """SwiGLU of gpt-oss, with a configuration object."""
    from triton_kernels.swiglu import PrecisionConfig, swiglu

    return swiglu(x, 1.702, PrecisionConfig(limit=7.0))


@verify.kernel(
    quantise=verify.quantised("e4m3", block=(1, 128), scale="float32", nan="any"),
    dtypes=["bfloat16", "float16"],
    requires="unsloth_fp8",
)
def unsloth_act_quant(x):
    """FP8 with a scale for 128 numbers; a block of zeros has the scale 1."""
    from unsloth_fp8.fp8 import act_quant

    return act_quant(x)


# -- PyTorch, Triton's tutorial ----------------------------------------------------------------------------


def windowed(q, k, v):
    """Causal attention over the last 100 keys, with a bias that falls with the distance."""
    away = torch.arange(q.shape[2], device=q.device)[:, None] - torch.arange(q.shape[2], device=q.device)
    scores = q @ k.mT * q.shape[-1] ** -0.5 - (away / 16).to(q.dtype)
    return scores.masked_fill((away < 0) | (away > 100), -torch.inf).softmax(-1) @ v


@verify.kernel(
    like=windowed,
    shapes=dict.fromkeys("qkv", "b h s 64"),
    where="s >= 16 and s <= 257",
    dtypes=["float16", "bfloat16"],
    gradients=False,
)
def flex_attention(q, k, v):
    """Flex attention with a score function and a mask of blocks, not compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(
        lambda b, h, i, j: (i >= j) & (i - j <= 100), None, None, q.shape[2], q.shape[2], device=q.device
    )
    return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score - (i - j) / 16, block_mask=mask)


def dropped(x, seed):
    """Dropout at a rate of 0.25 by the numbers of tl.rand."""
    kept = verify.philox_uniform(verify.philox(seed, torch.arange(len(x)))[0]) > 0.25
    return torch.where(kept, x / 0.75, 0.0)


@functools.cache
def tutorial():
    """The kernel of Triton's tutorial 04, as it stands there."""
    import triton
    import triton.language as tl

    @triton.jit
    def _seeded_dropout(x_ptr, output_ptr, n_elements, p, seed, BLOCK_SIZE: tl.constexpr):
        pid = tl.program_id(axis=0)
        block_start = pid * BLOCK_SIZE
        offsets = block_start + tl.arange(0, BLOCK_SIZE)
        mask = offsets < n_elements
        x = tl.load(x_ptr + offsets, mask=mask)
        random = tl.rand(seed, offsets)
        x_keep = random > p
        output = tl.where(x_keep, x / (1 - p), 0.0)
        tl.store(output_ptr + offsets, output, mask=mask)

    return _seeded_dropout


@verify.kernel(
    like=dropped,
    shapes={"x": "n", "seed": ""},
    integers={"seed": "0 <= seed < 2**31"},
    layouts="contiguous",
    gradients=False,
    requires="triton",
)
def seeded_dropout(x, seed):
    """The seeded dropout of Triton's tutorial."""
    output = torch.empty_like(x)
    tutorial()[(-(-x.numel() // 1024),)](x, output, x.numel(), 0.25, int(seed), BLOCK_SIZE=1024)
    return output
