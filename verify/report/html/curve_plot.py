"""Draws the error over the input: the largest error with its limit and PyTorch's own.

Every bin of the record gets the same width, because the record's bins are narrow where the op bends. If a reader points
at a bin or reaches it by keyboard, the page says its values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from verify.records.figure import ordered
from verify.records.record import Curve, value_of
from verify.report import words
from verify.report.html.plot import axis, bins_of, decades
from verify.truth import formats

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT = 560.0, 190.0
LEFT, TOP, BOTTOM = 44.0, 22.0, 150.0
FLOOR = -2.0  # errors below 0.01 ULP lie on the axis


def curve_svg(curve: Curve, limit: float, dtype: str, *, name: str) -> Markup:
    """Returns the whole plot. `name` begins the text alternative."""
    from markupsafe import Markup, escape

    if not any(curve.counts):
        return Markup("")
    errors = [value_of(item) for item in curve.max_ulp]
    baseline = [value_of(item) for item in curve.baseline]
    scale = _Scale([*errors, *baseline, limit])
    step = (WIDTH - LEFT) / len(errors)
    parts = [*scale.grid(), *_ticks(curve, step)]
    if baseline:
        parts.append(f'<path class="of-pytorch" d="{_steps(baseline, curve.counts, scale, step)}"/>')
    parts.append(f'<path class="of-kernel" d="{_steps(errors, curve.counts, scale, step)}"/>')
    over = [value if not value <= limit else math.nan for value in errors]
    if bad := _steps(over, [int(not math.isnan(item)) for item in over], scale, step):
        parts.append(f'<path class="bad" d="{bad}"/>')
    parts += _crosses(errors, curve.counts, step)
    y = scale.y(limit)
    parts.append(f'<path class="limit" d="M{LEFT:g} {y:.1f}H{WIDTH:g}"/>')
    parts.append(f'<text class="end over" x="{WIDTH:g}" y="{y - 4:.1f}">limit {words.decimal(limit)}</text>')
    worst = max(range(len(errors)), key=lambda at: ordered(errors[at]))
    label = f"Error against input of {name}: the largest error in each range of {words.clean(curve.operand)}. "
    label += f"Worst: {reading(curve, worst, dtype)}"
    data = f'data-from="{LEFT:g}" data-worst="{worst}" data-dtype="{escape(words.clean(dtype))}" {bins_of(curve)}'
    opening = f'<svg class="curve" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" {data}'
    return Markup(f'{opening} aria-label="{escape(label)}"><path class="cursor"/>{"".join(parts)}</svg>')


def reading(curve: Curve, place: int, dtype: str) -> str:
    """Describes one bin in words."""
    operand, bits = words.clean(curve.operand), words.clean(curve.worst[place])
    low, high = words.decimal(curve.edges[place]), words.decimal(curve.edges[place + 1])
    fmt = formats.FORMATS.get(dtype)
    decimal = ""
    if fmt is not None and len(bits) == 2 + fmt.bits // 4:
        decimal = f"{fmt.to_float(int(bits, 16)):.{17 if fmt.bits == 64 else 9}g} "
    text = f"{operand} from {low} to {high}: {words.ulp(curve.max_ulp[place])} ULP at {operand} = {decimal}({bits})"
    if curve.baseline:
        text += f", PyTorch {words.ulp(curve.baseline[place])} ULP"
    return f"{text}; {words.plural(curve.counts[place], 'input')}"


class _Scale:
    """Maps errors to a logarithmic axis from 0.01 ULP upwards. NaN and infinity lie in a lane above."""

    def __init__(self, values: Sequence[float]) -> None:
        finite = [value for value in values if math.isfinite(value) and value > 0]
        self.top = max(1.0, math.ceil(math.log10(max(finite, default=1.0)) + 0.05))

    def y(self, value: float) -> float:
        decade = math.log10(value) if value > 0 else FLOOR
        share = (min(max(decade, FLOOR), self.top) - FLOOR) / (self.top - FLOOR)
        return BOTTOM - share * (BOTTOM - TOP)

    def grid(self) -> list[str]:
        stride = 1 if self.top <= 2 else 2 if self.top <= 6 else 3
        half = f'<path class="half" d="M{LEFT:g} {self.y(0.5):.1f}H{WIDTH:g}"/>'
        return [half, *decades(range(int(FLOOR), int(self.top) + 1, stride), self.y, LEFT, WIDTH)]


def _steps(values: Sequence[float], counts: Sequence[int], scale: _Scale, step: float) -> str:
    return _stairs(
        [
            scale.y(value) if count and math.isfinite(value) else None
            for value, count in zip(values, counts, strict=True)
        ],
        LEFT,
        step,
    )


def _stairs(levels: Sequence[float | None], left: float, step: float) -> str:
    """Returns one path of horizontal pieces in whole pixels, joined where neighbours both have a level."""
    path: list[str] = []
    height: int | None = None
    for place, level in enumerate(levels):
        if level is None:
            height = None
            continue
        start, end = round(left + place * step), round(left + (place + 1) * step)
        if height == round(level):
            path[-1] = f"H{end}"
            continue
        path += [f"M{start} {round(level)}" if height is None else f"V{round(level)}", f"H{end}"]
        height = round(level)
    return "".join(path)


def _crosses(values: Sequence[float], counts: Sequence[int], step: float) -> list[str]:
    """Returns a cross in the lane above for every bin with NaN or infinity. Omits crosses that would overlap."""
    marks = []
    last = -math.inf
    for place, value in enumerate(values):
        x = LEFT + (place + 0.5) * step
        if counts[place] and not math.isfinite(value) and x - last >= 7:
            marks.append(f"M{x - 3:.1f} {TOP - 15:g}l6 6m0-6l-6 6")
            last = x
    if not marks:
        return []
    return [
        f'<path class="cross" d="{"".join(marks)}"/>',
        f'<text class="end" x="{LEFT - 5:g}" y="{TOP - 8:g}">NaN</text>',
    ]


def _ticks(curve: Curve, step: float) -> list[str]:
    """Returns the axis of the input: zero and whole numbers first, other numbers only if they are powers of two."""
    edges = [value_of(edge) for edge in curve.edges]

    def importance(place: int) -> tuple[float, float]:
        size = abs(edges[place])
        if size == 0:
            return (0, 0)
        if place in (0, len(edges) - 1):
            return (1, size)
        whole = size == int(size) and size < 1000
        return (2 if whole and math.log2(size).is_integer() else 3 if whole else 4, -size)

    def is_round(place: int) -> bool:
        return importance(place)[0] < 4 or math.log2(abs(edges[place])).is_integer()

    labels = [_edge(edge) if is_round(place) else "" for place, edge in enumerate(edges)]
    operand = f'<text x="{(LEFT + WIDTH) / 2:g}" y="{HEIGHT - 4:g}">{words.escaped(curve.operand)}</text>'
    return [*axis(labels, step, BOTTOM, importance), operand]


def _edge(value: float) -> str:
    """Returns for example 0, -5, 0.25, 2^-24 or -3e38."""
    size = abs(value)
    if size == 0 or 1e-2 <= size < 1000:
        return f"{value:g}"
    if math.log2(size).is_integer():
        return f"{'-' if value < 0 else ''}2^{int(math.log2(size))}"
    return f"{value:.1g}".replace("e+", "e")
