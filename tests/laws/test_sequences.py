"""Sequences of several lengths, packed and padded: what the law finds, leaves alone, and where it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from examples.structured import VARLEN
from tests.laws.trial import breaks, holds, skips
from verify.declare.declaration import Kernel

LAW = "varlen equals padded"
ALONE, BEHIND = "a sequence alone is beyond the limit", "a result depends on what lies behind its sequence"


def attending(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, bug: str = "") -> Tensor:
    """One product for each sequence."""
    parts, longest = [], int(offsets.diff().max())
    for a, b in pairwise(offsets.tolist()):
        first = max(a - 1, 0) if bug == "a key of the one before" else a
        last = b if bug != "a block of 4 alone" or len(offsets) > 2 else a + max((b - a) // 4 * 4, 1)
        scale = (longest if bug == "scaled by the longest" else k.shape[1]) ** 0.5
        p = (q[a:b] @ k[first:last].mT / scale).softmax(-1)
        parts.append(p @ v[first:last])
    return torch.cat(parts)


def packed(bug: str = "") -> Kernel:
    settings = {**VARLEN, "largest": 8.0, "gradients": False}
    return verify.kernel(**settings, name="k")(lambda q, k, v, offsets: attending(q, k, v, offsets, bug))


def test_each_sequence_is_what_it_is_alone() -> None:
    holds(LAW, packed())


@pytest.mark.parametrize("bug", ["a block of 4 alone", "scaled by the longest"])
def test_a_sequence_that_is_another_one_alone_is_found(bug: str) -> None:
    breaks(LAW, packed(bug), ALONE)


def means(x: Tensor, lengths: Tensor) -> Tensor:
    """The mean of each sequence of packed tokens."""
    sequence = (torch.arange(len(x), device=x.device)[:, None] >= lengths.cumsum(0)).sum(1)
    member = torch.nn.functional.one_hot(sequence, len(lengths)).to(x.dtype)
    return member.mT @ x / lengths[:, None]


def test_results_may_count_sequences() -> None:
    said = {"shapes": {"x": "t d", "lengths": "b"}, "integers": {"lengths": "1 <= lengths <= t, sum t"}}
    declare = verify.kernel(like=means, dtypes=["float32"], gradients=False, largest=8.0, name="k", **said)
    holds(LAW, declare(lambda x, lengths: torch.stack([part.mean(0) for part in x.split(lengths.tolist())])))

    def wrong(x: Tensor, lengths: Tensor) -> Tensor:
        return torch.stack([part.sum(0) / (len(part) + (len(lengths) == 1)) for part in x.split(lengths.tolist())])

    breaks(LAW, declare(wrong), ALONE)


# -- padded ----------------------------------------------------------------------------------------------


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


def test_a_function_needs_lengths_and_results_that_padding_does_not_reach() -> None:
    skips(LAW, verify.kernel(like=torch.exp, dtypes=["float32"], name="k")(lambda x: x.exp()), "holds the lengths")
    said = {"shapes": {"x": "b s", "lengths": "b"}, "integers": {"lengths": "1 <= lengths <= s"}, "gradients": False}
    mean = verify.kernel(like=lambda x, lengths: x.sum(-1) / lengths, dtypes=["float32"], name="k", **said)
    skips(LAW, mean(lambda x, lengths: x.sum(-1) / lengths), "every result depends on what lies behind")
    table = {"shapes": {"w": "v d", "ids": "n"}, "integers": {"ids": "0 <= ids < v"}, "gradients": False}
    rows = verify.kernel(like=lambda w, ids: w[ids], dtypes=["float32"], name="k", **table)
    skips(LAW, rows(lambda w, ids: w[ids]), "holds the lengths")
