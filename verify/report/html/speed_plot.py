"""Plots accuracy against speed: every implementation of one operation as a numbered point, fast left, exact below."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.records.figure import ordered
from verify.records.record import Number, value_of
from verify.records.recorded import judged
from verify.report import words
from verify.report.html.plot import decades
from verify.report.present import Facts

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT = 360.0, 210.0
LEFT, TOP, BOTTOM = 40.0, 12.0, 168.0


@dataclass(frozen=True)
class SpeedPoint:
    """Holds one implementation: its time and its worst error in the results of that pass."""

    kernel: str
    peer: bool
    wrong: bool
    milliseconds: float
    of_copy: float | None
    error: Number


@dataclass(frozen=True)
class Plot:
    """Holds the implementations of one operation in one dtype, direction and shape."""

    title: str
    points: list[SpeedPoint]
    drawing: Markup


def plots(facts: Facts) -> list[Plot]:
    """Returns one plot per operation, dtype and direction, at the largest shape that was timed."""
    groups: dict[tuple[str, str, str], dict[str, tuple[tuple[int, ...], SpeedPoint]]] = {}
    for each in facts.kernels:
        kernel = each.run
        for speed in kernel.speed:
            errors = [
                (judged(result.figures, result.gate).upper, result.status == "wrong")
                for result in kernel.results
                if result.dtype == speed.dtype and result.output.startswith("d") == (speed.direction == "backward")
            ]
            if not errors:
                continue
            error, _ = max(errors, key=lambda pair: ordered(value_of(pair[0])))
            wrong = any(bad for _, bad in errors) and not kernel.peer
            point = SpeedPoint(each.name, kernel.peer, wrong, speed.milliseconds, speed.of_copy, error)
            group = groups.setdefault((each.call, speed.dtype, speed.direction), {})
            before = group.get(kernel.target)
            if before is None or math.prod(before[0]) < math.prod(speed.shape):
                group[kernel.target] = (speed.shape, point)
    found = []
    for (call, dtype, direction), group in groups.items():
        shape = max((item[0] for item in group.values()), key=math.prod)
        points = sorted((point for at, point in group.values() if at == shape), key=lambda point: point.milliseconds)
        title = f"{call} {direction}, {words.clean(dtype)}, {' x '.join(map(str, shape))}"
        found.append(Plot(title, points, scatter(points, title)))
    return found


def scatter(points: list[SpeedPoint], title: str) -> Markup:
    """Draws time on a linear axis from zero, error on a logarithmic one, NaN and infinity at the top."""
    from markupsafe import Markup, escape

    # leaves room for the last number
    slowest = max((point.milliseconds for point in points), default=1.0) * 1.08 or 1.0
    finite = [value_of(point.error) for point in points if math.isfinite(value_of(point.error))]
    low = -1.0
    high = max(1.0, math.ceil(math.log10(max([*finite, 1.0])) + 0.05))

    def x(milliseconds: float) -> float:
        return LEFT + milliseconds / slowest * (WIDTH - LEFT - 8)

    def y(error: float) -> float:
        if not math.isfinite(error):
            return TOP + 2
        decade = min(max(math.log10(error) if error > 0 else low, low), high)
        return BOTTOM - (decade - low) / (high - low) * (BOTTOM - TOP - 14)

    parts = decades(range(int(low), int(high) + 1, 1 if high <= 3 else 2 if high <= 6 else 3), y, LEFT, WIDTH)
    ticks = [f"M{LEFT:g} {BOTTOM:g}H{WIDTH:g}"]
    for share in (0.0, 0.5, 1.0):
        at = slowest / 1.08 * share
        ticks.append(f"M{x(at):.1f} {BOTTOM:g}v4")
        parts.append(f'<text x="{x(at):.1f}" y="{BOTTOM + 16:g}">{at:.3g}</text>')
    parts.append(f'<path class="axis" d="{"".join(ticks)}"/>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2:g}" y="{HEIGHT - 4:g}">milliseconds</text>')
    parts.append(f'<text class="start" x="0" y="{TOP - 2:g}">ULP</text>')
    taken: list[tuple[float, float]] = []
    for number, point in enumerate(points, 1):
        tone = "bad" if point.wrong else "peer" if point.peer else "of-kernel"
        cx, cy = x(point.milliseconds), y(value_of(point.error))
        parts.append(f'<circle class="{tone}" cx="{cx:.1f}" cy="{cy:.1f}" r="5"/>')
        crowd = sum(abs(cx - left) < 12 and abs(cy - top) < 10 for left, top in taken)  # points that nearly coincide
        taken.append((cx, cy))
        parts.append(f'<text class="start number" x="{cx + 8 + 11 * crowd:.1f}" y="{cy + 3.5:.1f}">{number}</text>')
    listing = "; ".join(
        f"{point.kernel}: {point.milliseconds:.4g} ms, {words.ulp(point.error)} ULP" for point in points
    )
    label = escape(f"Accuracy against speed of {title}. {listing}")
    opening = f'<svg class="scatter" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{label}">'
    return Markup(f"{opening}{''.join(parts)}</svg>")
