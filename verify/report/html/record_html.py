"""The report as one HTML file that needs nothing else: no server, no network, no other file.

The page's policy forbids every request, and style and script run only because their hashes are in it. What has no
room, and the record itself, lie in the page compressed: sections of kernels beyond the first ones, which are unpacked
when they are opened, rows of peers beyond the first ones, many plots of speed. Where all of it together would be more
than a page should weigh, sections of peers are shortened: the record holds the rest.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from verify.records.files import encode
from verify.records.record import (
    CLASSES,
    ORDINARY,
    RESULT_STATUSES,
    KernelRun,
    Number,
    Result,
    Run,
    replay_command,
    value_of,
)
from verify.report import findings, run_words, words
from verify.report.html import against, curve_plot, plot, speed_plot, views
from verify.report.html.against import Against, History
from verify.report.signs import GLYPHS, STANDING

if TYPE_CHECKING:
    from markupsafe import Markup

    from verify.gate.verdict import Verdict
    from verify.records.compare import Comparison

WEIGHT = 1_650_000  # characters of a page; what is judged is shown in full even if it does not fit
# characters that are written out; the rest is compressed
INLINE = 80_000  # of kernel sections, the one that opens with the page first
ROWS = 150_000  # of the table; what is judged is written out in any case
SPEEDS = 40_000  # of plots of accuracy against speed
CROWD = 12  # more peers than these stand apart from the judged kernels, by operation
RANK = {
    "wrong": 6,
    "crashed": 5,
    "timeout": 4,
    "error": 3,
    "undecided": 2,
    "vacuous": 2,
    "interrupted": 2,
    "skipped": 2,
    "ok": 1,
    "peer": 0,
}
MOST_FINDINGS = 40  # beside the first; the table has them all
CROWDED = 40  # rows of peers beyond which they are hidden until asked for
TEMPLATES = ("report", "against", "kernel", "brief", "parts", "beside", "row", "speed")
COLUMNS = (  # key, heading, numeric
    ("kernel", "Kernel", False),
    ("output", "Result", False),
    ("dtype", "Dtype", False),
    ("ordinary", "Ordinary", True),
    ("demanding", "Demanding", True),
    ("extreme", "Extreme", True),
    ("basis", "Basis", True),
    ("baseline", "PyTorch", True),
    ("verdict", "Verdict", True),
)


@dataclass(frozen=True)
class Cell:
    """What a table cell shows, and what numeric columns are sorted by (empty sorts last)."""

    text: str
    key: str = ""
    bad: bool = False


@dataclass(frozen=True)
class Group:
    """Kernels that stand together in the page; without a title they are simply next."""

    title: str
    kernels: list[views.KernelView]


@dataclass(frozen=True)
class Row:
    """One line of the table: a result, or a kernel that has none."""

    anchor: str
    standing: str
    cells: dict[str, Cell]
    strip: Markup | None
    spark: Markup | str
    trend: Markup | str
    call: str


def render(
    run: Run,
    *,
    base: Comparison | None = None,
    gate: Verdict | None = None,
    history: History | None = None,
    whole: Sequence[str] = (),
) -> str:
    """The whole page; `base`, `gate` and `history` are shown beside the run where they are given.

    `whole` names peers whose sections are not shortened.
    """
    from jinja2 import DictLoader, Environment, StrictUndefined
    from markupsafe import Markup

    style, script = asset("report.css"), asset("report.js")
    pages = {f"{name}.html.j2": asset(f"{name}.html.j2") for name in TEMPLATES}
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=DictLoader(pages)
    )
    environment.globals.update(sign=GLYPHS, word=run_words.STATUS_WORD, foldable=_foldable)
    kernels = [views.kernel_view(run, index, history) for index in range(len(run.kernels))]
    section, brief = environment.get_template("kernel.html.j2"), environment.get_template("brief.html.j2")
    headline = _headline(run)
    first = "" if headline is None else headline["anchor"]
    written, packed = _sections({view.anchor: section.render(kernel=view) for view in kernels}, first)
    lines = rows(run, history)
    look = {"columns": COLUMNS, "trends": any(row.trend for row in lines)}
    table, late = _table(lines, [environment.get_template("row.html.j2").render(row=row, **look) for row in lines])
    found = speed_plot.plots(run)
    speeds = environment.get_template("speed.html.j2").render(speeds=found) if found else ""
    packed |= {"rows": "".join(late)} if late else {}
    packed |= {"speeds": speeds} if len(speeds) > SPEEDS else {}
    peers = sum(row.standing == "peer" for row in lines)
    page = functools.partial(
        environment.get_template("report.html.j2").render,
        policy=policy(style, script),
        style=Markup(style),
        script=Markup(script),
        record=compressed(encode(run)),
        written={anchor: Markup(text) for anchor, text in written.items()},
        run=run,
        state=STANDING[run.verdict],
        clauses=run_words.clauses(run),
        sentence=run_words.sentence(run),
        setting=run_words.setting(run),
        machine=_machine(run),
        command_line=words.clean(run.command),
        created=words.clean(run.created).replace("T", " ").replace("Z", " UTC").replace("+00:00", " UTC"),
        identity=words.clean(run.id),
        counts=_counts(run),
        of_classes=_of_classes(run),
        worst=headline,
        failures=_failures(run_words.failures(run)),
        missing=run_words.not_measured(run),
        limits=[(run_words.name_of(kernel), text) for kernel, text in run_words.limits_of(run)],
        skipped_laws=run_words.skipped_laws([law for kernel in run.kernels for law in kernel.laws]),
        laws_line=run_words.laws_line(run),
        broken=_broken(run),
        beside=_beside(run, base, gate, history),
        more_findings=_more_findings(run),
        unproven=[_finding(run, found) for found in findings.unproven(run)],
        lead=against.LEAD,
        speeds=Markup(speeds),
        speeds_packed="speeds" in packed,
        selftest=_selftest(run),
        stages=run.stages,
        next_command=run_words.next_command(run),
        rows=[Markup(text) for text in table],
        late_rows=words.plural(len(late), "row") if late else "",
        peers=words.plural(peers, "row") + " of peers" if 0 < peers < len(lines) else "",
        crowded=peers > CROWDED,
        groups=_groups(kernels),
        opened=first,
        environment=words.flat(run.environment),
        seconds=words.seconds,
        clean=words.clean,
        **look,
    )
    room = WEIGHT - len(page(packed=""))
    shortened = {
        view.anchor: brief.render(kernel=view)
        for place, view in sorted(enumerate(kernels), key=lambda pair: not pair[1].stands_in)
        if view.peer and run.kernels[place].name not in whole and view.results and view.anchor in packed
    }
    return page(packed=_packed(packed, shortened, room))


def _packed(sections: dict[str, str], shortened: dict[str, str], room: int) -> str:
    """The compressed part of the page, with as many short sections in the place of whole ones as room demands."""
    if not sections:
        return ""
    found = compressed(json.dumps(sections).encode())
    rest = list(shortened)
    while len(found) > room and rest:
        excess = len(found) - room
        while rest and excess > 0:
            anchor = rest.pop(0)
            excess -= len(compressed(sections[anchor].encode())) - len(compressed(shortened[anchor].encode()))
            sections = sections | {anchor: shortened[anchor]}
        found = compressed(json.dumps(sections).encode())
    return found


def _foldable(text: str) -> Markup:
    """A name that may be broken after an underscore or a bracket, as it is copied."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([_(@=])", r"\1<wbr>", str(escape(text))))


