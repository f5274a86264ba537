"""Every rule of the intervals against Arb; a rule with a wrong constant is caught by the same check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.like_rules import check, names
from verify.ops.graph import spans
from verify.ops.graph.functions import FUNCTIONS


@pytest.mark.parametrize("name", names())
def test_a_rule_holds_what_arb_computes(name: str) -> None:
    for tame in (False, True):
        found = check(name, 1_000, 5, tame=tame)
        assert not found.violations, found.example
        assert found.undecided <= found.elements // 50
    assert found.tight is None or not len(found.tight) or float(found.tight.max()) < 1e7


def _function(name: str, **changes: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(FUNCTIONS, name, replace(FUNCTIONS[name], **changes))


def _constant(name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(spans, name, value)


def _exact(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, float]:
    return a * b, 0.0


MUTANTS: list[tuple[str, str, Callable[[pytest.MonkeyPatch], None]]] = [
    ("exp", "no error of the library", _function("exp", ulps=0.0)),
    ("log", "no error of the library", _function("log", ulps=0.0)),
    ("ndtr", "the error of the argument forgotten", _function("ndtr", ulps=1.0)),
    ("normal", "a wrong coefficient", _function("normal", torch=lambda x: torch.exp(x * x * -0.5) * 0.3989422804)),
    ("tanh", "not exact there", _function("tanh", exact=(0.0, 0.5))),
    ("sigmoid", "a bound too low", _function("sigmoid", codomain=(0.0, 0.99))),
    ("rsqrt", "ends not exchanged", _function("rsqrt", shape="up")),
    ("expm1", "another function in Arb", _function("expm1", arb=FUNCTIONS["exp"].arb)),
    ("lgamma", "a slope too flat", _function("lgamma", slope=lambda lo, hi: torch.digamma(lo).abs() / 2)),
    ("digamma", "no error beside its zero", _function("digamma", spread=0.0, ulps=1.0)),
    ("polygamma 1", "PyTorch's own", _function("polygamma 1", torch=lambda x: torch.polygamma(1, x))),
    ("i0", "ends not exchanged", _function("i0", shape="even down")),
    ("sum over a dimension", "no slack", _constant("_EPSILON", 0.0)),
    ("running", "no slack", _constant("_EPSILON", 0.0)),
    ("contract", "no radius of the factors", _constant("_radius", lambda a, middle: torch.zeros_like(middle))),
    ("contract", "no slack", _constant("_EPSILON", 0.0)),
    ("multiply", "products taken for exact", _constant("_product", _exact)),
    ("multiply", "nothing lost below the subnormals", _constant("_TINY", 0.0)),
    ("divide", "nothing lost below the subnormals", _constant("_TINY", 0.0)),
    (
        "square",
        "the end that is nearer to 0 forgotten",
        _constant("_touches_zero", lambda a: torch.zeros_like(a.lo) > 0),
    ),
    ("divide", "a divisor around 0", _constant("_touches_zero", lambda a: a.is_zero())),
]


@pytest.mark.parametrize(("name", "what", "change"), MUTANTS, ids=[f"{name}: {what}" for name, what, _ in MUTANTS])
def test_a_wrong_rule_is_caught(
    name: str, what: str, change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    found = check(name, 500, 5).violations or check(name, 4_000, 5).violations  # most are caught at once
    assert found, what
