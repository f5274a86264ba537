"""Padding in company of what counts: twins of defects that kernels of padded sequences have.

Each twin is right, and its mutant lets the padding reach what counts. A run tells them apart: the padding that a kernel
receives is NaN. Six more are in region_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from tests.declare.region_kernels import PADDED, counts
from tests.measure.test_kernel import few_cases
from verify.backends import Backend
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure


def filled(x: Tensor, lengths: Tensor, value: float = 0.0) -> Tensor:
    """Rows, with a number in place of the padding."""
    return x.masked_fill(~counts(x, lengths), value)


def variance(x: Tensor, lengths: Tensor, padded: bool = False) -> Tensor:
    x, number = filled(x, lengths), lengths[:, None]
    apart = (x - (x.sum(1) / number)[:, None]).square()
    return (apart if padded else filled(apart, lengths)).sum(1) / number


def mean(x: Tensor, lengths: Tensor) -> Tensor:
    return filled(x, lengths).sum(1) / lengths[:, None]


def last(x: Tensor, lengths: Tensor) -> Tensor:
    return x.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]


def later(x: Tensor) -> Tensor:
    """The sum of each row and all rows after it."""
    return x.flip(1).cumsum(1).flip(1)


def log_sums(x: Tensor, widths: Tensor, value: float) -> Tensor:
    """The logarithm of the sum of exponentials of a padded vocabulary."""
    behind = torch.arange(x.shape[1], device=x.device) >= widths[:, None]
    return x.masked_fill(behind, value).logsumexp(1)


Twins = tuple[Callable[..., Tensor], Callable[..., Tensor], Mapping[str, Any]]
ROWS: Mapping[str, Any] = {**PADDED, "valid": {"x": "s < lengths"}}
BOTH: Mapping[str, Any] = {**PADDED, "valid": {"x": "s < lengths", "y": "s < lengths"}}
VOCABULARY: Mapping[str, Any] = {
    "shapes": {"x": "n v", "widths": "n"},
    "integers": {"widths": "1 <= widths <= v"},
    "valid": {"x": "v < widths"},
}
TWINS: Mapping[str, Twins] = {
    "a maximum of zeros": (
        lambda x, lengths: filled(x, lengths, -torch.inf).amax(1),
        lambda x, lengths: filled(x, lengths).amax(1),
        ROWS,
    ),
    "a variance of zeros": (variance, lambda x, lengths: variance(x, lengths, padded=True), ROWS),
    "a mean over all rows": (mean, lambda x, lengths: filled(x, lengths).mean(1), ROWS),
    "one row too many": (mean, lambda x, lengths: filled(x, lengths + 1).sum(1) / lengths[:, None], ROWS),
    "one row too few": (mean, lambda x, lengths: filled(x, lengths - 1).sum(1) / lengths[:, None], ROWS),
    "a sum that NaN makes 0": (mean, lambda x, lengths: (x.sum(1) / lengths[:, None]).nan_to_num(0.0), ROWS),
    "the last row of the memory": (last, lambda x, lengths: x[:, -1].clone(), ROWS),
    "sums from behind": (lambda x, lengths: later(filled(x, lengths)), lambda x, lengths: later(x), BOTH),
    "a softmax of zeros": (
        lambda x, lengths: filled(x, lengths, -torch.inf).softmax(1),
        lambda x, lengths: filled(x, lengths).softmax(1),
        BOTH,
    ),
    "a scale of all rows": (
        lambda x, lengths: filled(x, lengths).abs().amax((1, 2)),
        lambda x, lengths: x.nan_to_num(448.0).abs().amax((1, 2)),
        ROWS,
    ),
    "a vocabulary of zeros": (
        lambda x, widths: log_sums(x, widths, -torch.inf),
        lambda x, widths: log_sums(x, widths, 0.0),
        VOCABULARY,
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_padding_that_reaches_what_counts_is_found_and_its_twin_passes(
    name: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_cases(monkeypatch, "randn", "signs")
    right, wrong, said = TWINS[name]
    declare = verify.kernel(like=right, **{**said, "dtypes": ["float32"], "gradients": False, "name": "k"})
    for function, status in ((right, "ok"), (wrong, "wrong")):
        done = measure_kernel(declare(lambda *given, by=function: by(*given)), Measure("here.py::k"), backend)
        assert done.status == status, (done.status, done.message, [each.reason for each in done.results])
