"""Kernels of padded sequences with regions that count, right ones and twins with one defect each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import verify


def counts(x: Tensor, lengths: Tensor) -> Tensor:
    """True at the rows of each sequence, and False behind it."""
    return (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]


def means(x: Tensor, lengths: Tensor) -> Tensor:
    return x.sum(1) / lengths[:, None]


def attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    behind = torch.arange(k.shape[1], device=k.device) >= lengths[:, None, None]
    return scores.masked_fill(behind, -torch.inf).softmax(-1) @ v


PADDED: dict[str, Any] = {
    "shapes": {"x": "b s d", "lengths": "b"},
    "integers": {"lengths": "1 <= lengths <= s"},
    "dtypes": ["float32"],
}
ROWS = {**PADDED, "like": lambda x, lengths: x.softmax(-1), "valid": {"y": "s < lengths"}, "gradients": False}
MEANS = {**PADDED, "like": means, "valid": {"x": "s < lengths"}}
ATTENTION: dict[str, Any] = {
    "like": attention,
    "shapes": {"q": "b s d", "k": "b t d", "v": "b t d", "lengths": "b"},
    "integers": {"lengths": "1 <= lengths <= t"},
    "valid": {"k": "t < lengths", "v": "t < lengths"},
    "dtypes": ["float32"],
    "gradients": False,
}


@verify.kernel(**ROWS)
def nan_behind(x: Tensor, lengths: Tensor) -> Tensor:
    """Leaves NaN in the rows behind a sequence."""
    return x.softmax(-1).masked_fill(~counts(x, lengths), torch.nan)


@verify.kernel(**{**ROWS, "valid": None})
def nan_behind_undeclared(x: Tensor, lengths: Tensor) -> Tensor:
    return x.softmax(-1).masked_fill(~counts(x, lengths), torch.nan)


@verify.kernel(**ROWS)
def last_row_is_zero(x: Tensor, lengths: Tensor) -> Tensor:
    """Forgets the last row that counts."""
    return x.softmax(-1).masked_fill(~counts(x, lengths - 1), 0.0)


_buffers: dict[torch.Size, Tensor] = {}


@verify.kernel(**ROWS)
def keeps_its_buffer(x: Tensor, lengths: Tensor) -> Tensor:
    """Returns the same memory in every call."""
    return _buffers.setdefault(x.shape, torch.empty_like(x)).copy_(x.softmax(-1))


@verify.kernel(**{**ROWS, "valid": {"y": "s < lengths and s < 0"}})
def nothing_counts(x: Tensor, lengths: Tensor) -> Tensor:
    return x.softmax(-1)


@verify.kernel(**MEANS)
def mean_of_rows(x: Tensor, lengths: Tensor) -> Tensor:
    return x.masked_fill(~counts(x, lengths), 0.0).sum(1) / lengths[:, None]


@verify.kernel(**MEANS)
def times_zero(x: Tensor, lengths: Tensor) -> Tensor:
    """Multiplies the padding by 0, which is NaN where the padding is."""
    return (x * counts(x, lengths)).sum(1) / lengths[:, None]


@verify.kernel(**{**MEANS, "valid": None, "like": lambda x, lengths: means(x * counts(x, lengths), lengths)})
def times_zero_undeclared(x: Tensor, lengths: Tensor) -> Tensor:
    return (x * counts(x, lengths)).sum(1) / lengths[:, None]


@verify.kernel(**MEANS)
def writes_its_padding(x: Tensor, lengths: Tensor) -> Tensor:
    """Clears the padding in the operand itself."""
    with torch.no_grad():
        x.copy_(x.masked_fill(~counts(x, lengths), 0.0))
    return x.sum(1) / lengths[:, None]


@verify.kernel(**ATTENTION)
def skips_padded_keys(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    k, v = (x.masked_fill(~counts(x, lengths), 0.0) for x in (k, v))
    return attention(q, k, v, lengths)


@verify.kernel(**ATTENTION)
def attends_to_padded_keys(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Sees zeros behind the last key."""
    k, v = (x.masked_fill(~counts(x, lengths), 0.0) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@verify.kernel(**ATTENTION)
def weighs_padded_values_by_zero(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Masks the scores, and multiplies the values behind the last key by 0."""
    return attention(q, k.masked_fill(~counts(k, lengths), 0.0), v, lengths)
