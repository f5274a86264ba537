"""Makes the page of what was judged and what never was: each kernel, dtype, law and class of sizes of some records.

Results have a class of sizes: those that a run draws, many rows, captured inputs, or those of a model. A law draws its
own.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Literal, get_args

from verify.declare.models import MODELS
from verify.laws.profiles import NAMES
from verify.records.grouped import grouped
from verify.records.readings import FAILED, arch_of
from verify.records.record import KernelRun, Run
from verify.report import words
from verify.report.document import EVERY, Document, Section, TableRow, plain

Outcome = Literal["never tried", "not applicable", "passed", "no verdict", "wrong"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)  # the later one counts
RESULTS, DRAWN = "results", "drawn"
_LABEL = re.compile(r" \(([^()]*)\)$")
_LAYOUT = ("kernel", "dtype", "elements", "laws", "never tried", "verdict")


@dataclass(frozen=True)
class Cell:
    """Holds what is known of one kernel on one card in one dtype: of its results at some sizes, or of a law."""

    card: str
    kernel: str
    dtype: str
    subject: str  # `RESULTS`, or the name of a law
    sizes: str  # the class of sizes; "" for a law
    outcome: Outcome
    judged: int  # elements, or cases of a law


def cells_of(runs: Sequence[Run]) -> list[Cell]:
    """Returns a cell for each combination. Of several records, the last one that tried it counts."""
    known, kernels = dict[tuple[str, ...], Cell](), dict[tuple[str, str], KernelRun]()
    for run in sorted(runs, key=lambda run: run.created):
        found = dict[tuple[str, ...], Cell]()
        for kernel in run.kernels:
            if not kernel.peer:
                kernels[arch_of(run), kernel.name] = kernel
                for cell in _tried(kernel, arch_of(run)):
                    before = found.setdefault(key := astuple(cell)[:5], replace(cell, judged=0))
                    outcome = max(before.outcome, cell.outcome, key=OUTCOMES.index)
                    found[key] = replace(cell, outcome=outcome, judged=before.judged + cell.judged)
        known |= found
    models = dict.fromkeys(cell.sizes for cell in known.values() if cell.sizes in MODELS)
    every = list[Cell]()
    for (card, name), kernel in kernels.items():
        own = [cell for cell in known.values() if (cell.card, cell.kernel) == (card, name)]
        for dtype in dict.fromkeys([*_promised(kernel), *(cell.dtype for cell in own)]):
            wanted = [(RESULTS, sizes) for sizes in (DRAWN, *models)] + [(law, "") for law in NAMES]
            of_dtype = {(cell.subject, cell.sizes): cell for cell in own if cell.dtype == dtype}
            missing = [each for each in wanted if each not in of_dtype]
            every += of_dtype.values()
            every += [Cell(card, name, dtype, subject, sizes, "never tried", 0) for subject, sizes in missing]
    return every


def _tried(kernel: KernelRun, card: str) -> Iterator[Cell]:
    """Yields what a record has of a kernel. A dtype without a result of a kernel that failed is wrong."""
    outcome: Outcome
    of_result: dict[str, Outcome] = {"ok": "passed", "wrong": "wrong"}
    for result in kernel.results:
        outcome, label = of_result.get(result.status, "no verdict"), _LABEL.search(result.output)
        sizes = label[1] if label else DRAWN
        if result.source != "run":
            sizes = "every input" if result.source == "sweep" else "searched"
        yield Cell(card, kernel.name, result.dtype, RESULTS, sizes, outcome, result.figures.n)
    of_law: dict[str, Outcome] = {"ok": "passed", "broken": "wrong", "skipped": "not applicable"}
    for law in kernel.laws:
        unknown = law.status != "broken" and (law.in_error or law.undeclared)
        outcome = "no verdict" if unknown else of_law[law.status]
        yield Cell(card, kernel.name, law.dtype, law.law, "", outcome, law.cases)
    judged = {result.dtype for result in kernel.results}
    for dtype in _promised(kernel) if kernel.status in FAILED else ():
        if dtype not in judged:
            yield Cell(card, kernel.name, dtype, RESULTS, DRAWN, "wrong", 0)


def _promised(kernel: KernelRun) -> list[str]:
    """Returns the dtypes with which the text of a promise begins."""
    return kernel.promise.partition(";")[0].split() if ";" in kernel.promise else []


def document(runs: Sequence[Run]) -> Document:
    """Returns the page: a row for each kernel and dtype, then what is wrong and what was never tried, by name."""
    cells = cells_of(runs)
    several = len({cell.card for cell in cells}) > 1
    rows, wrong, never = list[TableRow](), list[str](), dict[str, list[str]]()
    groups = grouped(cells, lambda each: (f"{each.kernel} on {each.card}" if several else each.kernel, each.dtype))
    for (name, dtype), own in groups.items():
        rows.append(_row(name, dtype, own))
        wrong += [f"{name} {dtype}: {_named(cell)}" for cell in own if cell.outcome == "wrong"]
        if missing := ", ".join(_named(cell) for cell in own if cell.outcome == "never tried"):
            never.setdefault(missing, []).append(f"{name} {dtype}")
    total = Counter(cell.outcome for cell in cells)
    word = "fail" if total["wrong"] else "incomplete" if total["never tried"] + total["no verdict"] else "pass"
    counts = ", ".join(f"{total[each]:,} {each}" for each in reversed(OUTCOMES) if total[each])
    return Document(
        "coverage",
        words.STANDING[word],
        word,
        [f"of {len(cells):,} combinations of kernel, dtype, law and sizes: {counts}"],
        [
            Section(rows=rows, layouts=(_LAYOUT, _LAYOUT[1:], ("dtype", "elements", "verdict")), noun="row"),
            Section("wrong", lines=plain(wrong), noun="combination", most=EVERY),
            Section("never tried", lines=plain([f"{', '.join(of)}: {text}" for text, of in never.items()]), most=EVERY),
        ],
        title="Coverage",
    )


def _row(name: str, dtype: str, cells: Sequence[Cell]) -> TableRow:
    """Returns the row of a kernel in a dtype."""
    results = [cell for cell in cells if cell.subject == RESULTS]
    laws = Counter(cell.outcome for cell in cells if cell.subject != RESULTS)
    judged = [f"{cell.sizes} {cell.judged:,}" for cell in results if cell.outcome != "never tried"]
    never = sum(cell.outcome == "never tried" for cell in cells)
    worst = max((cell.outcome for cell in cells), key=OUTCOMES.index)
    standing = {"passed": "ok", "wrong": "wrong", "no verdict": "undecided"}.get(worst, "skipped")
    shown = {
        "output": "",
        "dtype": dtype,
        "elements": ", ".join(judged) or "-",
        "laws": ", ".join(f"{laws[each]} {each}" for each in reversed(OUTCOMES[1:]) if laws[each]) or "-",
        "never tried": str(never),
    }
    return TableRow(words.clean(name), "", {key: words.clean(text) for key, text in shown.items()}, standing, worst)


def _named(cell: Cell) -> str:
    return f"sizes {cell.sizes}" if cell.subject == RESULTS else cell.subject
