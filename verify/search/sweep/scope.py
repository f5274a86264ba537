"""Makes the space of a sweep from a kernel and the user's options, or says why there is none."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal

from verify.declare.declaration import Kernel
from verify.declare.promises import differing
from verify.errors import UsageError
from verify.measure.curve import edges_for
from verify.ops.geometry import Params
from verify.ops.op import Op
from verify.records.readings import APART, BEYOND, NONFINITE
from verify.records.record import CLASSES, EXTREME
from verify.search.sweep.space import PAIR_BITS, Space, finite_keys, key_of_bits, key_of_value
from verify.truth.formats import Format, named


def shape_of(op: Op) -> Literal["unary", "pairs", "packed pairs"] | None:
    """Returns how an op's inputs can be enumerated. None: they cannot."""
    if not op.geometry.by_element or op.gate != "plain":
        return None
    if len(op.operands) == 1:
        return "packed pairs" if op.geometry.packed else "unary"
    return "pairs" if len(op.operands) == 2 else None


def apart(kernel: Kernel, dtype: str) -> dict[str, str]:
    """Maps each operand whose dtype differs from the case's to that dtype. Such operands have no common order."""
    return differing(dtype, kernel.operand_dtypes.get(dtype, {}))


def space_of(
    kernel: Kernel,
    target: str,
    dtype: str,
    *,
    results: tuple[str, ...] = (),
    bounds: tuple[float, float] | tuple[int, int] | str | None = None,
    baseline: bool = False,
    hardest: int = 0,
) -> Space:
    """Returns the space of one kernel in one dtype.

    `bounds` are values, both included, or keys (as ints, half-open), or the name of a regime.
    """
    shape, fmt = shape_of(kernel.op), named(dtype)
    who, again = f"kernel {kernel.name!r}", f"verify sweep {shlex.quote(target)}"
    elsewhere = f"verify run {shlex.quote(target)}"
    if shape is None:
        raise UsageError(
            f"a sweep enumerates the inputs of elementwise ops judged by the plain error; {who} computes "
            f"{kernel.op.name}, which is not one",
            hint=elsewhere,
        )
    if mixed := apart(kernel, dtype):
        said = ", ".join(f"{name} as {item}" for name, item in mixed.items())
        raise UsageError(
            f"a sweep enumerates kernels of one dtype; {who} has {said} beside {dtype}",
            hint=f"{elsewhere} --dtype {dtype}",
        )
    if dtype not in kernel.dtypes:
        raise undeclared(kernel, target, [dtype])
    if fmt.bits > (32 if shape == "unary" else PAIR_BITS):
        what = f"2^{fmt.bits}" if shape == "unary" else f"2^{2 * fmt.bits}"
        raise UsageError(
            f"{who} in {dtype} has {what} inputs, too many to enumerate", hint=f"{elsewhere} --dtype {dtype}"
        )
    known = tuple(name for name in kernel.outputs) + tuple("d" + operand.name for operand in kernel.differentiable)
    for name in results:
        if name not in known:
            raise UsageError(
                f"{who} has results {', '.join(known)}; received {name!r}", hint=f"{again} --result {known[0]}"
            )
    if shape != "unary" and fmt.bits != PAIR_BITS:
        raise UsageError(
            f"{who} has two operands, whose pairs are enumerated in 16-bit dtypes; received {dtype}",
            hint=f"{elsewhere} --dtype {dtype}",
        )
    if hardest and shape != "unary":
        raise UsageError(
            f"the hardest inputs are listed for unary ops, as a pair's product ties trivially; {who} has two operands",
            hint=f"{again} --pairs",
        )
    start, stop = 0, 1 << fmt.bits
    if isinstance(bounds, str):
        start, stop = _regime_keys(kernel, fmt, bounds, again)
    elif bounds is not None and all(isinstance(bound, int) for bound in bounds):
        start, stop = int(bounds[0]), int(bounds[1])
    elif bounds is not None:
        start, stop = key_of_value(fmt, bounds[0]), key_of_value(fmt, bounds[1], above=True)
    if not 0 <= start < stop <= 1 << fmt.bits:
        asked = f"the regime {bounds!r}" if isinstance(bounds, str) else "the requested range"
        raise UsageError(f"{who}: {dtype} has no number in {asked}", hint=f"{again} --dtype {dtype} --range=-1:1")
    return Space(
        target=target,
        dtype=fmt.name,
        results=results or known,
        shape=shape,
        start=start,
        stop=stop,
        baseline=baseline and not kernel.peer,
        hardest=hardest,
        regime=bounds if isinstance(bounds, str) else "",
    )


def undeclared(kernel: Kernel, target: str, received: Sequence[str]) -> UsageError:
    """Returns the error about undeclared dtypes. Its hint names the first declared dtype that can be swept."""
    most = 32 if shape_of(kernel.op) == "unary" else PAIR_BITS
    declared, where = ", ".join(kernel.dtypes), shlex.quote(target)
    able = next((name for name in kernel.dtypes if named(name).bits <= most), None)
    return UsageError(
        f"kernel {kernel.name!r} declares {declared}; received {', '.join(received)}",
        hint=f"verify run {where}" if able is None else f"verify sweep {where} --dtype {able}",
    )


def _regime_keys(kernel: Kernel, fmt: Format, name: str, again: str) -> tuple[int, int]:
    """Returns the keys of a regime. Raises UsageError if the op has no such regime."""
    regimes = kernel.op.landmarks.regimes(kernel.op.resolve(kernel.params))
    for regime in regimes:
        if regime.name == name:
            return finite_keys(fmt, regime.low, regime.high)
    known = ", ".join(repr(regime.name) for regime in regimes) or "none"
    raise UsageError(
        f"kernel {kernel.name!r}: op {kernel.op.name!r} has regimes {known}; received {name!r}",
        hint=f"{again} --regime {shlex.quote(regimes[0].name)}" if regimes else again,
    )


def parts_of(regimes: Sequence[str]) -> list[str]:
    """Returns the separately counted parts of a result: each regime with each class, then the special parts."""
    return [*(part_named(regime, name) for regime in regimes for name in CLASSES), NONFINITE, BEYOND]


def part_named(regime: str, of_class: str) -> str:
    """Returns the name of a part in a partial result."""
    return regime if regime in APART else f"{regime}: {of_class}"


def part_of(name: str) -> tuple[str, str]:
    """Returns the regime and the class of a part."""
    if name in APART:
        return name, EXTREME if name == NONFINITE else ""
    regime, _, of_class = name.rpartition(": ")
    return regime, of_class


def curve_keys(op: Op, params: Params, fmt: Format) -> list[int]:
    """Returns the keys at which the bins of the error curve begin, and the key that ends the last bin."""
    edges = edges_for(op, params, fmt)
    return [key_of_value(fmt, edge) for edge in edges[:-1]] + [key_of_bits(fmt, fmt.max_bits) + 1]
