"""Records and bounds in a few words, for the tests of gate, ratchet and compare."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from verify.records.bounds.committed import Acceptance, Book, Bound, Evidence
from verify.records.readings import Key
from verify.records.record import (
    RESULT_STATUSES,
    SCHEMA,
    UNPROVEN,
    Basis,
    Figures,
    Histogram,
    KernelRun,
    Origin,
    RegimeFigures,
    Result,
    Run,
    Worst,
    number,
)

HASH = "aa00aa00aa00"
OF_SOURCE = {"sweep": "5ee95ee95ee9", "hunt": "4a714a714a71"}  # what these try has hashes of its own
ALL = Basis("exhaustive", 65_536)
SEEN = Basis("observed", 40_960, 0)
PROVEN = Basis("certified", 4_096)
ORIGIN = Origin("accuracy.py::gelu", '{"dtype":"bfloat16"}', "y", 7)


def figures(value: float, *, scaled: float | None = None, n: int = 1000, nonfinite: int = 0, **more: Any) -> Figures:
    told = {
        "n": n,
        "max_ulp": number(value),
        "max_upper": number(value),
        "p999": 0.4,
        "mean": 0.2,
        "misrounded": 3,
        "undecided": 0,
        "nonfinite": nonfinite,
        "scaled_max": None if scaled is None else number(scaled),
        "scaled_upper": None if scaled is None else number(scaled),
    }
    return Figures(**{**told, **more})


def worst(value: float) -> Worst:
    return Worst((7,), {"x": "-4.34 (0xc08b)"}, "-0", "0x8000", "-3.04e-5", number(value), None, ORIGIN)


def result(
    value: float = 0.5,
    *,
    output: str = "y",
    dtype: str = "bfloat16",
    basis: Basis = ALL,
    gate: Any = "plain",
    source: Any = "run",
    properties: str = HASH,
    bits: str = "",
    status: Any = "",
    **regimes: float,
) -> Result:
    """A result whose regimes have these errors; without any, one regime named `all` has `value`."""
    named = regimes or {"all": value}

    def of(error: float, n: int) -> Figures:
        return figures(error, scaled=error if gate == "scaled" else None, n=n, misrounded=min(n, 3))

    top = max(named.values(), key=lambda item: (math.isnan(item), item))
    each = basis.n // len(named)
    sizes = [basis.n - each * (len(named) - 1), *[each] * (len(named) - 1)]
    return Result(
        output=output,
        dtype=dtype,
        basis=basis,
        gate=gate,
        limit=4.0,
        status=status or ("ok" if top <= 4.0 else "wrong"),
        reason="zeros would pass" if status in UNPROVEN else "",
        figures=of(top, basis.n),
        regimes=[
            RegimeFigures(
                name, None, None, of(error, n), worst=worst(error) if error == top or math.isnan(error) else None
            )
            for (name, error), n in zip(named.items(), sizes, strict=True)
        ],
        histogram=Histogram([-1.0, 0.0, 1.0], [1, basis.n - 1]),
        worst=[worst(top)],
        escalated=0,
        certificate="exact",
        source=source,
        properties=properties if properties != HASH or source == "run" else OF_SOURCE[source],
        **({"bits": bits} if bits else {}),
    )


def kernel(*results: Result, name: str = "gelu", status: Any = "", **more: Any) -> KernelRun:
    told = {
        "name": name,
        "target": f"accuracy.py::{name}",
        "op": "gelu",
        "params": {},
        "promise": "",
        "status": status or max((item.status for item in results), key=RESULT_STATUSES.index, default="ok"),
        "results": list(results),
    }
    return KernelRun(**{**told, **more})


def run(*kernels: KernelRun, arch: str = "sm_90", id: str = "0123456789ab", **more: Any) -> Run:
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "id": id,
        "created": "2026-11-20T10:00:00+00:00",
        "command": "verify run",
        "backend": "interpreter" if arch == "interpreter" else "cuda",
        "seed": 0,
        "profile": "default",
        "environment": {"arch": "absent" if arch == "interpreter" else arch, "commit": "c" * 40, "dirty": False},
        "kernels": list(kernels),
    }
    return Run(**{**told, **more})


def bound(
    value: float = 0.5,
    *,
    kernel: str = "gelu",
    output: str = "y",
    dtype: str = "bfloat16",
    regime: str = "all",
    arch: str = "sm_90",
    gate: str = "plain",
    basis: Basis = ALL,
    properties: dict[str, str] | None = None,
    accepted: tuple[Acceptance, ...] = (),
    **evidence: Any,
) -> Bound:
    told = Evidence(
        record="fedcba987654", commit="b" * 12, date="2026-10-01", source="run", measured=value, worst="x = 1 (0x3f80)"
    )
    return Bound(
        key=Key(arch, kernel, output, dtype, regime),
        value=value,
        gate=gate,
        basis=basis,
        reason="first measured",
        evidence=dataclasses.replace(told, **evidence),
        properties={"run": HASH} if properties is None else properties,
        accepted=accepted,
    )


def book(*bounds: Bound, folder: Path = Path("reports/bounds")) -> Book:
    return Book(folder, {item.key: item for item in bounds})
