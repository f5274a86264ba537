"""Draws the HTML report's strips, histograms and curves as inline SVG: an error on a log scale, signed errors, and the
error over the input.

This is pure geometry: it places the figures of the record. The page's style sheet has the colours, and what all strips
share, because a page may hold thousands of strips. In a curve every bin of the record gets the same width, because the
record's bins are narrow where the op bends. If a reader points at a bin or reaches it by keyboard, the page says its
values.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from verify.records.figure import ordered
from verify.records.record import Curve, Histogram, Number, value_of
from verify.report import words
from verify.truth import formats

if TYPE_CHECKING:
    from markupsafe import Markup


# The strip runs from 0.1 to 1e9 ULP. NaN and infinity lie in a separate lane at the right.
STRIP_WIDTH, STRIP_HEIGHT = 132, 14  # as in the style sheet
_FIRST, _LAST = -1.0, 9.0
_LANE = 118.0

WIDTH, HEIGHT = 560.0, 168.0
GUTTER = 44.0  # room left of the bars, for the counts
TOP, BASELINE = 14.0, 132.0


def strip_position(value: Number) -> float:
    """Returns the position of an error on the strip, in pixels from its left edge."""
    error = abs(value_of(value))
    if not math.isfinite(error):
        return (_LANE + STRIP_WIDTH) / 2
    decade = math.log10(error) if error > 0 else _FIRST
    share = (min(max(decade, _FIRST), _LAST) - _FIRST) / (_LAST - _FIRST)
    return round(4 + share * (_LANE - 10), 1)


def strip(maximum: Number, baseline: Number | None, limit: float | None, *, bad: bool) -> Markup:
    """Returns a line with a dot for the kernel's maximum, a ring for PyTorch's, and a tick at the limit."""
    from markupsafe import Markup

    marks, where = "", strip_position(maximum)
    if limit is not None:
        marks += f'<path class="limit" d="M{strip_position(limit):g} 1V{STRIP_HEIGHT - 1}"/>'
    if baseline is not None:
        marks += f'<circle class="of-pytorch" cx="{strip_position(baseline):g}"/>'
    if math.isfinite(value_of(maximum)):
        marks += f'<circle class="{"bad" if bad else "of-kernel"}" cx="{where:g}"/>'
    else:
        marks += f'<path class="cross" d="M{where - 3.5:g} {STRIP_HEIGHT / 2 - 3.5:g}l7 7m0-7l-7 7"/>'
    return Markup(f'<svg class="strip" aria-hidden="true">{marks}</svg>')


def bins_of(drawn: Curve | Histogram) -> str:
    """Returns the attribute with the values of a drawing. The page's script reads the text of a bin from it."""
    from markupsafe import escape

    text = json.dumps(msgspec.to_builtins(drawn), separators=(",", ":"))
    return f"data-bins='{str(escape(text)).replace('&#34;', chr(34))}'"


def histogram_svg(histogram: Histogram, *, name: str) -> Markup:
    """Returns signed errors in octave bins, with log counts. The band marks correctly rounded results.

    `name` ends the text alternative. If a reader points at a bin or reaches it by keyboard, the page says its values.
    """
    from markupsafe import Markup, escape

    edges, counts = histogram.edges, histogram.counts
    if not counts or not any(counts):
        return Markup('<p class="quiet">No errors were counted.</p>')
    step = (WIDTH - GUTTER) / len(counts)
    top = max(1, math.ceil(math.log10(max(counts) + 1)))
    unit = (BASELINE - TOP) / top
    stride = 1 if top <= 4 else 2 if top <= 7 else 3
    lines = decades(range(stride, top + 1, stride), lambda count: BASELINE - math.log10(count) * unit)
    inside = [GUTTER + index * step for index, edge in enumerate(edges) if abs(value_of(edge)) <= 0.5]
    band = f"M{inside[0]:.1f} {TOP:g}H{inside[-1]:.1f}V{BASELINE:g}H{inside[0]:.1f}z" if len(inside) > 1 else ""
    parts = [f'<path class="band" d="{band}"/>'] if band else []
    parts += [*lines, *_bars(histogram, step, unit), *_axis(edges, step)]
    label = f"Signed errors in ULP, logarithmic counts: {name}"
    box = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}"'
    data = f'data-from="{GUTTER:g}" data-worst="{len(counts) // 2}" {bins_of(histogram)}'
    opening = f'<svg class="histogram" {box} role="img" {data} aria-label="{escape(label)}">'
    return Markup(f'{opening}<path class="cursor"/>{"".join(parts)}</svg>')


