"""Padded sequences: what the law finds, leaves alone, and where it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import verify
from tests.laws.trial import breaks, holds, skips
from verify.declare.declaration import Kernel

LAW = "padding"
BEHIND = "a result depends on what lies behind its sequence"


def log_sums(x: Tensor, lengths: Tensor) -> Tensor:
    seen = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return x.masked_fill(~seen, -torch.inf).logsumexp(-1)


def padded(kernel: Callable[..., Any]) -> Kernel:
    said = {"shapes": {"x": "b s", "lengths": "b"}, "integers": {"lengths": "1 <= lengths <= s"}}
    return verify.kernel(like=log_sums, dtypes=["float32"], gradients=False, name="k", **said)(kernel)


def shifted(x: Tensor, lengths: Tensor, padding: bool) -> Tensor:
    """By the maximum of the sequence, or of its padding too."""
    seen = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    top = (x if padding else x.masked_fill(~seen, -torch.inf)).amax(-1, keepdim=True)
    return torch.where(seen, (x - top).exp(), 0.0).sum(-1).log() + top[:, 0]


def test_padding_changes_no_bit() -> None:
    holds(LAW, padded(log_sums))
    holds(LAW, padded(lambda x, lengths: shifted(x, lengths, padding=False)))
    breaks(LAW, padded(lambda x, lengths: shifted(x, lengths, padding=True)), BEHIND)


def test_a_function_needs_lengths_and_results_that_padding_does_not_reach() -> None:
    skips(LAW, verify.kernel(like=torch.exp, dtypes=["float32"], name="k")(lambda x: x.exp()), "holds the lengths")
    said = {"shapes": {"x": "b s", "lengths": "b"}, "integers": {"lengths": "1 <= lengths <= s"}, "gradients": False}
    mean = verify.kernel(like=lambda x, lengths: x.sum(-1) / lengths, dtypes=["float32"], name="k", **said)
    skips(LAW, mean(lambda x, lengths: x.sum(-1) / lengths), "every result depends on what lies behind")
    table = {"shapes": {"w": "v d", "ids": "n"}, "integers": {"ids": "0 <= ids < v"}, "gradients": False}
    rows = verify.kernel(like=lambda w, ids: w[ids], dtypes=["float32"], name="k", **table)
    skips(LAW, rows(lambda w, ids: w[ids]), "holds the lengths")
