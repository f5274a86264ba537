"""Triton kernels of the liger-kernel package beyond those that have a shipped op (those are in examples/liger.py).

    pip install liger-kernel
    verify run examples/public/liger_kernels.py

Losses, norms and RoPE write over tensors of the caller to save memory, a documented design; here they are given copies,
through which autograd passes, so that values and gradients can be measured.
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

import verify

liger = functools.partial(verify.kernel, requires="liger_kernel")
ROWS = {"logits": "n v", "label": "n"}
LABELS = {"label": "0 <= label < v"}
EPS = 1e-6
LOGARITHMS = "-80 <= {} <= 0"  # of probabilities


def rms_normalized(x, eps=EPS):
    """x over the root of its mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def jensen_shannon(x, target):
    """Half the divergences of two distributions, given as logarithms, from their mean; the mean over the rows."""
    p, q = target.exp(), x.exp()
    middle = torch.log((p + q) / 2)
    return (p * (target - middle) + q * (x - middle)).sum() / (2 * x.shape[0])


def poly_norm(x, weight, bias):
    """A weighted sum of the normalised powers of x."""
    powers = (weight[n] * rms_normalized(x ** (3 - n)) for n in range(3))
    return sum(powers) + bias


def half_turned(x):
    """The second half, negated, before the first half."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotated(q, k, cos, sin):
    """RoPE as Llama has it, on halves; the table of angles is given once and serves both halves."""
    cos, sin = (torch.cat((table, table), -1).unsqueeze(1) for table in (cos, sin))
    return q * cos + half_turned(q) * sin, k * cos + half_turned(k) * sin


def sparsemax(x):
    """The projection of a row onto the simplex."""
    ranked = x.sort(-1, descending=True).values
    place = torch.arange(1, x.shape[-1] + 1, device=x.device)
    beyond = ranked.cumsum(-1) - 1
    held = place * ranked > beyond
    threshold = torch.where(held, ranked, 0).sum(-1, keepdim=True) - 1
    return torch.relu(x - threshold / held.sum(-1, keepdim=True))


def silu_gated(x):
    """SwiGLU of the halves of one tensor, of which the first is activated."""
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


@liger(like=functional.cross_entropy, shapes=ROWS, integers=LABELS, outputs=["loss"])
def cross_entropy(logits, label):
    """Cross-entropy, the mean over the rows; the gradient is computed in the forward pass, over the logits."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    return LigerCrossEntropyFunction.apply(logits.clone(), label, None)[0]


@liger(
    like=functools.partial(functional.cross_entropy, label_smoothing=0.1),
    shapes=ROWS,
    integers=LABELS,
    outputs=["loss"],
)
def cross_entropy_smoothed(logits, label):
    """Cross-entropy with a tenth of the weight spread over all labels."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    return LigerCrossEntropyFunction.apply(logits.clone(), label, None, -100, 0.0, 0.1)[0]


@liger(
    like=lambda x, weight, label: functional.cross_entropy(x @ weight.T, label),
    shapes={"x": "n d", "weight": "v d", "label": "n"},
    integers=LABELS,
    outputs=["loss"],
)
def linear_cross_entropy(x, weight, label):
    """The last linear layer and its cross-entropy, in chunks of rows."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    return LigerFusedLinearCrossEntropyFunction.apply(x.clone(), weight, label)[0]


@liger(
    like=jensen_shannon,
    shapes={"x": "n v", "target": "n v"},
    outputs=["loss"],
    gradients=["x"],
    where="n >= 1",
    domain={"x": LOGARITHMS.format("x"), "target": LOGARITHMS.format("target")},
)
def jsd(x, target):
    """Jensen-Shannon divergence of logarithms of probabilities."""
    from liger_kernel.ops.jsd import LigerJSDFunction

    return LigerJSDFunction.apply(x.clone(), target, None, 0.5)


@liger(
    like=functools.partial(functional.kl_div, reduction="batchmean", log_target=True),
    shapes={"input": "n v", "target": "n v"},
    outputs=["loss"],
    gradients=["input"],
    domain={"input": LOGARITHMS.format("input"), "target": LOGARITHMS.format("target")},
)
def kl_div(input, target):
    """Kullback-Leibler divergence of logarithms of probabilities."""
    from liger_kernel.ops.kl_div import LigerKLDivLossFunction

    return LigerKLDivLossFunction.apply(input, target, "batchmean", True)


