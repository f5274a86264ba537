"""Writes the report as one HTML file that needs no server, no network and no other file.

The page's policy forbids every request, and style and script run only because the policy has their hashes. The page
holds a small record compressed, and the sections of kernels beyond the first ones. These are unpacked when a reader
opens them.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from types import CodeType, SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import quote

from verify.records.figure import comparable
from verify.records.files import encode
from verify.records.grouped import grouped
from verify.records.record import CLASSES, UNPROVEN, Number, RegimeFigures, Result, Run, Worst, replay_command, value_of
from verify.records.recorded import judged
from verify.report import result_words, run_table, words
from verify.report.document import EVERY, Document, header, is_right
from verify.report.html import plot
from verify.report.present import LAW_WORD, KernelFacts, ResultFacts, law_counts, present
from verify.report.words import GLYPHS, LOOKS, STANDING, STYLES

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


RECORD = 250_000  # of the compressed record; a larger one lies beside the page
INLINE = 80_000  # characters of kernel sections that are written out, first the one that is open; others are compressed
CROWD = 12  # more peers than these are listed by operation, apart from the judged kernels
MOST = 200  # rows of a table beside the run's own; the commands list everything
LEAD = 8  # rows, findings or lines of a part that are not folded
MOST_FINDINGS = 40  # of one part; the table has them all
CROWDED = 40  # more rows of peers than these are hidden at first
_CODE: dict[tuple[str, str], CodeType | None] = {}  # compiled templates, by name and text
GRADIENT_LAWS = ("gradcheck", "gradgradcheck")
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


def render(run: Run, *, beside: Sequence[Document] = (), record: str = "") -> str:
    """Returns the whole page. `beside` are other pages about it, shown first.

    `record` is the path of the record from the page. A large record is linked there and not embedded.
    """
    from markupsafe import Markup

    style, script = asset("report.css"), asset("report.js")
    environment, facts = templates(), present(run)
    embedded = compressed(encode(run))
    small = len(embedded) <= RECORD
    place = "" if small else record  # a small record lies in the page, not beside it
    environment.globals.update(
        facts=facts,
        run=run,
        words=words,
        of=result_words,
        replay=replay_command,
        law_word=LAW_WORD,
        law_counts=law_counts,
        gradient_laws=GRADIENT_LAWS,
        foldable=_foldable,
        newline=Markup("\n"),
        unproven_statuses=UNPROVEN,
        region=_region,
        histogram=plot.histogram_svg,
        curve=plot.curve_svg,
        elements=lambda each: _elements(each, place, run),
    )
    section = environment.get_template("kernel.html.j2")
    # The worst wrong result. Without one, the result that comes closest to its limit.
    headline = next(iter(facts.findings), None) or facts.closest
    first = "" if headline is None else headline.owner.anchor
    written, packed = _sections({each.anchor: section.render(kernel=each) for each in facts.kernels}, first)
    row_of = environment.get_template("row.html.j2")
    lines = [_row(kernel, each) for kernel, each in facts.rows]  # worst first
    peers = sum(line.row.standing == "peer" for line in lines)
    return environment.get_template("report.html.j2").render(
        policy=policy(style, script),
        style=Markup(style),
        script=Markup(script),
        record=embedded if small else "",
        linked="" if small or not record else "./" + quote(record),
        written={anchor: Markup(text) for anchor, text in written.items()},
        state=STANDING[run.verdict],
        machine=_machine(run),
        created=words.clean(run.created).replace("T", " ").replace("Z", " UTC").replace("+00:00", " UTC"),
        worst=headline,
        beside=beside,
        most=MOST,
        sections=run_table.document(run, lines=EVERY).sections,
        shown=headline.title if facts.findings and headline is not None else "",
        lead=LEAD,
        most_findings=MOST_FINDINGS,
        rows=[Markup(row_of.render(line=line, row=line.row, columns=COLUMNS)) for line in lines],
        peers=words.plural(peers, "row") + " of peers" if 0 < peers < len(lines) else "",
        crowded=peers > CROWDED,
        groups=_groups(facts.kernels),
        opened=first,
        environment=words.flat(run.environment),
        packed=compressed(json.dumps(packed, ensure_ascii=False, separators=(",", ":")).encode()) if packed else "",
        columns=COLUMNS,
    )


def _region(part: RegimeFigures, result: Result) -> tuple[Markup, bool]:
    """Returns the errors of one region on a scale, and whether they are beyond the limit."""
    measured = judged(part.figures, result.gate)
    theirs = None if part.baseline is None else judged(part.baseline, result.gate).upper
    bad = not (value_of(measured.upper) <= result.limit)
    return plot.strip(measured.upper, theirs, result.limit, bad=bad), bad


def _elements(each: ResultFacts, record: str, run: Run) -> list[tuple[Worst, str, str]]:
    """Returns the worst elements of all, then those of regions that are not among them, with the names of the regions
    and the command that shows the element again. It is short if the record lies beside the page.
    """
    listed: list[Worst] = []
    for item in (*each.result.worst, *(part.worst for part in each.result.regimes)):
        listed += [item] if item is not None and item not in listed else []
    found = []
    for item in listed:
        names = ", ".join(part.name for part in each.result.regimes if part.worst == item)
        short = each.short_replay(record, run, item, index=item.origin.index)
        found.append((item, names, short or replay_command(item.origin)))
    return found


def _foldable(text: str) -> Markup:
    """Returns a name that may be broken after an underscore or a bracket, and that copies without the breaks."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([_(@=])", r"\1<wbr>", str(escape(text))))


