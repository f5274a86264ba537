"""Every rule of the intervals against Arb: python -m benchmarks.like_rules docs/like-tables.md [--rules exp log]

Intervals hold numbers of all exponents, subnormal ones, numbers beside overflow and beside kinks; half of them are
single numbers, the others narrow or wide. From each a number is drawn, and what Arb makes of the numbers must lie in
the interval that the rule makes of the intervals. A page gets the table between its marks.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flint
import numpy as np
import torch

from verify.ops.elements import arb_bits
from verify.ops.graph.arithmetic import Balls
from verify.ops.graph.elementwise import ELEMENTWISE, LOGIC, REMAINS, Map
from verify.ops.graph.functions import FUNCTIONS
from verify.ops.graph.reducing import Contract, Reduce, Running, Spread
from verify.ops.graph.spans import Span, point
from verify.ops.graph.steps import ABSENT, Leaf, Plain, Run, Step

BITS = (128, 2_600)  # the second tells where a wave stands at 2^1023
CHUNK = 1 << 13
BESIDE = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 8.3, 27.2, 37.5, 38.5, 88.7, 128.0, 708.4, 709.78, 745.13, 1022.0]
BESIDE += [math.pi * n / 2 for n in (1, 2, 3, 7)]
BESIDE += [2.0**52, 2.0**53 - 1, 1.7976931348623157e308, 2.0**-1074, 2.0**-1022]
WIDTH = {"sum": 7, "product": 4, "amax": 4, "amin": 4, "any": 4}
CONDITIONS = (*LOGIC, "not")


@dataclass
class Found:
    """What a rule was seen to do: `tight` are widths in 2^-52 of the scale, of single numbers."""

    elements: int = 0
    violations: int = 0
    undecided: int = 0
    tight: Any = None
    example: str = ""

    def __add__(self, other: Found) -> Found:
        kept = [each for each in (self.tight, other.tight) if each is not None]
        return Found(
            self.elements + other.elements,
            self.violations + other.violations,
            self.undecided + other.undecided,
            np.concatenate(kept) if kept else None,
            self.example or other.example,
        )


def names() -> list[str]:
    """Every rule but decisions, which are recorded and not evaluated again."""
    real = Leaf((1,), name="x")
    of_maps = [
        name
        for name in (*FUNCTIONS, *ELEMENTWISE)
        if name in REMAINS or not Map((1,), (real,) * 2, function=name).decides
    ]
    return [*of_maps, "square", *(f"{name} over a dimension" for name in WIDTH), "contract", "spread", "running"]


def step_of(name: str, count: int, generator: np.random.Generator) -> Step:
    """A step that has some `count` results of one rule."""

    def real(*shape: int) -> Leaf:
        return Leaf(shape, name="x")

    def truth(*shape: int) -> Leaf:
        return Leaf(shape, (), False, name="x")

    rows = max(count // 4, 1)
    if name in FUNCTIONS:
        return Map((count,), (real(count),), function=name)
    if name == "square":
        x = real(count)
        return Map((count,), (x, x), function="multiply")
    if name in ELEMENTWISE:
        kinds = {"not": [truth], "number": [truth], "where": [truth, real, real]}.get(name) or (
            [truth, truth] if name in CONDITIONS else [real] * _arity(name)
        )
        return Map((count,), tuple(kind(count) for kind in kinds), name not in CONDITIONS, function=name)
    if name.endswith(" over a dimension"):
        function = name.removesuffix(" over a dimension")
        shape = (count, WIDTH[function])
        kind = truth if function == "any" else real
        return Reduce((count,), (kind(*shape),), function != "any", function=function, dims=(1,))
    if name == "contract":
        batch = max(count // 9, 1)
        return Contract((batch, 3, 3), (real(batch, 3, 5), real(batch, 5, 3)))
    if name == "spread":
        where = torch.from_numpy(generator.integers(-1, count, 3 * count))
        by = Plain((3 * count,), (), False, compute=lambda given: where)
        return Spread((count,), (real(3 * count), real(count)), places=lambda fixed: fixed[0], by=(by,))
    assert name == "running", name
    return Running((rows, 4), (real(rows, 4),), dim=1)


def _arity(name: str) -> int:
    return 1 if name in ("negative", "magnitude", "wrap") else 2


def numbers(count: int, generator: np.random.Generator, tame: bool) -> Any:
    """Ordinary numbers; unless `tame` also those that are hard, infinities and NaN."""
    plain = generator.standard_normal(count) * generator.choice([0.1, 1.0, 10.0, 100.0], count)
    if tame:
        return plain
    sign = generator.choice([-1.0, 1.0], count)
    with np.errstate(all="ignore"):
        wild = sign * np.ldexp(generator.uniform(0.5, 1, count), generator.integers(-1074, 1025, count))
        edge = sign * generator.choice(BESIDE, count)
        edge = edge * (1 + generator.integers(-4, 5, count) * 2.0**-52)
        small = sign * np.ldexp(generator.uniform(0.5, 1, count), generator.integers(-1074, -1000, count))
    special = generator.choice([math.inf, -math.inf, math.nan, 0.0, -0.0], count)
    return np.choose(generator.choice(5, count, p=[0.34, 0.3, 0.25, 0.08, 0.03]), [plain, wild, edge, small, special])


def given(step: Step, kind: str, generator: np.random.Generator, tame: bool) -> tuple[list[Any], list[Any]]:
    """For each input what a rule gets, and numbers inside."""
    spans: list[Any] = []
    picks: list[Any] = []
    known: dict[int, int] = {}
    for place, each in enumerate(step.inputs):
        if id(each) in known:
            spans.append(spans[known[id(each)]])
            picks.append(picks[known[id(each)]])
            continue
        known[id(each)] = place
        count = math.prod(each.shape)
        if not each.real:
            value = torch.from_numpy(generator.random(count) < 0.5)
            spans.append(value.reshape(each.shape))
            picks.append(value.numpy())
            continue
        values = numbers(count, generator, tame)
        if place and spans and kind == "point" and isinstance(step, Map) and not tame:
            other = picks[0] if picks[0].dtype == np.float64 else values
            near = generator.choice([-1.0, 1.0, 1 + 2.0**-52, -1 + 2.0**-53], count)
            with np.errstate(all="ignore"):
                values = np.where(generator.random(count) < 0.3, other * near, values)
        whole = isinstance(step, Map) and step.function == "wrap"
        if whole:
            values = np.round(np.clip(np.nan_to_num(values), -1e15, 1e15))
        lo = hi = values
        if kind != "point":
            with np.errstate(all="ignore"):
                other = (
                    numbers(count, generator, tame) if kind == "wide" else values * (1 + generator.random(count) * 1e-9)
                )
                other = np.where(np.isfinite(values) & np.isfinite(other), other, values)
                lo, hi = np.minimum(values, other), np.maximum(values, other)
                inside = lo * (1 - (share := generator.random(count))) + hi * share
                values = np.choose(generator.choice(3, count), [lo, hi, np.clip(inside, lo, hi)])
            if whole:
                lo, hi, values = np.floor(lo), np.ceil(hi), np.round(values)
        ends = [torch.from_numpy(np.array(end)).reshape(each.shape) for end in (lo, hi)]
        spans.append(point(ends[0]) if kind == "point" else Span(ends[0], ends[1]))
        picks.append(values)
    return spans, picks


def check(name: str, count: int, seed: int, *, tame: bool = False, device: str = "cpu") -> Found:
    """Some `count` elements of one rule, whose intervals are made on a device."""
    generator = np.random.default_rng([seed, *name.encode()])
    found = Found()
    for kind, share in (("point", 2), ("narrow", 4), ("wide", 4)):
        step = step_of(name, max(count // share, 1), generator)
        spans, picks = given(step, kind, generator, tame)
        found = found + _checked(step, [_moved(span, device) for span in spans], picks, kind, device)
    return found


def _moved(span: Any, device: str) -> Any:
    if isinstance(span, torch.Tensor):
        return span.to(device)
    lo = span.lo.to(device)
    return Span(lo, lo if span.is_point else span.hi.to(device))


def _checked(step: Step, spans: Sequence[Any], picks: Sequence[Any], kind: str, device: str) -> Found:
    there = Run({}, torch.device(device))
    made = _moved(step.span(there, spans), "cpu")
    run = Run({}, torch.device("cpu"), there.decisions)
    size = math.prod(step.shape)
    if isinstance(made, torch.Tensor):
        shown = made.expand(step.shape).reshape(-1).tolist()
        values = _values(step, run, picks, np.arange(size), BITS[0])
        wrong = [at for at in range(size) if values[at] != shown[at]]
        example = _told(step, picks, wrong[0], values[wrong[0]], shown[wrong[0]]) if wrong else ""
        return Found(size, len(wrong), 0, None, example)
    lo, hi = (end.expand(step.shape).reshape(-1).numpy() for end in (made.lo, made.hi))
    values = _values(step, run, picks, np.arange(size), BITS[0])
    near = np.array([math.nan if isinstance(v, float) or not v.is_finite() else float(v) for v in values])
    with np.errstate(all="ignore"):
        sure = (np.nextafter(near, -math.inf) >= lo) & (np.nextafter(near, math.inf) <= hi)
    found = Found(size)
    for at in np.flatnonzero(~sure).tolist():
        value = values[at]
        inside = _inside(value, lo[at], hi[at])
        if inside is None:
            value = _values(step, run, picks, np.array([at]), BITS[1])[0]
            inside = _inside(value, lo[at], hi[at])
        found.undecided += inside is None
        if inside is False:
            found.violations += 1
            found.example = found.example or _told(step, picks, at, value, f"[{lo[at]!r}, {hi[at]!r}]")
    if kind == "point":
        with np.errstate(all="ignore"):
            size = made.mid().abs()
            if getattr(step, "function", "") in ("add", "subtract"):  # two terms, which may cancel
                size = size + sum(each.mid().abs() for each in spans)
            scale = size.expand(step.shape).reshape(-1).numpy()
            usual = (scale > 2.0**-900) & (scale < 2.0**900) & np.isfinite(hi - lo)
            found.tight = ((hi - lo)[usual] / scale[usual] * 2.0**52).astype(np.float32)
    return found


def _values(step: Step, run: Run, picks: Sequence[Any], wanted: Any, bits: int) -> list[Any]:
    arithmetic, made = Balls(), []
    with arb_bits(bits):
        for first in range(0, len(wanted), CHUNK):
            part = wanted[first : first + CHUNK]
            sources = step.sources(run, part)
            listed = []
            for each, places, values in zip(step.inputs, sources, picks, strict=True):
                flat = values[places.reshape(-1)].tolist()
                if each.real:
                    flat = [arithmetic.number(value) for value in flat]
                holes = np.flatnonzero(places.reshape(-1) < 0)
                for hole in holes.tolist():
                    flat[hole] = ABSENT
                listed.append(flat)
            if len(listed) == 2 and step.inputs[0] is step.inputs[1]:
                listed[1] = listed[0]
            run.signs = {id(each): np.signbit(values) for each, values in zip(step.inputs, picks, strict=True)}
            made += step.elements(run, arithmetic, part, listed)
    return made


def _inside(value: Any, lo: float, hi: float) -> bool | None:
    """Whether the number may lie in the interval; None where nothing is known of it."""
    if lo == -math.inf and hi == math.inf:
        return True
    if isinstance(value, float):
        return (lo != lo and hi != hi) if value != value else lo <= value <= hi
    if not value.is_finite():
        return None
    if lo != lo or hi != hi:
        return False
    return (
        not (lo > -math.inf and value < flint.arb(lo))
        and not (hi < math.inf and value > flint.arb(hi))
        and (lo < math.inf and hi > -math.inf)
    )


def _told(step: Step, picks: Sequence[Any], at: int, value: Any, shown: Any) -> str:
    run = Run({}, torch.device("cpu"))
    sources = step.sources(run, np.array([at]))
    numbers_ = [values[places.reshape(-1)].tolist() for values, places in zip(picks, sources, strict=True)]
    return f"{numbers_}: Arb {value}, rule {shown}"


# -- the table --------------------------------------------------------------------------------------------


def _measured(name: str, elements: int, device: str) -> tuple[str, Found, float]:
    torch.set_num_threads(1)
    started, found = time.monotonic(), Found()
    rounds = max(elements // 100_000, 1)
    for seed in range(rounds):
        found = found + check(name, elements // rounds, seed, tame=seed % 4 == 3, device=device)
    return name, found, time.monotonic() - started


def table(found: Sequence[tuple[str, Found, float]], page: str = "") -> str:
    """The rows of the page, where those of rules that were not tried stay."""
    rows = {
        row[1]: row[0] for row in re.finditer(r"^\| ([^|]+) \| [\d,]+ \| \d+ \|[^|]*\|[^|]*\|$", page, re.MULTILINE)
    }
    for name, each, _ in found:
        some = each.tight is not None and len(each.tight)
        shown = [f"{np.median(each.tight):.3g}", f"{np.max(each.tight):.3g}"] if some else ["", ""]
        rows[name] = f"| {name} | {each.elements:,} | {each.violations} | {shown[0]} | {shown[1]} |"
    lines = [rows[name] for name in names() if name in rows]
    elements, violations = (sum(int(row.split("|")[at].replace(",", "")) for row in lines) for at in (2, 3))
    lines = ["| rule | elements | violations | median width | widest |", "|---|---|---|---|---|", *lines]
    lines += ["", f"{len(lines) - 2} rules, {elements:,} elements, {violations} violations."]
    return "\n".join(lines) + "\n"


def write(page: Path, name: str, text: str) -> None:
    """Put the text between the marks that the page has for it."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    held = page.read_text()
    if not marked.search(held):
        raise SystemExit(f"{page} has no marks <!-- {name} --> and <!-- /{name} -->")
    page.write_text(marked.sub(lambda match: match[1] + text + match[2], held))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("page", type=Path)
    options.add_argument("--elements", type=int, default=1_000_000)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--rules", nargs="*", default=None)
    options.add_argument("--device", default="cpu", help="cuda: the functions of a GPU's library")
    chosen = options.parse_args()
    measure: Callable[[str], Any] = partial(_measured, elements=chosen.elements, device=chosen.device)
    found = []
    with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn")) as pool:
        for each in pool.map(measure, chosen.rules or names()):
            found.append(each)
            name, result, seconds = each
            print(
                f"{name:24} {result.violations:6} of {result.elements:,} ({result.undecided} undecided) {seconds:.0f} s"
            )
            if result.example:
                print("   ", result.example[:400])
    write(chosen.page, "like rules", table(found, chosen.page.read_text() if chosen.rules else ""))
    raise SystemExit(any(result.violations for _, result, _ in found))


if __name__ == "__main__":
    main()
