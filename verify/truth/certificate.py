"""Reads and writes certificates: measured error bounds of the fast references.

`verify certify` measures an entry for each op with its parameters, result and kind of device. The entry holds the
largest distance found between the float64 reference and the exact value, in units of 2^-53 * scale. `verify.truth.fast`
uses `SAFETY` times this distance as the bound. Sampling is no proof, so every run samples again and stops if an element
breaks the bound.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from verify.errors import UsageError
from verify.records.files import read_as, write_atomically

SAFETY = 4.0
FLOOR = 8.0  # least distance that an entry counts as, in units: the rounding of a few operations
SLACK = 2.0**-200  # absolute addition to the bound, far below half the smallest subnormal of float32 (2^-150)
UNCERTIFIED = 65_536.0  # units assumed without an entry: more elements are then evaluated exactly
SCHEMA = 1
TARGET_UNITS = 1e-6 * 2.0**30  # 1e-6 of a float32 ulp, in units of 2^-53 of the same scale


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured maximum."""

    op: str
    params: dict[str, Any]
    result: str
    device: str  # "cpu" or "sm_90" and the like
    units: float
    n: int
    seed: int
    torch: str
    worst: str  # the input with this distance


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All entries of a file."""

    schema: int
    entries: list[Entry]


def key(op: str, params: Mapping[str, Any], result: str, device: str) -> str:
    """Returns a string that identifies an entry. It leaves out numeric parameters such as eps."""
    named = tuple((k, v) for k, v in sorted(params.items()) if isinstance(v, str | bool))
    return f"{op}({_spelled(named)}).{result}@{device}"


@lru_cache
def _spelled(named: tuple[tuple[str, str | bool], ...]) -> str:
    return json.dumps(dict(named))


def load(path: Path) -> Certificate:
    """Reads a certificate from a file. Raises UsageError if the file is unreadable, malformed or of another schema."""
    certificate = read_as(path, Certificate, "certificate", "verify certify --certificate PATH writes a new one")
    if certificate.schema != SCHEMA:
        raise UsageError(f"{path} has certificate schema {certificate.schema}; this verify reads {SCHEMA}")
    return certificate


def save(certificate: Certificate, path: Path) -> None:
    """Writes a certificate, with the entries in a fixed order so that diffs are small."""
    entries = sorted(certificate.entries, key=lambda e: key(e.op, e.params, e.result, e.device))
    raw = msgspec.json.encode(Certificate(schema=SCHEMA, entries=entries), order="deterministic")
    write_atomically(path, msgspec.json.format(raw, indent=1) + b"\n")


def shipped_path() -> Path:
    """Returns the path of the certificate that is installed with the package."""
    return Path(str(resources.files("verify.truth") / "certificate.json"))


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Entry]:
    path = shipped_path()
    if not path.exists():
        return {}
    return {key(e.op, e.params, e.result, e.device): e for e in load(path).entries}


def units_for(op: str, params: Mapping[str, Any], result: str, device: str) -> tuple[float, str]:
    """Returns the bound in units of 2^-53 * scale, and a sentence about its origin."""
    entry = _shipped().get(key(op, params, result, device))
    if entry is None:
        return UNCERTIFIED, f"none for {op}.{result} on {device}: {UNCERTIFIED:.0f} units assumed"
    bound = SAFETY * max(entry.units, FLOOR)
    return (
        bound,
        f"{bound:.1f} units of 2^-53 scale ({device}, torch {entry.torch}, n = {entry.n:,})",
    )