def _table(rows: list[Row], texts: list[str]) -> tuple[list[str], list[str]]:
    """Which rows are written out and which are compressed: the last ones, and of peers only."""
    room = ROWS
    for place, (row, text) in enumerate(zip(rows, texts, strict=True)):
        room -= len(text)
        if room < 0 and row.standing == "peer":
            return texts[:place], texts[place:]
    return texts, []


def _groups(kernels: list[views.KernelView]) -> list[Group]:
    """Kernels in the order of the record; many peers by operation, below what is judged."""
    peers = [kernel for kernel in kernels if kernel.peer]
    if len(peers) <= CROWD or len(peers) == len(kernels):
        return [Group("", kernels)] if kernels else []
    calls: dict[str, list[views.KernelView]] = {}
    for kernel in peers:
        calls.setdefault(kernel.call, []).append(kernel)
    found = [Group("", [kernel for kernel in kernels if not kernel.peer])]
    return found + [Group(f"{words.plural(len(some), 'peer')} of {call}", some) for call, some in calls.items()]


def _sections(sections: dict[str, str], first: str) -> tuple[dict[str, str], dict[str, str]]:
    """Which sections are written out, the one that opens with the page first, and which are compressed."""
    order = sorted(sections, key=lambda anchor: anchor != first)
    written: dict[str, str] = {}
    room = INLINE
    for anchor in order:
        room -= len(sections[anchor])
        if room < 0:
            break
        written[anchor] = sections[anchor]
    return written, {anchor: text for anchor, text in sections.items() if anchor not in written}


