"""The error bound of the fast reference: what `verify certify` measured, read back by `verify.truth.fast`.

A certificate states, for one op with its parameters, one result and one device kind, the largest distance
between the float64 reference and the exact value that was found, in units of 2^-53 * scale. The bound in
use is `SAFETY` times that (sampling is not proof; every run re-samples and stops if the bound breaks).
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
from verify.records.files import write_atomically

SAFETY = 4.0
FLOOR = 8.0  # no certificate claims less than this many units: the rounding of a few operations
SLACK = 2.0**-200  # absolute, far below half the smallest subnormal of float32 (2^-150)
UNCERTIFIED = 65_536.0  # units assumed where nobody measured: the verdict widens, escalation decides
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
    worst: str  # the input that gave it


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All entries that a file holds."""

    schema: int
    entries: list[Entry]


def key(op: str, params: Mapping[str, Any], result: str, device: str) -> str:
    """One string that identifies an entry. Numeric parameters such as eps do not enter."""
    named = tuple((k, v) for k, v in sorted(params.items()) if isinstance(v, str | bool))
    return f"{op}({_spelled(named)}).{result}@{device}"


@lru_cache
def _spelled(named: tuple[tuple[str, str | bool], ...]) -> str:
    return json.dumps(dict(named))


def load(path: Path) -> Certificate:
    """A certificate from a file, strictly."""
    try:
        certificate = msgspec.json.decode(path.read_bytes(), type=Certificate)
    except OSError as error:
        raise UsageError(f"cannot read the certificate {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is not a certificate: {error}",
            hint="verify certify --certificate PATH writes a new one",
        ) from error
    if certificate.schema != SCHEMA:
        raise UsageError(f"{path} has certificate schema {certificate.schema}; this verify reads {SCHEMA}")
    return certificate


def save(certificate: Certificate, path: Path) -> None:
    """Write a certificate: entries in a fixed order, so that a diff shows what changed."""
    entries = sorted(certificate.entries, key=lambda e: key(e.op, e.params, e.result, e.device))
    raw = msgspec.json.encode(Certificate(schema=SCHEMA, entries=entries), order="deterministic")
    write_atomically(path, msgspec.json.format(raw, indent=1) + b"\n")


def shipped_path() -> Path:
    """The certificate that is installed with the package."""
    return Path(str(resources.files("verify.truth") / "certificate.json"))


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Entry]:
    path = shipped_path()
    if not path.exists():
        return {}
    return {key(e.op, e.params, e.result, e.device): e for e in load(path).entries}


def units_for(op: str, params: Mapping[str, Any], result: str, device: str) -> tuple[float, str]:
    """The bound in units of 2^-53 * scale, and a sentence on what it rests on."""
    entry = _shipped().get(key(op, params, result, device))
    if entry is None:
        return UNCERTIFIED, f"none for {op}.{result} on {device}: {UNCERTIFIED:.0f} units assumed"
    bound = SAFETY * max(entry.units, FLOOR)
    return (
        bound,
        f"{bound:.1f} units of 2^-53 scale ({device}, torch {entry.torch}, n = {entry.n:,})",
    )
