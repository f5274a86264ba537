"""Tries one law on one kernel, small and derandomised, for the tests of the laws; and kernels that keep all laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import verify
from verify import backends
from verify.cases.strategies import Sizes
from verify.declare.declaration import Kernel
from verify.laws import registry
from verify.laws.engine import Profile, run_law
from verify.records.record import LawRun

DTYPES = ["float32", "float64"]
_SIZES = Sizes(elements=300, width=300, depth=64)
PROFILE = Profile("test", 4, {"small": _SIZES, "large": _SIZES}, shrink=False)


def silu_kernel(function: Callable[..., Any], **options: Any) -> Kernel:
    return verify.kernel(op="silu", dtypes=DTYPES, **options)(function)


def gated_kernel(function: Callable[..., Any]) -> Kernel:
    return verify.kernel(op="swiglu_split", dtypes=DTYPES)(function)


# In float64: torch's own float32 sigmoid gives an element other bits in a vector register than in the tail.


def silu(x):
    wide = x.double()
    return (wide * torch.sigmoid(wide)).to(x.dtype)


def layer_norm(x, weight, bias, *, eps):
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    return (centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight + bias).to(x.dtype)


def attempt(law: str, kernel: Kernel, dtype: str = "float32", profile: Profile = PROFILE) -> LawRun:
    """What the law says of the kernel."""
    return run_law(registry.get(law), kernel, dtype, backends.select(), profile, "here.py::it")


def holds(law: str, kernel: Kernel, dtype: str = "float32") -> None:
    """The law was tried, and holds."""
    found = attempt(law, kernel, dtype)
    assert found.status == "ok", (found.message, found.facts, found.case)
    assert found.cases > 0


def breaks(law: str, kernel: Kernel, rule: str, dtype: str = "float32") -> LawRun:
    """The law is broken, for this reason, with a case that replays."""
    found = attempt(law, kernel, dtype)
    assert found.status == "broken", (found.status, found.message)
    assert rule in found.message, (found.message, found.facts)
    assert found.origin is not None and found.origin.law == law and found.case == found.origin.case != ""
    return found


def skips(law: str, kernel: Kernel, reason: str, dtype: str = "float32") -> None:
    """The law does not apply, and says why."""
    found = attempt(law, kernel, dtype)
    assert found.status == "skipped" and reason in found.message, (found.status, found.message)
