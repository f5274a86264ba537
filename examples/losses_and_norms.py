"""Losses and norms of PyTorch, torch.compile, Liger, flash-linear-attention and this repository, by the same formulas.

    verify run examples/losses_and_norms.py::eager_cross_entropy --dtype bfloat16

docs/losses.md has errors on an H200. Kernels of packages that are not installed are skipped. Liger writes gradients
over its logits, so it gets copies.
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

import verify

EPS = 1e-5
loss = functools.partial(verify.kernel, outputs=["loss"])
of_logits = functools.partial(loss, shapes={"logits": "n v", "label": "n"}, integers={"label": "0 <= label < v"})
of_logarithms = functools.partial(
    loss,
    shapes={"input": "n v", "target": "n v"},
    gradients=["input"],
    largest={"float32": 80.0, "bfloat16": 80.0, "float16": 10.0},  # what exponentials of the target allow
)
of_two = functools.partial(loss, shapes={"x": "n d", "target": "n d"}, gradients=["x"])
normed = functools.partial(verify.kernel, shapes={"x": "n d", "weight": "d", "bias": "d"})
scaled = functools.partial(verify.kernel, shapes={"x": "n d", "weight": "d"})
grouped = functools.partial(
    verify.kernel, shapes={"x": "n c h", "weight": "c", "bias": "c"}, where="c % 4 == 0 and h >= 2"
)
of_batches = functools.partial(
    verify.kernel,
    shapes={"x": "n d", "mean": "d", "variance": "d", "weight": "d", "bias": "d"},
    domain={"variance": "0 <= variance"},
    gradients=["x", "weight", "bias"],
)


@functools.cache
def compiled(function):
    """Returns a function under torch.compile."""
    return torch.compile(function, dynamic=True)


def cross_entropy(logits, label):
    """The mean of cross-entropy over rows."""
    return functional.cross_entropy(logits, label)


@of_logits(like=cross_entropy)
def eager_cross_entropy(logits, label):
    """PyTorch's."""
    return cross_entropy(logits, label)


@of_logits(like=cross_entropy)
def compiled_cross_entropy(logits, label):
    """The same under torch.compile."""
    return compiled(cross_entropy)(logits, label)


@of_logits(like=cross_entropy, requires="liger_kernel")
def liger_cross_entropy(logits, label):
    """Liger's."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    return LigerCrossEntropyFunction.apply(logits.clone(), label, None)[0]


@of_logits(like=cross_entropy, requires=["fla", "einops"])
def fla_cross_entropy(logits, label):
    """flash-linear-attention's."""
    from fla.modules.fused_cross_entropy import cross_entropy_loss

    return cross_entropy_loss(logits, label)[0].mean()


def smoothed_cross_entropy(logits, label):
    """Cross-entropy with a tenth of the weight spread over all labels."""
    return functional.cross_entropy(logits, label, label_smoothing=0.1)


@of_logits(like=smoothed_cross_entropy)
def eager_smoothed_cross_entropy(logits, label):
    """PyTorch's."""
    return smoothed_cross_entropy(logits, label)


@of_logits(like=smoothed_cross_entropy)
def compiled_smoothed_cross_entropy(logits, label):
    """The same under torch.compile."""
    return compiled(smoothed_cross_entropy)(logits, label)


@of_logits(like=smoothed_cross_entropy, requires="liger_kernel")
def liger_smoothed_cross_entropy(logits, label):
    """Liger's."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    return LigerCrossEntropyFunction.apply(logits.clone(), label, None, -100, 0.0, 0.1)[0]


@of_logits(like=smoothed_cross_entropy, requires=["fla", "einops"])
def fla_smoothed_cross_entropy(logits, label):
    """flash-linear-attention's."""
    from fla.modules.fused_cross_entropy import cross_entropy_loss

    return cross_entropy_loss(logits, label, label_smoothing=0.1)[0].mean()


def cross_entropy_without_zero(logits, label):
    """The mean of cross-entropy over rows whose label is not 0."""
    return functional.cross_entropy(logits, label, ignore_index=0)


@of_logits(like=cross_entropy_without_zero)
def eager_cross_entropy_without_zero(logits, label):
    """PyTorch's."""
    return cross_entropy_without_zero(logits, label)


@of_logits(like=cross_entropy_without_zero)
def compiled_cross_entropy_without_zero(logits, label):
    """The same under torch.compile."""
    return compiled(cross_entropy_without_zero)(logits, label)


@of_logits(like=cross_entropy_without_zero, requires="liger_kernel")
def liger_cross_entropy_without_zero(logits, label):
    """Liger's."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    return LigerCrossEntropyFunction.apply(logits.clone(), label, None, 0)[0]


def nll(logits, label):
    """The mean of negated values at the labels."""
    return functional.nll_loss(logits, label)


@of_logits(like=nll)
def eager_nll(logits, label):
    """PyTorch's."""
    return nll(logits, label)


