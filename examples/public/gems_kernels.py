"""Triton kernels of FlagGems, which stand behind PyTorch's operators. They need a GPU even to be imported.

    pip install flag_gems
    verify run examples/public/gems_kernels.py

Functions are called by name; the package's own registration behind torch is left alone.
"""

from __future__ import annotations

import functools
import os
import tempfile

import torch
from torch.nn import functional

import verify

# it keeps on disk what its tuners find: no figure may depend on that, nor may what is chosen here be kept for training
os.environ.setdefault("FLAGGEMS_CACHE_DIR", os.path.join(tempfile.gettempdir(), "verify-flag-gems"))

gems = functools.partial(verify.kernel, requires=["flag_gems", "sqlalchemy"], backends=["cuda"])
forward = functools.partial(gems, gradients=False)
EPS = 1e-5
NORMED = {"x": "n d", "weight": "d", "bias": "d"}


def rms_normalized(x, eps=EPS):
    """x over the root of its mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


@forward(like=torch.erf)
def erf(x):
    """The error function."""
    import flag_gems

    return flag_gems.erf(x)


@forward(like=torch.tanh)
def tanh(x):
    """The hyperbolic tangent."""
    import flag_gems

    return flag_gems.tanh(x)


@forward(like=torch.rsqrt)
def rsqrt(x):
    """One over the square root."""
    import flag_gems

    return flag_gems.rsqrt(x)


@forward(like=torch.expm1)
def expm1(x):
    """exp(x) - 1."""
    import flag_gems

    return flag_gems.expm1(x)


@forward(like=lambda x: x**3)
def cube(x):
    """The third power."""
    import flag_gems

    return flag_gems.pow_tensor_scalar(x, 3)


@forward(like=torch.atan)
def atan(x):
    """The arc tangent."""
    import flag_gems

    return flag_gems.atan(x)


@forward(like=functional.softplus)
def softplus(x):
    """log(1 + exp(x)), and x itself beyond 20."""
    import flag_gems

    return flag_gems.softplus(x)


@forward(op="gelu")
def gelu(x):
    """GELU."""
    import flag_gems

    return flag_gems.gelu(x)


@forward(op="gelu", params={"approximate": "tanh"})
def gelu_tanh(x):
    """GELU, tanh form."""
    import flag_gems

    return flag_gems.gelu(x, approximate="tanh")


@gems(op="geglu_split")
def gelu_and_mul(x1, x2):
    """GEGLU."""
    import flag_gems

    return flag_gems.gelu_and_mul(x2, x1)


@gems(op="swiglu_split")
def silu_and_mul(x1, x2):
    """SwiGLU."""
    import flag_gems

    return flag_gems.silu_and_mul(x2, x1)


@forward(like=torch.logaddexp)
def logaddexp(x, y):
    """The logarithm of a sum of two exponentials."""
    import flag_gems

    return flag_gems.logaddexp(x, y)


@forward(like=torch.hypot)
def hypot(x, y):
    """The hypotenuse."""
    import flag_gems

    return flag_gems.hypot(x, y)


@forward(like=functools.partial(torch.softmax, dim=-1), shapes={"input": "n d"})
def softmax(input):
    """Softmax over the last dimension."""
    import flag_gems

    return flag_gems.softmax(input, -1)


@forward(like=functools.partial(functional.log_softmax, dim=-1), shapes={"input": "n d"})
def log_softmax(input):
    """The logarithm of softmax over the last dimension."""
    import flag_gems

    return flag_gems.log_softmax(input, -1)


@gems(op="rms_norm")
def rms_norm(x, weight, *, eps):
    """RMS norm."""
    import flag_gems

    return flag_gems.rms_norm(x, x.shape[-1:], weight, eps)


@forward(op="layer_norm")
def layer_norm(x, weight, bias, *, eps):
    """Layer norm."""
    import flag_gems

    return flag_gems.layer_norm(x, x.shape[-1:], weight, bias, eps)[0]


@forward(
    like=lambda x, weight, bias: functional.group_norm(x, 2, weight, bias, EPS),
    shapes={"x": "n c h", "weight": "c", "bias": "c"},
    where="c % 2 == 0 and h >= 2",
)
def group_norm(x, weight, bias):
    """Group norm with two groups of channels."""
    import flag_gems

    return flag_gems.group_norm(x, weight, bias, *x.shape, 2, EPS)[0]


@forward(
    like=lambda x, residual, weight, bias: functional.layer_norm(x + residual, x.shape[-1:], weight, bias, EPS),
    shapes={**NORMED, "residual": "n d"},
)
def skip_layer_norm(x, residual, weight, bias):
    """Layer norm of a sum."""
    import flag_gems

    return flag_gems.skip_layer_norm(x, residual, x.shape[-1:], weight, bias, EPS)


@gems(
    like=lambda v, g: v * (g / v.square().sum(-1, keepdim=True).sqrt()), shapes={"v": "n d", "g": "n 1"}, where="d >= 1"
)
def weight_norm(v, g):
    """Rows of a given length."""
    from flag_gems.fused.weight_norm import weight_norm

    return weight_norm(v, g, 0)


@forward(like=functools.partial(torch.linalg.vector_norm, dim=(-1,)), shapes={"x": "n d"})
def vector_norm(x):
    """The lengths of rows."""
    import flag_gems

    return flag_gems.vector_norm(x, 2, [-1])


@forward(like=functools.partial(torch.cumsum, dim=1), shapes={"input": "n d"})
def cumsum(input):
    """Sums along rows."""
    import flag_gems

    return flag_gems.cumsum(input, 1)


@forward(like=lambda x: (x.var(-1), x.mean(-1)), shapes={"x": "n d"}, where="d >= 2", outputs=["variance", "mean"])
def var_mean(x):
    """Variance and mean of rows."""
    import flag_gems

    return flag_gems.var_mean(x, [-1], correction=1)


@forward(like=torch.bmm, shapes={"input": "b m k", "mat2": "b k n"}, dtypes=["bfloat16", "float16", "float32"])
def bmm(input, mat2):
    """Products of matrices."""
    import flag_gems

    return flag_gems.bmm(input, mat2)


@gems(
    like=functional.cross_entropy,
    shapes={"logits": "n v", "label": "n"},
    integers={"label": "0 <= label < v"},
    outputs=["loss"],
)
def cross_entropy(logits, label):
    """Cross-entropy, the mean over the rows."""
    import flag_gems

    return flag_gems.cross_entropy_loss(logits, label)


@forward(like=functional.mse_loss, shapes={"input": "n d", "target": "n d"})
def mse_loss(input, target):
    """The mean squared difference."""
    import flag_gems

    return flag_gems.mse_loss(input, target)
