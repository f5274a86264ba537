"""Makes the documents of a comparison of two records, whose pairs it describes in words."""

from collections import Counter
from collections.abc import Sequence

from verify.errors import INCOMPLETE, PASS, WRONG
from verify.records.bounds.verdict import Excess
from verify.records.compare import Change, Comparison, Pair
from verify.records.figure import ordered
from verify.records.grouped import grouped
from verify.records.readings import Reading, arch_of, commit_of
from verify.records.record import Run
from verify.report import blocks, gate_words, words
from verify.report.blocks import ReportBlock
from verify.report.document import Document, Section, TableRow, narrowing
from verify.report.gaps import FEW, GapLine


def document(found: Comparison, *, everything: bool = False) -> Document:
    """Returns the page of a comparison. `everything` also lists figures that did not change."""
    shown = list(found.pairs) if everything else found.listed
    both = [pair for pair in shown if pair.base is not None and pair.head is not None and not pair.reason]
    fails = [ReportBlock("wrong", "fails now", name, message=words.clean_lines(text)) for name, text in found.broke]
    word, parts = clauses(found)
    records = [f"base  {about(found.base)}", f"head  {about(found.head)}"]
    return Document(
        "verify compare",
        {PASS: "ok", WRONG: "wrong", INCOMPLETE: "skipped"}[found.exit_code],
        word,
        parts,
        [
            Section(rows=[line(pair) for pair in both], layouts=narrowing(COLUMNS), noun="changed result"),
            Section(blocks=[grown(pair) for pair in found.of("worse")], noun="growth", most=6),
            Section(blocks=fails, noun="failing kernel"),
            Section("not compared", lines=alone(shown)),
        ],
        title=f"What changed since run {words.clean(found.base.id)}",
        about=records,
        remarks=records,
    )


def clauses(found: Comparison) -> tuple[str, list[str]]:
    """Returns the first word of the sentence, and its parts."""
    pairs = found.pairs
    alike = [pair for pair in pairs if pair.change in ("worse", "better", "same")]
    worse, better = found.of("worse"), found.of("better")
    parts = []
    if found.broke:
        fail = "fails" if len(found.broke) == 1 else "fail"
        parts.append(f"{words.plural(len(found.broke), 'kernel')} that worked {fail} now")
    if worse:
        verdicts = sum(any(each.name == "verdict" for each in pair.grew) for pair in worse)
        parts += [f"{words.plural(verdicts, 'verdict')} got worse"] if verdicts else []
        parts.append(f"{len(worse):,} of {words.plural(len(alike), 'figure')} grew")
        top = max(worse, key=lambda pair: gate_words.times(pair.grew))
        after, before = gate_words.excess(top.grew[0])
        parts.append(f"the most is {gate_words.title(top)}, {before} to {after}")
    if better:
        parts.append(f"{len(better):,} of {words.plural(len(alike), 'figure')} shrank")
    if not worse and not better and alike:
        parts.append(f"no maximum changed in {words.plural(len(alike), 'figure')}, {_bits(alike)}")
    for change, text in {**ALONE, "incomparable": "cannot be compared"}.items():
        if count := len(found.of(change)):
            parts.append(f"{count:,} {text}")
    if found.fixed:
        parts.append(f"fixed: {words.listed([words.clean(name) for name in found.fixed])}")
    if not parts:
        parts.append("the records have no figure in common")
    failing = {WRONG: "worse", INCOMPLETE: "incomplete"}
    return failing.get(found.exit_code, "better" if better else "same"), parts


def _bits(pairs: Sequence[Pair]) -> str:
    results = {(pair.key.kernel, pair.key.output, pair.key.dtype, pair.source): pair.bits for pair in pairs}
    changed = sum(bits == "changed" for bits in results.values())
    if changed:
        return f"bits changed in {changed:,} of {words.plural(len(results), 'result')}"
    if "unknown" in results.values():
        return "whether bits changed is not known"
    return "and not a bit" if len(results) == 1 else f"and not a bit in {len(results):,} results"


def growth(grew: Sequence[Excess]) -> str:
    """Returns what got worse: `0.4994 ULP to 1.48 ULP`, `22.2% to 74.6% misrounded`, `ok to wrong`."""
    return "; ".join(f"{before} to {after}" for after, before in map(gate_words.excess, grew))


def grown(pair: Pair) -> ReportBlock:
    """Returns the block of a figure that got worse."""
    assert pair.head is not None
    facts = [("error", f"{growth(pair.grew)}, {pair.head.basis}"), *blocks.element(pair.head.worst)]
    group = " ".join((pair.key.kernel, pair.key.output, pair.key.dtype))
    return ReportBlock("wrong", "worse", gate_words.title(pair), facts, blocks.again(pair.head.worst), group=group)


def figure(reading: Reading | None) -> str:
    """Returns the judged error of a reading in a column, or "-" without one."""
    return "-" if reading is None else gate_words.cell(gate_words.error(reading), reading.gate)


COLUMNS = ("output", "dtype", "regime", "base", "head", "misrounded", "bits", "change")
STANDING = {"worse": "wrong", "incomparable": "skipped", "removed": "skipped"}


def line(pair: Pair) -> TableRow:
    """Returns the line of a figure of two records."""
    key, sides = pair.key, [side for side in (pair.base, pair.head) if side is not None]
    shares = dict.fromkeys(words.share(side.figures.misrounded, side.figures.n) for side in sides)
    cells = {
        "output": key.output + ("" if pair.source == "run" else f" ({pair.source})"),
        "dtype": key.dtype,
        "regime": key.regime,
        "base": figure(pair.base),
        "head": figure(pair.head),
        "misrounded": " to ".join(shares) if len(sides) == 2 else "",
        "bits": pair.bits,
    }
    word = "same maximum" if pair.change == "same" and pair.figures_differ else pair.change
    beyond = [each for each in pair.grew if each.name != "value"]  # the columns have the maxima
    note = words.clean(pair.why) or growth(beyond)
    size = max(ordered(side.value) for side in sides)
    return TableRow(key.kernel, "", cells, STANDING.get(pair.change, "ok"), word, frozenset({"head"}), note, size=size)


ALONE: dict[Change, str] = {"incomparable": "not comparable", "removed": "only in base", "added": "only in head"}


def alone(pairs: Sequence[Pair]) -> list[GapLine]:
    """Returns a line, with the kernels, for each reason why figures are unpaired or cannot be compared."""
    found = grouped([pair for pair in pairs if pair.change in ALONE], lambda pair: (ALONE[pair.change], pair.reason))
    lines = []
    for (word, reason), some in found.items():
        kernels = Counter(pair.key.kernel for pair in some)
        names = ", ".join(list(kernels)[:FEW]) + (f" and {len(kernels) - FEW:,} more" if len(kernels) > FEW else "")
        text = f"{word}: {words.plural(len(some), 'figure')} of {names}" + (f": {reason}" if reason else "")
        parts = [f"{kernel} {words.plural(count, 'figure')}" for kernel, count in kernels.items()]
        lines.append(GapLine(words.clean(text), [words.clean(part) for part in parts] if len(parts) > FEW else []))
    return lines


def about(run: Run) -> str:
    """Returns which record a run is: its id, date, architecture, commit and seed."""
    parts = [run.id, run.created[:16].replace("T", " "), arch_of(run), f"commit {commit_of(run)}", f"seed {run.seed}"]
    return ", ".join(words.clean(part) for part in parts if part)