def _bars(histogram: Histogram, step: float, unit: float) -> list[str]:
    """Returns all bars of one tone as one path of thick strokes, because a page may hold thousands of bars."""
    edges, counts = histogram.edges, histogram.counts
    drawn = {"rounded": "", "faithful": "", "beyond": ""}
    for index, count in enumerate(counts):
        if count:
            height = max(2.0, math.log10(count + 1) * unit)  # one error among 2^32 must be visible
            reach = max(abs(value_of(edges[index])), abs(value_of(edges[index + 1])))
            tone = "rounded" if reach <= 0.5 else "faithful" if reach <= 1 else "beyond"
            drawn[tone] += f"M{GUTTER + (index + 0.5) * step:.0f} {BASELINE:g}v-{height:.0f}"
    thick = f'stroke-width="{step - min(1.5, step / 6):.1f}"'
    return [f'<path class="{tone}" {thick} d="{bars}"/>' for tone, bars in drawn.items() if bars]


def _axis(edges: list[Number], step: float) -> list[str]:
    """Returns the axis of signed errors: zero first, then the halves, then outwards."""

    def importance(index: int) -> tuple[int, float]:
        size = abs(value_of(edges[index]))
        rank = 0 if size == 0 else 1 if size == 0.5 else 2 if index in (0, len(edges) - 1) else 3
        return (rank, size)

    y = HEIGHT - 4
    return [
        *axis([words.power(edge) for edge in edges], step, BASELINE, importance),
        f'<text class="start" x="{GUTTER:g}" y="{y:g}">got too small</text>',
        f'<text x="{(GUTTER + WIDTH) / 2:g}" y="{y:g}">error in ULP</text>',
        f'<text class="end" x="{WIDTH:g}" y="{y:g}">got too large</text>',
    ]


def axis(
    labels: Sequence[str], step: float, bottom: float, importance: Callable[[int], tuple[float, float]]
) -> list[str]:
    """Returns labels where they do not collide, the most important first, and the axis with a tick at each.

    A place without a label has no tick. From an importance of 3 on, a narrow page leaves a label out.
    """
    parts, ticks = [], [f"M{GUTTER:g} {bottom:g}H{WIDTH:g}"]
    taken: list[tuple[float, float]] = []
    for place in sorted(filter(lambda place: labels[place], range(len(labels))), key=importance):
        half, x = 3.4 * len(labels[place]) + 5, GUTTER + place * step
        anchor = "start" if place == 0 else "end" if place == len(labels) - 1 else "middle"
        centre = x + (half if anchor == "start" else -half if anchor == "end" else 0)
        if any(centre - half < right and centre + half > left for left, right in taken):
            continue
        taken.append((centre - half, centre + half))
        ticks.append(f"M{x:.1f} {bottom:g}v4")
        minor = " minor" if importance(place)[0] >= 3 else ""
        parts.append(f'<text class="{anchor}{minor}" x="{x:.1f}" y="{bottom + 16:g}">{labels[place]}</text>')
    return [*parts, f'<path class="axis" d="{"".join(ticks)}"/>']


def decades(exponents: range, y: Callable[[float], float]) -> list[str]:
    """Returns lines at powers of ten, each with its label at the left."""
    lines = []
    for decade in exponents:
        at, text = y(10.0**decade), f"{10.0**decade:g}" if decade < 5 else f"1e{decade}"
        lines.append(f'<path class="grid" d="M{GUTTER:g} {at:.1f}H{WIDTH:g}"/>')
        lines.append(f'<text class="end" x="{GUTTER - 5:g}" y="{at + 3.5:.1f}">{text}</text>')
    return lines


CURVE_HEIGHT, CURVE_TOP, CURVE_BOTTOM = 190.0, 22.0, 150.0
CURVE_FLOOR = -2.0  # errors below 0.01 ULP lie on the axis


def curve_svg(curve: Curve, limit: float, dtype: str, *, name: str) -> Markup:
    """Returns the whole plot. `name` begins the text alternative."""
    from markupsafe import Markup, escape

    if not any(curve.counts):
        return Markup("")
    errors = [value_of(item) for item in curve.max_ulp]
    baseline = [value_of(item) for item in curve.baseline]
    scale = _Scale([*errors, *baseline, limit])
    step = (WIDTH - GUTTER) / len(errors)
    parts = [*scale.grid(), *_ticks(curve, step)]
    if baseline:
        parts.append(f'<path class="of-pytorch" d="{_steps(baseline, curve.counts, scale, step)}"/>')
    parts.append(f'<path class="of-kernel" d="{_steps(errors, curve.counts, scale, step)}"/>')
    over = [value if not value <= limit else math.nan for value in errors]
    if bad := _steps(over, [int(not math.isnan(item)) for item in over], scale, step):
        parts.append(f'<path class="bad" d="{bad}"/>')
    parts += _crosses(errors, curve.counts, step)
    y = scale.y(limit)
    parts.append(f'<path class="limit" d="M{GUTTER:g} {y:.1f}H{WIDTH:g}"/>')
    parts.append(f'<text class="end over" x="{WIDTH:g}" y="{y - 4:.1f}">limit {words.decimal(limit)}</text>')
    worst = max(range(len(errors)), key=lambda at: ordered(errors[at]))
    label = f"Error against input of {name}: the largest error in each range of {words.clean(curve.operand)}. "
    label += f"Worst: {reading(curve, worst, dtype)}"
    data = f'data-from="{GUTTER:g}" data-worst="{worst}" data-dtype="{escape(words.clean(dtype))}" {bins_of(curve)}'
    opening = f'<svg class="curve" viewBox="0 0 {WIDTH:g} {CURVE_HEIGHT:g}" role="img" {data}'
    return Markup(f'{opening} aria-label="{escape(label)}"><path class="cursor"/>{"".join(parts)}</svg>')


