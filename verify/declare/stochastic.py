"""Checks stochastic= of a declaration, and gives limits to results that are rounded at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verify.errors import UsageError
from verify.ops.graph.shapes import NamedDims
from verify.ops.op import Op
from verify.records.record import DEMANDING, EXTREME, ORDINARY
from verify.truth.formats import named

# Either neighbour is right: one ULP, and up to 4 times the noise of the sum that is rounded.
STOCHASTIC_LIMIT, STOCHASTIC_NOISE = 1.25, 12.0
_HINT = 'stochastic="seed", with shapes={"x": "n", "seed": ""} and integers={"seed": "0 <= seed < 2**31"}'

OfDtypes = Mapping[str, Mapping[str, str]]


def stochastic_results(
    about: str, given: Any, op: Op, outputs: Sequence[str], dtypes: Sequence[str], others: OfDtypes
) -> dict[str, str]:
    """Maps each result that is rounded at random to the operand that is its seed.

    Raises UsageError if the seed is not one integer, or if the result has more than 16 bits.
    """
    if given is None:
        return {}
    numbers = [name for name in outputs if name not in op.integers]
    found = dict.fromkeys(numbers, given) if isinstance(given, str) else given
    if not isinstance(found, Mapping) or not found or not set(found) <= set(numbers):
        raise UsageError(
            f"{about}: stochastic maps outputs, {', '.join(numbers)}, to their seed; received {given!r}",
            hint='stochastic="seed" for all outputs, stochastic={"p_": "seed"} for one',
        )
    seeds = [each.name for each in op.operands if each.range is not None and not each.boolean]
    for seed in found.values():
        table = op.geometry.table if isinstance(op.geometry, NamedDims) else {}
        if seed not in seeds or table.get(seed) not in ((), (1,)):
            raise UsageError(f"{about}: a seed is an operand of one integer; received {seed!r}", hint=_HINT)
    for name, kind in _formats(found, dtypes, others):
        if kind is None or named(kind).bits > 16:
            raise UsageError(
                f"{about}: stochastic rounding is judged in formats of 16 bits or fewer; {name} has {kind or 'any'}",
                hint=f"dtypes=['bfloat16'], or output_dtypes={{{name!r}: 'bfloat16'}}",
            )
    return dict(found)


def stochastic_limits(
    results: Iterable[str], dtypes: Sequence[str], others: OfDtypes
) -> dict[str, dict[str, float | None]]:
    """Returns the limits of such results where none are declared, by result and dtype."""
    limits: dict[str, float | None] = {ORDINARY: STOCHASTIC_LIMIT, DEMANDING: STOCHASTIC_LIMIT, EXTREME: None}
    return {f"{name} {kind}": dict(limits) for name, kind in _formats(results, dtypes, others)}


def _formats(results: Iterable[str], dtypes: Sequence[str], others: OfDtypes) -> list[tuple[str, str | None]]:
    """Returns each result with its format, for each dtype of cases."""
    return [
        (name, others.get(dtype, {}).get(name, dtype if name == "y" else None)) for name in results for dtype in dtypes
    ]