def _machine(run: Run) -> str:
    """What it was measured on: the GPU and its driver, PyTorch, Triton."""
    known = {name: value for name, value in run.environment.items() if isinstance(value, str) and value != "absent"}
    device = "gpu" if "gpu" in known else "cpu"
    names = (("", device), ("driver ", "driver"), ("torch ", "torch"), ("Triton ", "triton"))
    return ", ".join(words.clean(f"{label}{known[name]}") for label, name in names if name in known)


def _beside(run: Run, base: Comparison | None, gate: Verdict | None, history: History | None) -> list[Against]:
    """What the page leads with where it is given: change, trend, and the verdict of the bounds."""
    found = [None if base is None else against.base(base), against.over_time(run, history)]
    return [each for each in (*found, None if gate is None else against.bounds(gate)) if each is not None]


def _broken(run: Run) -> list[dict[str, Any]]:
    """Broken laws; those of one kernel with one message, such as what it raises at every call, are one entry."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for index, kernel in enumerate(run.kernels):
        for law in kernel.laws:
            if law.status != "broken" or kernel.peer:
                continue
            name = f"{words.clean(law.law)} {words.clean(law.dtype)}"
            first = found.setdefault(
                (index, law.message),
                {
                    "anchor": f"kernel-{index}",
                    "kernel": run_words.name_of(kernel),
                    "law": name,
                    "message": words.clean(law.message),
                    "replay": words.clean(replay_command(law.origin)),
                    "others": [],
                },
            )
            if first["law"] != name:
                first["others"].append(name)
    return list(found.values())


def _selftest(run: Run) -> dict[str, Any] | None:
    """The kill matrix: a row per mutant, a column per law that killed any."""
    if run.selftest is None:
        return None
    kills = run.selftest.kills
    visible = [kill for kill in kills if kill.visible]
    killed = sum(bool(kill.killed_by) for kill in visible)
    seen = [law for law in run.selftest.laws if any(law in kill.killed_by for kill in kills)]
    return {
        "sentence": f"{killed:,} of {words.plural(len(visible), 'mutant')} killed; comparing randn outputs with "
        f"assert_close would have seen {sum(kill.assert_close for kill in visible):,}, with the tolerances of the "
        f"project that had the bug {sum(kill.loose for kill in visible):,}",
        "alarms": [words.clean(line) for line in run.selftest.alarms],
        "twins": words.plural(run.selftest.twins, "correct twin"),
        "profile": words.clean(run.selftest.profile),
        "laws": [words.clean(law) for law in seen],
        "idle": [words.clean(law) for law in run.selftest.laws if law not in seen],
        "rows": [
            {
                "mutant": words.clean(kill.mutant),
                "family": words.clean(kill.family),
                "cells": [law in kill.killed_by for law in seen],
                "standing": "skipped" if not kill.visible else "ok" if kill.killed_by else "wrong",
                "word": "not visible here" if not kill.visible else "killed" if kill.killed_by else "alive",
                "assert_close": kill.assert_close,
                "loose": kill.loose,
            }
            for kill in kills
        ],
    }


def asset(name: str) -> str:
    """A file of the assets folder; newlines as browsers see them, or the hash would not match."""
    text = files("verify.report.html").joinpath("assets", name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy: nothing is fetched, and only our own style and script apply."""

    def hashed(text: str) -> str:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return f"'sha256-{digest}'"

    return (
        f"default-src 'none'; style-src {hashed(style)}; script-src {hashed(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def compressed(data: bytes) -> str:
    """Bytes as the page holds them: gzip in base64, the same text for the same bytes on every day."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def rows(run: Run, history: History | None = None) -> list[Row]:
    """All lines of the table, worst first: the order in which the page opens."""
    found: list[tuple[tuple[float, ...], Row]] = []
    for index, kernel in enumerate(run.kernels):
        anchor = f"kernel-{index}"
        for result in run_words.leading(kernel):
            standing = run_words.standing(kernel, result)
            order = (-RANK[standing], *(-part for part in run_words.badness(result)))
            found.append((order, _row(anchor, standing, kernel, result, history)))
        if not kernel.results or kernel.status not in RESULT_STATUSES:
            standing = run_words.standing(kernel)
            found.append(((-RANK[standing],), _bare_row(anchor, standing, kernel)))
    # the sort is stable: equal rows keep the order of the record
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def _row(anchor: str, standing: str, kernel: KernelRun, result: Result, history: History | None) -> Row:
    figures = run_words.judged(result.figures, result.gate)
    baseline = None if result.baseline is None else run_words.judged(result.baseline, result.gate)
    scaled = "" if run_words.maximum(result.figures, result.gate) == "NaN" else words.MARK[result.gate]
    cells = {
        "kernel": Cell(run_words.name_of(kernel)),
        "output": Cell(words.clean(result.output)),
        "dtype": Cell(words.dtype_of(result)),
        **{name: _class_cell(result, name, scaled * (name == ORDINARY)) for name in CLASSES},
        "basis": Cell(words.basis_of(result, short=True), str(result.basis.n)),
        "baseline": Cell(run_words.baseline_of(result), "" if baseline is None else sort_key(baseline.upper)),
        "verdict": Cell(run_words.label(kernel, result), str(RANK[standing])),
    }
    strip = plot.strip(
        figures.upper,
        None if baseline is None else baseline.upper,
        result.limit,
        bad=standing == "wrong",
    )
    title = run_words.title(kernel, result)
    trend = against.trend(history, kernel, result)
    spark = curve_plot.spark(*_by_input(result), label=f"Largest error of {title} by input")
    trend_line = curve_plot.spark(trend, result.limit, label=f"Maximum of {title} over {len(trend)} runs")
    return Row(anchor, standing, cells, strip, spark, trend_line, words.call(kernel.op, kernel.params))


def _class_cell(result: Result, name: str, unit: str) -> Cell:
    found = next((each for each in result.classes if each.name == name), None)
    figures = None if found is None and result.classes else (found or result).figures
    key = "" if figures is None else sort_key(run_words.judged(figures, result.gate).upper)
    return Cell(run_words.of_class(result, name) + unit, key, bool(found and found.reason))


def _by_input(result: Result) -> tuple[list[Number], float]:
    """The largest error in each bin of the input, or in each regime where a row decides."""
    if result.curve is not None:
        pairs = zip(result.curve.max_ulp, result.curve.counts, strict=True)
        return [value for value, count in pairs if count], result.limit
    if len(result.regimes) < 2:
        return [], result.limit
    return [run_words.judged(item.figures, result.gate).upper for item in result.regimes], result.limit


def _bare_row(anchor: str, standing: str, kernel: KernelRun) -> Row:
    cells = {key: Cell("", "") for key, _, _ in COLUMNS}
    cells["kernel"] = Cell(run_words.name_of(kernel))
    cells["verdict"] = Cell(run_words.STATUS_WORD[kernel.status], str(RANK[standing]))
    return Row(anchor, standing, cells, None, "", "", words.call(kernel.op, kernel.params))


def sort_key(value: Any) -> str:
    """A number that scripts compare: NaN above infinity above every finite one."""
    number = value_of(value)
    if math.isnan(number):
        return "Infinity"
    return "1e308" if math.isinf(number) else repr(abs(number))


def _counts(run: Run) -> list[tuple[str, str, str]]:
    """(standing, figure, noun) for the line under the verdict."""
    found = run_words.counts(run)
    nouns = {**run_words.STATUS_WORD, "error": "raised"}
    nouns["peer"] = "peer" if found.get("peer") == 1 else "peers"
    labels = [run_words.kind(kernel, result) for kernel in run.kernels if not kernel.peer for result in kernel.results]
    line = [("", f"{len(run.kernels):,}", "kernel" if len(run.kernels) == 1 else "kernels")]
    line += [(status, f"{count:,}", nouns[status]) for status, count in found.items()]
    line.append(("", f"{len(labels):,}", "result" if len(labels) == 1 else "results"))
    for earned, noun in (("rounded", "correctly rounded"), ("faithful", "faithful")):
        if earned in labels:
            line.append(("ok", f"{sum(item == earned for item in labels):,}", noun))
    return line


def _of_classes(run: Run) -> list[tuple[str, str, str]]:
    """The same for the classes of inputs: the error that is the largest multiple of its limit, and that limit."""
    line = []
    for name in CLASSES:
        found = [
            (run_words.size_of(each.figures, result.gate, each.limit), result, each)
            for kernel in run.kernels
            if not kernel.peer
            for result in kernel.results
            for each in result.classes
            if each.name == name
        ]
        if found:
            _, result, each = max(found, key=lambda item: item[0])
            figure = run_words.maximum(each.figures, result.gate)
            allowed = "ULP" if each.limit is None else f"of {words.decimal(each.limit)} ULP"
            line.append(("wrong" if each.reason else "", figure, f"{'' if figure == 'NaN' else f'{allowed}, '}{name}"))
    return line


def _headline(run: Run) -> dict[str, Any] | None:
    """The worst wrong result, or of a run without one the result that comes closest to its limit."""
    found = next(iter(findings.findings(run)), None) or run_words.closest_result(run)
    return None if found is None else _finding(run, found)


def _more_findings(run: Run) -> list[dict[str, Any]]:
    """The other causes of wrong results, what a maintainer would fix first above."""
    return [_finding(run, found) for found in findings.findings(run)[1 : 1 + MOST_FINDINGS]]


def _finding(run: Run, found: run_words.Found) -> dict[str, Any]:
    index = next(place for place, kernel in enumerate(run.kernels) if kernel is found.kernel)
    return {
        "kernel": run_words.name_of(found.kernel),
        "anchor": f"kernel-{index}",
        "result": views.result_view(found.kernel, found.result),
        "element": None if found.worst is None else views.worst_view(found.worst, found.result),
        "wrong": found.result.status == "wrong",
        "also": findings.also(found),
    }


def _failures(kernels: Sequence[KernelRun]) -> list[dict[str, Any]]:
    """Kernels without figures; those that say the same, as where the device is lost, are one entry."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for kernel in kernels:
        again = run_words.rerun(kernel)
        hint = run_words.advice(kernel)
        # peers that fail are not what a reader has to mend: not beside those that are
        entry = found.setdefault(
            (run_words.standing(kernel) + kernel.status, kernel.message, hint),
            {
                "names": [],
                "standing": run_words.standing(kernel),
                "word": run_words.STATUS_WORD[kernel.status],
                "message": words.clean_lines(kernel.message) if kernel.message else [],
                "hint": hint,
                "reruns": [],
            },
        )
        entry["names"].append(run_words.name_of(kernel))
        entry["reruns"].append(again)
    return list(found.values())
