"""Minimum, maximum and clamp: NaN and signed zeros in every float type."""

from __future__ import annotations

import math

import numpy as np
import pytest

from verify.backends.interpreter.casts import narrow, widen
from verify.backends.interpreter.minmax import clamp, maximum, minimum

TYPES = ["fp64", "fp32", "fp16", "bf16"]
VALUES = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-6, 3.0]


def reference(a: float, b: float, larger: bool, propagate: bool) -> float:
    """IEEE 754-2019 maximum / maximumNumber, written out."""
    if math.isnan(a) or math.isnan(b):
        return math.nan if propagate or (math.isnan(a) and math.isnan(b)) else (b if math.isnan(a) else a)
    if a == b:
        first = (math.copysign(1, a) > 0) == larger
        return a if first else b
    return max(a, b) if larger else min(a, b)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("propagate", [False, True])
def test_every_pair(name: str, propagate: bool) -> None:
    a, b = (narrow(g.ravel(), name) for g in np.meshgrid(np.array(VALUES), np.array(VALUES)))
    for function, larger in ((maximum, True), (minimum, False)):
        got = widen(function(a, b, name, propagate_nan=propagate), name).tolist()
        pairs = zip(widen(a, name).tolist(), widen(b, name).tolist(), strict=True)
        want = [reference(x, y, larger, propagate) for x, y in pairs]
        assert [str(g) for g in got] == [str(w) for w in want]  # str tells -0.0 from 0.0 and equates NaN


@pytest.mark.parametrize("name", TYPES)
def test_clamp(name: str) -> None:
    x, low, high = (narrow(np.array(v), name) for v in ([math.nan, 5.0, -5.0, 0.5], [-1.0] * 4, [2.0] * 4))
    assert widen(clamp(x, low, high, name, propagate_nan=False), name).tolist() == [
        -1.0,
        2.0,
        -1.0,
        0.5,
    ]
    assert str(widen(clamp(x, low, high, name, propagate_nan=True), name).tolist()) == "[nan, 2.0, -1.0, 0.5]"


def test_numpy_alone_would_not_do() -> None:
    """The reason for this module: numpy's answer depends on the order of the zeros."""
    zero, minus = np.array([0.0], np.float32), np.array([-0.0], np.float32)
    signs = {bool(np.signbit(np.fmin(a, b))[0]) for a, b in ((zero, minus), (minus, zero))}
    ours = {bool(np.signbit(minimum(a, b, "fp32", propagate_nan=False))[0]) for a, b in ((zero, minus), (minus, zero))}
    assert ours == {True}
    assert signs != {True}