def _groups(kernels: list[KernelFacts]) -> list[tuple[str, list[KernelFacts]]]:
    """Returns titles and kernels in the order of the record. Many peers are grouped by operation, after the others."""
    peers = [kernel for kernel in kernels if kernel.run.peer]
    if len(peers) <= CROWD or len(peers) == len(kernels):
        return [("", kernels)] if kernels else []
    calls = grouped(peers, lambda kernel: kernel.call).items()
    found = [("", [kernel for kernel in kernels if not kernel.run.peer])]
    return found + [(f"{words.plural(len(some), 'peer')} of {call}", some) for call, some in calls]


def _sections(sections: dict[str, str], first: str) -> tuple[dict[str, str], dict[str, str]]:
    """Divides the sections into written and compressed ones. The section that is open at first is written first."""
    order = sorted(sections, key=lambda anchor: anchor != first)
    ends = itertools.accumulate(len(sections[anchor]) for anchor in order)
    written = {anchor: sections[anchor] for anchor, end in zip(order, ends, strict=True) if end <= INLINE}
    return written, {anchor: text for anchor, text in sections.items() if anchor not in written}


def _machine(run: Run) -> str:
    """Returns the machine of the run: the GPU and its driver, PyTorch, Triton."""
    known = {name: value for name, value in run.environment.items() if isinstance(value, str) and value != "absent"}
    names = {"gpu" if "gpu" in known else "cpu": "", "driver": "driver ", "torch": "torch ", "triton": "Triton "}
    return ", ".join(f"{label}{known[name]}" for name, label in names.items() if name in known)


def templates() -> Environment:
    """Returns the templates. What they print is escaped and has no control characters."""
    from jinja2 import BytecodeCache, Environment, FunctionLoader, StrictUndefined
    from jinja2.bccache import Bucket
    from markupsafe import Markup

    class CompiledOnce(BytecodeCache):
        def load_bytecode(self, bucket: Bucket) -> None:
            bucket.code = _CODE.get((bucket.key, bucket.checksum))

        def dump_bytecode(self, bucket: Bucket) -> None:
            _CODE[bucket.key, bucket.checksum] = bucket.code

    found = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(asset),
        bytecode_cache=CompiledOnce(),
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else words.clean(value),
    )
    found.globals["sign"] = GLYPHS
    return found


def asset(name: str) -> str:
    """Returns a file of the assets folder, with newlines as browsers see them: otherwise the hash would not match."""
    text = files("verify.report.html").joinpath("assets", name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


def policy(style: str, script: str = "") -> str:
    """Returns the Content-Security-Policy: nothing is fetched, and only the page's own style and script apply."""
    digests = (hashlib.sha256(text.encode()).digest() for text in (style, script))
    own, run = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    others = "img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; style-src {own}; script-src {run}; {others}"


def compressed(data: bytes) -> str:
    """Returns bytes in the form of the page: gzip in base64, equal text for equal bytes on every day."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _row(kernel: KernelFacts, each: ResultFacts | None) -> SimpleNamespace:
    """Returns a row with its address, the sort keys of its numeric columns (none sorts last), and its drawing."""
    from markupsafe import Markup

    row, name = run_table.row_of(kernel, each), f"row-{kernel.index}"
    keys, strip = {"verdict": str(LOOKS[row.standing].rank)}, Markup("")
    if each is not None:
        result = each.result
        own = judged(result.figures, result.gate)
        theirs = None if result.baseline is None else judged(result.baseline, result.gate).upper
        parts = {part.name: part.figures for part in result.classes}
        whole = dict.fromkeys(CLASSES, result.figures)
        keys |= {name: _key(judged(of, result.gate).upper) for name, of in (parts or whole).items()}
        keys["basis"] = str(result.basis.n)
        keys |= {} if theirs is None else {"baseline": _key(theirs)}
        strip = plot.strip(own.upper, theirs, result.limit, bad=row.standing == "wrong")
        row = replace(row, cells=row.cells | {"basis": row.cells["basis_short"], "baseline": each.baseline})
        name += f"/{quote(result.output, safe='')}/{result.dtype}"
    return SimpleNamespace(row=row, id=name, anchor=kernel.anchor, keys=keys, strip=strip)


def _key(error: Number) -> str:
    return f"{comparable(value_of(error)):.7g}"


COLOURS = {"green": "#1a7f37", "yellow": "#9a6700", "bold red": "#cf222e", "dim": "#6e7781"}


def notebook(run: Run) -> str:
    """Returns the verdict, the table and its notes. Text of kernels is escaped."""
    facts = present(run)
    rows, columns = run_table.rows_of(facts), run_table.layouts_of(facts)[0]
    head = "".join(_cell("th", name, header(name)) for name in columns)
    lines = [f"<tr>{head}</tr>"]
    for row in rows:
        colour = f"color:{COLOURS[STYLES[row.standing]]}"
        cells = (_cell("td", name, row.text(name, GLYPHS), colour if name == "verdict" else "") for name in columns)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    table = f"<table>{''.join(lines)}</table>" if rows else ""
    notes = [*run_table.footnotes(facts, columns), facts.setting]
    small = "<br>".join(map(escape, notes))
    return f"<div><p><b>{escape(facts.sentence)}</b></p>{table}<p><small>{small}</small></p></div>"


def _cell(tag: str, column: str, text: str, style: str = "") -> str:
    side = "right" if is_right(column) else "left"
    return f'<{tag} style="text-align:{side};{style}">{escape(text)}</{tag}>'
