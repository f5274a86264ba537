"""Makes the document of a run: its table, what there is to act on, and what was not measured.

The table has a row per kernel x output x dtype, in layouts from the most to the least room.

If a screen is too narrow, columns are dropped in a fixed order, and names of kernels become headings of their rows.
"""

from collections.abc import Sequence

from verify.records.record import CLASSES, ORDINARY, Run
from verify.records.recorded import judged
from verify.report import blocks, words
from verify.report.document import EVERY, Columns, Document, Section, TableRow, plain
from verify.report.present import Facts, KernelFacts, ResultFacts, present

# From the most to the least room. In every layout, the basis follows the maximum.
LAYOUTS = tuple(
    tuple(columns.split())
    for columns in (
        "kernel output dtype max basis p999 misrounded baseline verdict",
        "kernel output dtype max basis_short p999 misrounded baseline verdict",
        "kernel output dtype max basis_short misrounded baseline verdict",
        "output dtype max basis p999 misrounded baseline verdict",
        "output dtype max basis_short p999 misrounded baseline verdict",
        "output dtype max basis_short misrounded baseline verdict",
        "output dtype max basis_short baseline verdict",
        "output dtype max basis_short baseline short",
        "output dtype max basis_short short",
    )
)

# The same with a maximum for each class of inputs. On narrower screens, of ordinary inputs and of all.
CLASSED: tuple[tuple[str, ...], ...] = (
    *(tuple(name for each in layout for name in (CLASSES if each == "max" else (each,))) for layout in LAYOUTS),
    ("output", "dtype", ORDINARY, "max", "basis_short", "baseline", "short"),
    ("output", "dtype", ORDINARY, "max", "basis_short", "short"),
    ("output", "dtype", "max", "basis_short", "short"),
)


def layouts_of(facts: Facts) -> Sequence[Columns]:
    """Returns the layouts of a run's table, from the most to the least room."""
    return CLASSED if any(each.result.classes for kernel in facts.kernels for each in kernel.results) else LAYOUTS


def rows_of(facts: Facts) -> list[TableRow]:
    """Returns the rows: the results of each kernel, and a kernel without any."""
    return [
        row_of(kernel, each)
        for kernel in facts.kernels
        for each in (*kernel.results, *([None] if kernel.is_bare else []))
    ]


def row_of(kernel: KernelFacts, each: ResultFacts | None) -> TableRow:
    """Returns the row of a result, or of a kernel that has none."""
    if each is None:
        return TableRow(kernel.name, kernel.call, {}, kernel.standing, kernel.word)
    result, mark = each.result, words.MARK[each.result.gate]
    bad = frozenset({"max", *(part.name for part in result.classes if part.reason)})
    measured = [(name, figure) for name, figure in each.classes.items() if figure not in ("", "-", "NaN")]
    cells = {
        "output": words.clean(result.output),
        "dtype": words.dtype_of(result),
        "max": each.maximum + mark,
        **each.classes,
        **{name: figure + mark for name, figure in measured[:1]},  # one mark for the row: columns stay narrow
        "basis": words.basis_of(result),
        "basis_short": words.basis_of(result, short=True),
        "p999": words.ulp(judged(result.figures, result.gate).p999),
        "misrounded": words.share(result.figures.misrounded, result.figures.n),
        "baseline": each.baseline + mark if each.baseline else "-",
    }
    short = "as PyTorch" if each.as_pytorch else each.standing
    return TableRow(kernel.name, kernel.call, cells, each.standing, each.label, bad, short=short, size=each.badness)


def footnotes(facts: Facts, columns: Columns = ("ordinary",)) -> list[str]:
    """Returns explanations of the columns of a table of results, and of the marks in it."""
    results = [each.result for kernel in facts.kernels for each in kernel.results]
    gates, notes = {result.gate for result in results}, []
    if results and set(columns) & set(CLASSES):
        unit = "in ULP unless marked" if gates & set(words.LEGEND) else "in ULP"
        notes.append(f"ordinary, demanding, extreme: the largest error {unit} on inputs of that class")
    notes += [f"{words.MARK[gate].strip()}: {text}" for gate, text in words.LEGEND.items() if gate in gates]
    if any(figures.open for each in results for figures in (each.figures, *(of.figures for of in each.classes))):
        notes.append(f"≥: {words.OPEN}")
    if any(each.as_pytorch for kernel in facts.judged for each in kernel.results):
        notes.append("as PyTorch: wrong, and PyTorch's own function exceeds the same limits on these inputs")
    if any(kernel.run.peer for kernel in facts.kernels):
        notes.append("peer: measured for comparison, not judged")
    names = sorted({words.clean(each.baseline_name) for each in results if each.baseline and each.baseline_name})
    if "baseline" in columns and names:
        notes.append(f"PyTorch: the maximum of {words.listed(names)} on the same ordinary inputs")
    return notes


MOST_LINES = 4  # of a message, which may be a whole traceback; the record has the rest
MOST_REASONS = 16  # reasons why laws were not tried, and notes


def document(run: Run, *, record: str = "", lines: int = MOST_LINES) -> Document:
    """Returns the page of a run. `record` is the path of the saved record, for the next command, or ""."""
    facts = present(run)
    next_, worst = facts.next_command(record), facts.worst
    # If time ran out, all kernels have the same hint.
    some = [kernel for kernel in run.kernels if facts.missing and kernel.status in ("interrupted", "skipped")]
    hints = dict.fromkeys(words.clean(kernel.hint) for kernel in some)
    # A missing figure must not look like a figure in order, nor a law that was not tried like one that holds.
    missing = [*facts.missing, *plain([f"next: {hint}" for hint in hints if hint not in ("", next_)])]
    notes = [f"{kernel.run.name}: {note}" for kernel in facts.judged for note in kernel.notes]
    notes = [each for each in notes if each not in {gap.text for gap in facts.missing}]
    untried = [f"{reason} ({what})" for reason, what in facts.untried_laws]
    wrong = [blocks.unrepeatable(kernel) for kernel in facts.unrepeatable]
    wrong += [blocks.wrong(found, run, record) for found in facts.findings]
    unproven = [blocks.unproven(found) for found in facts.unproven]
    broken = [blocks.broken(owner, law) for owner, law in facts.broken_laws]

    def explained(columns: Columns) -> list[str]:
        return [*footnotes(facts, columns), facts.setting]

    return Document(
        "verify",
        words.STANDING[run.verdict],
        run.verdict,
        facts.clauses,
        [
            Section(rows=rows_of(facts), layouts=layouts_of(facts), notes=explained, noun="row"),
            Section("findings", blocks=wrong, noun="finding"),
            Section("broken laws", blocks=broken, noun="broken law"),
            Section("without a verdict", blocks=unproven, noun="unproven result"),
            Section("failures", blocks=blocks.failures(facts.failures, lines), noun="failed kernel", most=EVERY),
            Section("limits", lines=plain([f"{kernel.name} {text}" for kernel, text in facts.limits]), noun="limit"),
            Section("not measured", lines=missing, noun="gap", most=EVERY),
            Section("notes", lines=plain(notes), noun="note", most=MOST_REASONS),
            Section("laws not applicable", lines=plain(untried), noun="reason", most=MOST_REASONS),
        ],
        about=[facts.setting, f"record {run.id}"],
        remarks=[facts.laws_line] if facts.laws_line else [],
        next=next_,
        above="" if worst is None or worst.worst is None else f"the replay command of {worst.title}, above",
    )
