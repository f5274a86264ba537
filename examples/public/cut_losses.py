"""Apple's cut-cross-entropy: a linear layer and its loss without the logits in memory.

pip install cut-cross-entropy
verify run examples/public/cut_losses.py
"""

from __future__ import annotations

import functools

from torch.nn import functional

import verify

cce = functools.partial(
    verify.kernel,
    like=lambda x, weight, label: functional.cross_entropy(x @ weight.T, label),
    shapes={"x": "n d", "weight": "v d", "label": "n"},
    where="d % 16 == 0",
    integers={"label": "0 <= label < v"},
    dtypes=["bfloat16", "float16"],
    backends=["cuda"],
    requires="cut_cross_entropy",
)


@cce(outputs=["loss"])
def linear_cross_entropy(x, weight, label):
    """As it is by default: terms of the gradient below a threshold are left out."""
    from cut_cross_entropy import linear_cross_entropy

    return linear_cross_entropy(x, weight, label)


@cce(outputs=["loss"])
def linear_cross_entropy_unfiltered(x, weight, label):
    """With every term of the gradient."""
    from cut_cross_entropy import linear_cross_entropy

    return linear_cross_entropy(x, weight, label, filter_eps=None)