@of_logits(like=nll)
def compiled_nll(logits, label):
    """The same under torch.compile."""
    return compiled(nll)(logits, label)


def kl_div(input, target):
    """Kullback-Leibler divergence of logarithms of probabilities."""
    return functional.kl_div(input, target, reduction="batchmean", log_target=True)


@of_logarithms(like=kl_div)
def eager_kl_div(input, target):
    """PyTorch's."""
    return kl_div(input, target)


@of_logarithms(like=kl_div)
def compiled_kl_div(input, target):
    """The same under torch.compile."""
    return compiled(kl_div)(input, target)


@of_logarithms(like=kl_div, requires="liger_kernel")
def liger_kl_div(input, target):
    """Liger's."""
    from liger_kernel.ops.kl_div import LigerKLDivLossFunction

    return LigerKLDivLossFunction.apply(input, target, "batchmean", True)


def mse(x, target):
    """The mean of squared differences."""
    return functional.mse_loss(x, target)


@of_two(like=mse)
def eager_mse(x, target):
    """PyTorch's."""
    return mse(x, target)


@of_two(like=mse)
def compiled_mse(x, target):
    """The same under torch.compile."""
    return compiled(mse)(x, target)


def smooth_l1(x, target):
    """The mean of differences, squared below 1."""
    return functional.smooth_l1_loss(x, target)


@of_two(like=smooth_l1)
def eager_smooth_l1(x, target):
    """PyTorch's."""
    return smooth_l1(x, target)


@of_two(like=smooth_l1)
def compiled_smooth_l1(x, target):
    """The same under torch.compile."""
    return compiled(smooth_l1)(x, target)


def layer_norm(x, weight, bias):
    """Layer norm of rows."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias, EPS)


@normed(like=layer_norm)
def eager_layer_norm(x, weight, bias):
    """PyTorch's."""
    return layer_norm(x, weight, bias)


@normed(like=layer_norm)
def compiled_layer_norm(x, weight, bias):
    """The same under torch.compile."""
    return compiled(layer_norm)(x, weight, bias)


@normed(like=layer_norm, requires="liger_kernel")
def liger_layer_norm(x, weight, bias):
    """Liger's."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, EPS)


@normed(like=layer_norm, requires=["fla", "einops"])
def fla_layer_norm(x, weight, bias):
    """flash-linear-attention's."""
    from fla.modules import layernorm

    return layernorm.layer_norm(x, weight, bias, eps=EPS)


@normed(like=layer_norm)
def own_layer_norm(x, weight, bias):
    """This repository's."""
    from kernels.layer_norm import layer_norm as own

    return own(x, weight, bias, eps=EPS)


def rms_norm(x, weight):
    """RMS norm of rows."""
    return functional.rms_norm(x, x.shape[-1:], weight, EPS)


@scaled(like=rms_norm)
def eager_rms_norm(x, weight):
    """PyTorch's."""
    return rms_norm(x, weight)


@scaled(like=rms_norm)
def compiled_rms_norm(x, weight):
    """The same under torch.compile."""
    return compiled(rms_norm)(x, weight)


@scaled(like=rms_norm, requires="liger_kernel")
def liger_rms_norm(x, weight):
    """Liger's."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)


@scaled(like=rms_norm, requires=["fla", "einops"])
def fla_rms_norm(x, weight):
    """flash-linear-attention's."""
    from fla.modules import layernorm

    return layernorm.rms_norm(x, weight, None, eps=EPS)


@scaled(like=rms_norm)
def own_rms_norm(x, weight):
    """This repository's."""
    from kernels.rms_norm import rms_norm as own

    return own(x, weight, eps=EPS)


def group_norm(x, weight, bias):
    """Group norm of four groups of channels."""
    return functional.group_norm(x, 4, weight, bias, EPS)


@grouped(like=group_norm)
def eager_group_norm(x, weight, bias):
    """PyTorch's."""
    return group_norm(x, weight, bias)


@grouped(like=group_norm)
def compiled_group_norm(x, weight, bias):
    """The same under torch.compile."""
    return compiled(group_norm)(x, weight, bias)


@grouped(like=group_norm, requires="liger_kernel")
def liger_group_norm(x, weight, bias):
    """Liger's."""
    from liger_kernel.ops.group_norm import LigerGroupNormFunction

    return LigerGroupNormFunction.apply(x, weight, bias, x.shape[1], 4, EPS)


def batch_norm(x, mean, variance, weight, bias):
    """Batch norm by given statistics, as for inference."""
    return functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, EPS)


@of_batches(like=batch_norm)
def eager_batch_norm(x, mean, variance, weight, bias):
    """PyTorch's."""
    return batch_norm(x, mean, variance, weight, bias)


@of_batches(like=batch_norm)
def compiled_batch_norm(x, mean, variance, weight, bias):
    """The same under torch.compile."""
    return compiled(batch_norm)(x, mean, variance, weight, bias)
