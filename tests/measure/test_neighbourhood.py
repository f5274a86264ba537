"""Errors are compared with PyTorch's errors near the same input, and with no other."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from verify.measure.curve import Peaks, excess, peaks_of
from verify.truth.ulp import Errors

X = -torch.linspace(0.5, 8, 4001, dtype=torch.float64)


def peaks(errors: Tensor, apart: Tensor | None = None, x: Tensor = X) -> Peaks:
    none = torch.zeros(errors.shape, dtype=torch.bool)
    found = SimpleNamespace(least=[errors.abs()], nonfinite=none, nan=torch.isnan(errors))
    return peaks_of(cast(Errors, cast(Any, found)), x, none if apart is None else apart)


def test_an_error_is_excused_near_pytorchs_and_nowhere_else() -> None:
    """As gelu: PyTorch's error grows in the tail, to all of the number."""
    theirs = 1e7 * torch.exp(-((X + 6.0).clamp(min=0) ** 2))
    excused = peaks(torch.where(X < -5.5, 2e7, 1.0))
    assert excess(excused, peaks(theirs), 4.0) <= 4
    for wrong in (torch.full_like(X, 2e7), torch.where((X < -0.9) & (X > -1), 50.0, 1.0)):
        assert excess(peaks(wrong), peaks(theirs), 4.0) > 4
    assert excess(peaks(torch.full_like(X, 3.0)), peaks(theirs), 4.0) == 0, "nothing is beyond the limit"


def test_a_part_with_few_elements_of_pytorchs_is_widened() -> None:
    """PyTorch may be right by chance at the only element of a part."""
    theirs = torch.full_like(X, 100.0)
    theirs[::3] = 0.0
    few = torch.zeros(len(X), dtype=torch.bool)
    few[::100] = True
    assert excess(peaks(torch.full_like(X, 150.0)), peaks(theirs, ~few), 4.0) < 4


def test_a_number_that_is_nan_or_infinite_is_beyond_everything_but_an_infinite_error() -> None:
    bad = torch.ones_like(X)
    bad[7] = math.nan
    assert excess(peaks(bad), peaks(torch.ones_like(X)), 4.0) == math.inf
    worse = torch.full_like(X, math.inf)
    assert excess(peaks(bad), peaks(worse), 4.0) == 1.0
    assert excess(peaks(bad, torch.isnan(bad)), peaks(worse), 4.0) == 0.0