@liger(
    like=lambda p, q: 0.5 * (p - q).abs().sum() / p.shape[0],
    shapes={"p": "n v", "q": "n v"},
    outputs=["loss"],
    gradients=["p"],
)
def total_variation(p, q):
    """Total variation distance, the mean over the rows."""
    from liger_kernel.ops.tvd import LigerTVDLossFunction

    return LigerTVDLossFunction.apply(p.clone(), q)


@liger(like=lambda x: torch.relu(x).square())
def relu_squared(x):
    """The square of ReLU."""
    from liger_kernel.ops.relu_squared import LigerReLUSquaredFunction

    return LigerReLUSquaredFunction.apply(x)


@liger(like=silu_gated, shapes={"x": "n d"}, where="d % 2 == 0")
def swiglu_of_halves(x):
    """SwiGLU of one tensor that holds gate and up."""
    from liger_kernel.ops.swiglu import LigerFusedGateUpSiLUMulFunction

    return LigerFusedGateUpSiLUMulFunction.apply(x)


@liger(like=functools.partial(torch.softmax, dim=-1), shapes={"input": "n d"}, refuses=True)  # rows beyond 65,536
def softmax(input):
    """Softmax over the last dimension."""
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(input)


@liger(like=sparsemax, shapes={"x": "n d"})
def sparsemax_rows(x):
    """Sparsemax over the last dimension."""
    from liger_kernel.ops.sparsemax import LigerSparsemaxFunction

    return LigerSparsemaxFunction.apply(x, -1)


@liger(like=poly_norm, shapes={"x": "n d", "weight": "3", "bias": ""})
def poly_norm_rows(x, weight, bias):
    """PolyNorm: three normalised powers, weighted."""
    from liger_kernel.ops.poly_norm import LigerPolyNormFunction

    return LigerPolyNormFunction.apply(x, weight, bias, EPS, False)


@liger(
    like=lambda x, weight, bias: functional.group_norm(x, 2, weight, bias, EPS),
    shapes={"x": "n c h", "weight": "c", "bias": "c"},
    where="c % 2 == 0 and h >= 2",
)
def group_norm(x, weight, bias):
    """Group norm with two groups of channels."""
    from liger_kernel.ops.group_norm import LigerGroupNormFunction

    return LigerGroupNormFunction.apply(x, weight, bias, x.shape[1], 2, EPS)


@liger(
    like=lambda x, residual, weight: (rms_normalized(x + residual) * weight, x + residual),
    shapes={"x": "n d", "residual": "n d", "weight": "d"},
    outputs=["y", "sum"],
)
def add_rms_norm(x, residual, weight):
    """RMS norm of a sum, which is returned too."""
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    return LigerFusedAddRMSNormFunction.apply(x, residual, weight, EPS)


@liger(
    like=lambda x, weight, scale, shift: (1 + scale) * rms_normalized(x) * weight + shift,
    shapes={"x": "n d", "weight": "d", "scale": "n d", "shift": "n d"},
)
def modulated_rms_norm(x, weight, scale, shift):
    """RMS norm, scaled and shifted by token as diffusion transformers do."""
    from liger_kernel.ops.modulated_rms_norm import LigerModulatedRMSNormFunction

    return LigerModulatedRMSNormFunction.apply(x, weight, scale, shift, EPS, 0.0, "llama", False)


@liger(
    like=lambda x, alpha, gamma, beta: gamma * torch.tanh(alpha * x) + beta,
    shapes={"x": "n d", "alpha": "1", "gamma": "d", "beta": "d"},
    backends=["cuda"],  # its backward pass asks the GPU for its multiprocessors
)
def dynamic_tanh(x, alpha, gamma, beta):
    """Dynamic tanh, a norm without statistics."""
    from liger_kernel.ops.dyt import LigerDyTFunction

    return LigerDyTFunction.apply(x, alpha, gamma, beta)


@liger(
    like=rotated,
    shapes={"q": "b h s d", "k": "b g s d", "cos": "1 s e", "sin": "1 s e"},
    where="d == 2 * e and d <= 256",
    domain={"cos": "-1 <= cos <= 1", "sin": "-1 <= sin <= 1"},
    outputs=["q_out", "k_out"],
    gradients=["q", "k"],
)
def rope(q, k, cos, sin):
    """Rotary embedding of queries and keys, on halves."""
    from liger_kernel.ops.rope import LigerRopeFunction

    return LigerRopeFunction.apply(q.clone(), k.clone(), cos, sin, None, 1, q.shape[-1])
