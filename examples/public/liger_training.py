"""More Triton kernels of Liger 0.8.5: M-RoPE, losses of distillation and of reinforcement learning.

pip install --no-deps liger-kernel
verify run examples/public/liger_training.py
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

import verify

liger = functools.partial(verify.kernel, requires="liger_kernel")


def rotated(q, k, cos, sin):
    """RoPE of three positions: two, three and three of eight pairs turn by each."""
    cos, sin = (
        torch.cat([each[axis][..., part] for axis, part in enumerate((slice(2), slice(2, 5), slice(5, 8)))], -1)[
            :, None
        ]
        for each in (cos, sin)
    )
    return tuple(
        torch.cat((x[..., :8] * cos - x[..., 8:] * sin, x[..., 8:] * cos + x[..., :8] * sin), -1) for x in (q, k)
    )


@liger(
    like=rotated,
    shapes={"q": "b h s 16", "k": "b g s 16", "turns": "3 b s 8", "cos": "3 b s 16", "sin": "3 b s 16"},
    derive={"cos": lambda turns: turns.repeat(1, 1, 1, 2).cos(), "sin": lambda turns: turns.repeat(1, 1, 1, 2).sin()},
    outputs=["q_out", "k_out"],
    gradients=["q", "k"],
)
def mrope(q, k, cos, sin):
    """Multimodal RoPE of Qwen2-VL. Its backward writes over the gradient that arrives."""
    from liger_kernel.ops.qwen2vl_mrope import LigerQwen2VLMRopeFunction

    return LigerQwen2VLMRopeFunction.apply(q, k, cos, sin, [2, 3, 3])


def ce_and_tvd(student, teacher, label):
    """Cross entropy, and half the sum of differences of two softmaxes; 0 where no label is."""
    some = label >= 0
    ce = functional.cross_entropy(student, label, ignore_index=-100, reduction="none")
    tvd = (student.softmax(-1) - teacher.softmax(-1)).abs().sum(-1) / 2
    return ce, torch.where(some, tvd, 0.0)


@liger(
    like=ce_and_tvd,
    shapes={"student": "n v", "teacher": "n v", "label": "n"},
    integers={"label": "0 <= label < v"},
    outputs=["ce", "tvd"],
    output_dtypes={"ce": "float32", "tvd": "float32"},
    gradients=["student"],
)
def ce_tvd(student, teacher, label):
    """Cross entropy and total variation in one pass."""
    from liger_kernel.ops.fused_ce_tvd import LigerFusedCETVDFunction

    return LigerFusedCETVDFunction.apply(student, teacher, label)


def residuals(v, query, weight):
    """Attention over blocks: a softmax of their products with a query, after RMS norm."""
    keys = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6) * weight
    return ((keys @ query).softmax(0)[..., None] * v).sum(0)


@liger(like=residuals, shapes={"v": "n b t d", "query": "d", "weight": "d"}, where="n <= 16 and d <= 1024")
def attn_res(v, query, weight):
    """Attention residuals."""
    from liger_kernel.ops.attn_res import LigerAttnResFunction

    return LigerAttnResFunction.apply(v, query, weight, 1e-6)


def token_logprobs(logits, ids):
    """Log probabilities of tokens at temperature 0.9; the last logits are of no token."""
    return (logits[:, :-1] / 0.9).log_softmax(-1).gather(-1, ids[..., None])[..., 0]


TOKENS = {"shapes": {"logits": "b l+1 v", "ids": "b l"}, "integers": {"ids": "0 <= ids < v"}}


@liger(like=token_logprobs, **TOKENS, output_dtypes={"y": "float32"}, gradients=False, layouts="contiguous")
def selective_log_softmax(logits, ids):
    """Log probabilities of tokens. The logarithm of a sum is rounded near the largest logit."""
    from liger_kernel.ops.grpo_loss import fused_selective_log_softmax

    return fused_selective_log_softmax(logits, ids)


def masked(logits, allowed):
    """Logits of which the last ones alone are allowed, as by a grammar."""
    place = torch.arange(logits.shape[-1], 0, -1, device=logits.device)
    return logits.masked_fill(place > allowed[:, None, None], -torch.inf)


@liger(
    like=lambda logits, ids, allowed: token_logprobs(masked(logits, allowed), ids),
    shapes={**TOKENS["shapes"], "allowed": "b"},
    integers={**TOKENS["integers"], "allowed": "1 <= allowed <= v"},
    domain={"logits": "-32 <= logits <= 32"},
    output_dtypes={"y": "float32"},
    gradients=False,
    layouts="contiguous",
)
def masked_log_softmax(logits, ids, allowed):
    """The same of a masked vocabulary. NaN if the first 2,048 logits are masked."""
    from liger_kernel.ops.grpo_loss import fused_selective_log_softmax

    return fused_selective_log_softmax(masked(logits, allowed), ids)


def grpo(logits, ids, old, ref, advantages):
    """GRPO's loss of each token: a clipped ratio times the advantage, and a divergence."""
    logp = token_logprobs(logits, ids)
    ratio = (logp - old).exp()
    gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.4) * advantages[:, None])
    return 0.04 * ((ref - logp).exp() - (ref - logp) - 1) - gain


@liger(
    like=grpo,
    shapes={**TOKENS["shapes"], "old": "b l", "ref": "b l", "advantages": "b"},
    integers=TOKENS["integers"],
    domain={"logits": "-8 <= logits <= 8", "old": "-16 <= old <= 0", "ref": "-16 <= ref <= 0"},
    operand_dtypes=dict.fromkeys(("old", "ref", "advantages"), "float32"),
    output_dtypes={"loss": "float32"},
    outputs=["loss"],
    gradients=["logits"],
    layouts="contiguous",
)
def grpo_loss(logits, ids, old, ref, advantages):
    """GRPO's loss."""
    from liger_kernel.transformers.grpo_loss import triton_grpo_loss

    return triton_grpo_loss(logits, old, ref, ids, advantages, inplace=False, loss_type="grpo")[0]