def reading(curve: Curve, place: int, dtype: str) -> str:
    """Describes one bin in words."""
    operand, bits = words.clean(curve.operand), words.clean(curve.worst[place])
    low, high = words.decimal(curve.edges[place]), words.decimal(curve.edges[place + 1])
    decimal = ""
    if (fmt := formats.FORMATS.get(dtype)) is not None and len(bits) == 2 + fmt.bits // 4:
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
        decade = math.log10(value) if value > 0 else CURVE_FLOOR
        share = (min(max(decade, CURVE_FLOOR), self.top) - CURVE_FLOOR) / (self.top - CURVE_FLOOR)
        return CURVE_BOTTOM - share * (CURVE_BOTTOM - CURVE_TOP)

    def grid(self) -> list[str]:
        stride = 1 if self.top <= 2 else 2 if self.top <= 6 else 3
        half = f'<path class="half" d="M{GUTTER:g} {self.y(0.5):.1f}H{WIDTH:g}"/>'
        return [half, *decades(range(int(CURVE_FLOOR), int(self.top) + 1, stride), self.y)]


def _steps(values: Sequence[float], counts: Sequence[int], scale: _Scale, step: float) -> str:
    """Returns one path of horizontal pieces in whole pixels, joined where neighbours both have a level."""
    path: list[str] = []
    levels = [round(scale.y(v)) if n and math.isfinite(v) else None for v, n in zip(values, counts, strict=True)]
    for place, (before, level) in enumerate(itertools.pairwise([None, *levels])):
        start, end = round(GUTTER + place * step), round(GUTTER + (place + 1) * step)
        if level is not None and level == before:
            path[-1] = f"H{end}"
        elif level is not None:
            path += [f"M{start} {level}" if before is None else f"V{level}", f"H{end}"]
    return "".join(path)


def _crosses(values: Sequence[float], counts: Sequence[int], step: float) -> list[str]:
    """Returns a cross in the lane above for every bin with NaN or infinity. Omits crosses that would overlap."""
    marks, last = "", -math.inf
    for place, value in enumerate(values):
        x = GUTTER + (place + 0.5) * step
        if counts[place] and not math.isfinite(value) and x - last >= 7:
            marks += f"M{x - 3:.1f} {CURVE_TOP - 15:g}l6 6m0-6l-6 6"
            last = x
    name = f'<text class="end" x="{GUTTER - 5:g}" y="{CURVE_TOP - 8:g}">NaN</text>'
    return [f'<path class="cross" d="{marks}"/>', name] if marks else []


def _ticks(curve: Curve, step: float) -> list[str]:
    """Returns the axis of the input: zero and whole numbers first, other numbers only if they are powers of two."""
    from markupsafe import escape

    edges = [value_of(edge) for edge in curve.edges]

    def importance(place: int) -> tuple[float, float]:
        size = abs(edges[place])
        if size == 0:
            return (0, 0)
        if place in (0, len(edges) - 1):
            return (1, size)
        whole = size == int(size) and size < 1000
        return (2 if whole and math.log2(size).is_integer() else 3 if whole else 4, -size)

    round_ones = [importance(at)[0] < 4 or math.log2(abs(edge)).is_integer() for at, edge in enumerate(edges)]
    labels = [_edge(edge) if is_round else "" for edge, is_round in zip(edges, round_ones, strict=True)]
    name = escape(words.clean(curve.operand))
    operand = f'<text x="{(GUTTER + WIDTH) / 2:g}" y="{CURVE_HEIGHT - 4:g}">{name}</text>'
    return [*axis(labels, step, CURVE_BOTTOM, importance), operand]


def _edge(value: float) -> str:
    """Returns for example 0, -5, 0.25, 2^-24 or -3e38."""
    size = abs(value)
    if size == 0 or 1e-2 <= size < 1000:
        return f"{value:g}"
    if math.log2(size).is_integer():
        return f"{'-' if value < 0 else ''}2^{int(math.log2(size))}"
    return f"{value:.1g}".replace("e+", "e")
