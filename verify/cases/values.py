"""Value recipes: named ways to fill a tensor, the same bits on every device.

Element recipes work on bit patterns of the dtype, so that every exponent, subnormals included, is reached.
Row recipes know the last dimension: large mean, constant row, one outlier. A recipe is a pure function of
(recipe, dtype, shape, seed, stream, landmarks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from verify.cases import counter
from verify.errors import UsageError
from verify.truth.formats import Format, torch_dtype
from verify.truth.ulp import from_bits

Shape = tuple[int, ...]

SMALL = 1 << 12  # elements up to which launching the operations takes a GPU longer than computing takes a CPU


def fill(
    recipe: str,
    fmt: Format,
    shape: Shape,
    *,
    seed: int,
    stream: str,
    landmarks: Sequence[float] = (),
    device: torch.device | str = "cpu",
    shared: bool = False,
) -> Tensor:
    """A tensor of a format filled by a recipe. `landmarks` are the op's boundaries, for "near" and "mixed".

    A small tensor is made on the CPU, to the same bits: there its many operations cost less than their launches.
    It is kept for a while, because a law builds one case several times. With `shared` it is what is kept itself, which
    nobody may write to.
    """
    if math.prod(shape) > SMALL:
        return _filled(recipe, fmt, shape, seed, stream, tuple(landmarks), torch.device(device))
    kept = _small(recipe, fmt, shape, seed, stream, tuple(landmarks))
    if shared:
        return kept
    # nothing waits for the copy: ordinary memory is read before the call returns, and nobody writes to what is kept
    return kept.to(device, copy=True, non_blocking=True)


@lru_cache(maxsize=64)
def _small(recipe: str, fmt: Format, shape: Shape, seed: int, stream: str, landmarks: tuple[float, ...]) -> Tensor:
    made = _filled(recipe, fmt, shape, seed, stream, landmarks, torch.device("cpu"))
    # in memory of its own, so that a copy of it is nothing else
    return made if made.untyped_storage().nbytes() == made.numel() * made.element_size() else made.clone()


def forget() -> None:
    """Make every tensor anew from here on: for whoever measures what making one costs."""
    _small.cache_clear()


def _filled(
    recipe: str, fmt: Format, shape: Shape, seed: int, stream: str, landmarks: Sequence[float], device: torch.device
) -> Tensor:
    count = math.prod(shape)
    if recipe in ELEMENT:
        return ELEMENT[recipe](fmt, count, seed, stream, landmarks, device).reshape(shape)
    if recipe in ROW:
        width = shape[-1] if shape else 1
        rows = count // width if width else 0
        values = ROW[recipe](rows, width, seed, stream, device)
        limit = float(fmt.max_finite)
        return values.clamp(-limit, limit).to(torch_dtype(fmt)).reshape(shape)
    known = ", ".join(sorted([*ELEMENT, *ROW]))
    raise UsageError(f"unknown value recipe {recipe!r}; the recipes are: {known}")


# -- element recipes: (format, count, seed, stream, landmarks, device) -> flat tensor ------------------


def special_patterns(fmt: Format) -> list[int]:
    """Every kind of special value: zeros, subnormal ends, normal ends, one, infinities, NaN; both signs."""
    positive = [
        0,
        1,
        2,
        (1 << fmt.mantissa_bits) - 1,
        1 << fmt.mantissa_bits,
        fmt.from_float(1.0) - 1,
        fmt.from_float(1.0),
        fmt.from_float(1.0) + 1,
        fmt.max_bits - 1,
        fmt.max_bits,
    ]
    if fmt.has_inf:
        positive.append(fmt.inf_bits)
    return [*positive, *(bits | fmt.sign_bit for bits in positive), fmt.nan_bits]


def landmark_patterns(fmt: Format, landmarks: Sequence[float], reach: int = 4) -> list[int]:
    """The patterns within `reach` steps of each landmark."""
    return [
        fmt.from_ordinal(min(max(centre + step, -fmt.max_bits), fmt.max_bits))
        for centre in _ordinals(fmt, tuple(landmarks))
        for step in range(-reach, reach + 1)
    ]


@lru_cache
def _ordinals(fmt: Format, landmarks: tuple[float, ...]) -> tuple[int, ...]:
    """Where the landmarks that a format can hold lie among its numbers: rationals, the same for every case."""
    held = [x for x in landmarks if math.isfinite(x) and abs(x) <= fmt.max_finite]
    return tuple(fmt.ordinal(fmt.round(Fraction(x))) for x in held)


def _patterns(
    fmt: Format,
    count: int,
    seed: int,
    stream: str,
    landmarks: Sequence[float],
    device: torch.device,
) -> Tensor:
    bits = torch.arange(count, dtype=torch.int64, device=device)
    return from_bits(bits % (1 << min(fmt.bits, 62)), fmt)


def _bits(
    fmt: Format,
    count: int,
    seed: int,
    stream: str,
    landmarks: Sequence[float],
    device: torch.device,
) -> Tensor:
    words = counter.words(seed, stream, count, device=device)
    return from_bits(words if fmt.bits == 64 else (words >> 7) & ((1 << fmt.bits) - 1), fmt)


def _active(
    fmt: Format,
    count: int,
    seed: int,
    stream: str,
    landmarks: Sequence[float],
    device: torch.device,
) -> Tensor:
    """Log-uniform magnitudes over 2^-20 .. 2^7, where activation functions bend."""
    low = fmt.from_float(2.0**-20) if fmt.value(1) < Fraction(2) ** -20 else 1
    high = fmt.from_float(min(128.0, float(fmt.max_finite)))
    offset = counter.below(seed, stream, count, min(high - low, 1 << 31), device=device)
    if high - low >= 1 << 31:
        offset = offset * ((high - low) >> 31)
    sign = counter.below(seed, f"{stream}/sign", count, 2, device=device)
    return from_bits(_signed(offset + low, sign == 1, fmt), fmt)


def _near(
    fmt: Format,
    count: int,
    seed: int,
    stream: str,
    landmarks: Sequence[float],
    device: torch.device,
) -> Tensor:
    """Around the landmarks, at distances spread log-uniformly over half the mantissa."""
    ordinals = _ordinals(fmt, tuple(landmarks)) or (0,)
    centres = torch.tensor(ordinals, dtype=torch.int64, device=device)
    which = counter.below(seed, stream, count, len(ordinals), device=device)
    octave = counter.below(seed, f"{stream}/octave", count, max(fmt.mantissa_bits - 2, 2), device=device)
    one = torch.ones_like(octave)
    span = torch.bitwise_left_shift(one, octave)
    within = counter.below(seed, f"{stream}/within", count, 1 << 31, device=device) % span
    distance = span - 1 + within
    away = counter.below(seed, f"{stream}/side", count, 2, device=device) * 2 - 1
    ordinal = (centres[which] + away * distance).clamp(-fmt.max_bits, fmt.max_bits)
    return from_bits(_signed(ordinal.abs(), ordinal < 0, fmt), fmt)


def _signed(magnitude: Tensor, negative: Tensor, fmt: Format) -> Tensor:
    """Patterns with the sign bit set where `negative`: float8 has no arithmetic to negate with."""
    sign = -(1 << 63) if fmt.bits == 64 else fmt.sign_bit
    return torch.where(negative, magnitude | sign, magnitude)


def _normal(
    fmt: Format,
    count: int,
    seed: int,
    stream: str,
    landmarks: Sequence[float],
    device: torch.device,
) -> Tensor:
    return counter.bell(seed, stream, count, device=device).to(torch_dtype(fmt))


def _mixed(
    fmt: Format,
    count: int,
    seed: int,
    stream: str,
    landmarks: Sequence[float],
    device: torch.device,
) -> Tensor:
    """Specials and landmark neighbours first, then bit patterns, active range, landmarks, normal in turn."""
    head = from_bits(torch.tensor(_heads(fmt, tuple(landmarks)), dtype=torch.int64, device=device), fmt)[:count]
    rest = count - head.numel()
    quarter = -(-rest // 4)
    parts = [
        maker(fmt, quarter, seed, f"{stream}/{name}", landmarks, device)
        for name, maker in (
            ("bits", _bits),
            ("active", _active),
            ("near", _near),
            ("normal", _normal),
        )
    ]
    body = torch.stack([part.reshape(-1) for part in parts], dim=1).reshape(-1)[:rest]
    return torch.cat([head, body])


@lru_cache
def _heads(fmt: Format, landmarks: tuple[float, ...]) -> tuple[int, ...]:
    """The special patterns and those around the landmarks, as signed integers."""
    return tuple(map(fmt.signed, [*special_patterns(fmt), *landmark_patterns(fmt, landmarks)]))


def _shuffled(
    fmt: Format,
    count: int,
    seed: int,
    stream: str,
    landmarks: Sequence[float],
    device: torch.device,
) -> Tensor:
    """The "mixed" values in an order of their own, so that two operands do not march in step."""
    values = _mixed(fmt, count, seed, stream, landmarks, device)
    order = torch.argsort(counter.words(seed, f"{stream}/order", count, device=device), stable=True)
    return values[order]


def _ones(
    fmt: Format,
    count: int,
    seed: int,
    stream: str,
    landmarks: Sequence[float],
    device: torch.device,
) -> Tensor:
    return torch.ones(count, dtype=torch_dtype(fmt), device=device)


ElementRecipe = Callable[[Format, int, int, str, Sequence[float], torch.device], Tensor]

ELEMENT: dict[str, ElementRecipe] = {
    "patterns": _patterns,
    "bits": _bits,
    "active": _active,
    "near": _near,
    "normal": _normal,
    "mixed": _mixed,
    "shuffled": _shuffled,
    "ones": _ones,
}


# -- row recipes: (rows, width, seed, stream, device) -> float64 (rows, width) -------------------------


def _bell_rows(rows: int, width: int, seed: int, stream: str, device: torch.device) -> Tensor:
    return counter.bell(seed, stream, rows * width, device=device).reshape(rows, width)


def _offset(by: float) -> RowRecipe:
    def recipe(rows: int, width: int, seed: int, stream: str, device: torch.device) -> Tensor:
        return _bell_rows(rows, width, seed, stream, device) + by

    return recipe


def _times(by: float) -> RowRecipe:
    def recipe(rows: int, width: int, seed: int, stream: str, device: torch.device) -> Tensor:
        return _bell_rows(rows, width, seed, stream, device) * by

    return recipe


def _constant(rows: int, width: int, seed: int, stream: str, device: torch.device) -> Tensor:
    level = counter.uniform(seed, stream, rows, device=device) * 2000.0 - 1000.0
    return level[:, None].expand(rows, width).clone()


def _outlier(rows: int, width: int, seed: int, stream: str, device: torch.device) -> Tensor:
    values = _bell_rows(rows, width, seed, stream, device)
    if width:
        place = counter.below(seed, f"{stream}/place", rows, width, device=device)
        values[torch.arange(rows, device=device), place] = 1.0e4
    return values


def _alternating(rows: int, width: int, seed: int, stream: str, device: torch.device) -> Tensor:
    sign = 1.0 - 2.0 * (torch.arange(width, device=device) % 2).double()
    level = counter.uniform(seed, stream, rows, device=device) + 0.5
    return level[:, None] * sign[None, :]


def _ramp(rows: int, width: int, seed: int, stream: str, device: torch.device) -> Tensor:
    step = counter.uniform(seed, stream, rows, device=device)[:, None] + 0.5
    return step * torch.arange(width, device=device).double()[None, :]


def _spread(rows: int, width: int, seed: int, stream: str, device: torch.device) -> Tensor:
    """Exponents spread over 2^-20 .. 2^20 within one row."""
    values = _bell_rows(rows, width, seed, stream, device)
    exponent = counter.below(seed, f"{stream}/exponent", rows * width, 41, device=device) - 20
    power = ((exponent + 1023) << 52).view(torch.float64).reshape(rows, width)
    return values * power


def _nearly_constant(rows: int, width: int, seed: int, stream: str, device: torch.device) -> Tensor:
    return _bell_rows(rows, width, seed, stream, device) * 2.0**-9 + 1000.0


RowRecipe = Callable[[int, int, int, str, torch.device], Tensor]

ROW: dict[str, RowRecipe] = {
    "randn": _bell_rows,
    "mean 1e3": _offset(1.0e3),
    "mean 1e4": _offset(1.0e4),
    "constant": _constant,
    "nearly constant": _nearly_constant,
    "outlier": _outlier,
    "alternating": _alternating,
    "ramp": _ramp,
    "spread": _spread,
    "tiny 1e-20": _times(1.0e-20),
    "tiny 1e-38": _times(1.0e-38),
    "huge 1e30": _times(1.0e30),
    "around one": lambda rows, width, seed, stream, device: _bell_rows(rows, width, seed, stream, device) * 0.25 + 1.0,
    "around zero": _times(0.25),
}
