"""Writes the report as GitHub Markdown, for a pull request or job summary: verdict first, details folded.

Results in order have a row each while there are few. If there are many, each kernel has one line.
"""

from __future__ import annotations

from verify.records.record import CLASSES, Run
from verify.report import blocks, run_table, words
from verify.report.markdown.comment import Budget, code, fenced, figures_head, figures_row, folded, inert
from verify.report.present import Facts, present
from verify.report.result_words import result_notes
from verify.report.signs import CALM, GLYPHS, STANDING

COLUMNS = ("output", "dtype", *CLASSES, "basis", "baseline", "verdict")
HEADER = figures_head(COLUMNS)
MOST_LINES = 12
MOST_ROWS = 60  # of results in order, and of peers


def render(run: Run, *, limit: int = 60_000, record: str = "") -> str:
    """Returns the whole comment, at most `limit` bytes. `record` is the path for the next command."""
    facts, sign, budget = present(run), GLYPHS[STANDING[run.verdict]], Budget(limit)
    budget.must(f"### {sign} verify: **{run.verdict}:** {inert('; '.join(facts.clauses))}\n")
    setting = f"<sub>{inert(facts.setting)}; record {code(run.id)}</sub>"
    budget.reserve(f"\nNext:\n\n{fenced(facts.next_command(record))}\n{setting}\n")
    limits = [f"- {code(kernel.name)} {inert(text)}" for kernel, text in facts.limits]
    budget.fill(limits, "limits", head="**Limits**\n")
    missing = [f"- {inert(gap.text)}" for gap in facts.missing]
    budget.fill(missing, "things that were not measured", head="**Not measured**\n")
    wrong = [folded(blocks.unrepeatable(kernel)) for kernel in facts.unrepeatable]
    wrong += [folded(blocks.wrong(found)) for found in facts.findings]
    wrong += [folded(blocks.broken(kernel, law)) for kernel, law in facts.broken_laws]
    unproven = [folded(blocks.unproven(found)) for found in facts.unproven]
    failed = [folded(block) for block in blocks.failures(facts.failures, MOST_LINES)]
    rows = [run_table.row_of(*row) for row in facts.rows]
    loud = [figures_row(COLUMNS, row) for row in rows if row.standing not in CALM]
    calm = [figures_row(COLUMNS, row) for row in rows if row.standing in CALM]
    notes = f"\n<sub>{'. '.join(run_table.footnotes(facts))}</sub>\n" if facts.kernels else ""
    # A long table must leave room for the worst inputs.
    share = 0.6 if wrong or failed or unproven else 1.0
    budget.fill(loud, "rows", head=HEADER, foot=notes, share=share)
    budget.fill(wrong, "wrong results", share=0.95)  # later parts need room to note how much is omitted
    budget.fill(unproven, "results without a verdict")
    budget.fill(failed, "failed kernels")
    judged = [(kernel.run.name, result) for kernel in facts.judged for result in kernel.run.results]
    noted = [f"- {code(name)} {inert(text)}" for name, result in judged for text in result_notes(result)]
    budget.fill(noted, "notes", head="**Notes**\n")
    within = f"<details><summary>{words.plural(len(calm), 'row')} in order, or of peers</summary>\n\n"
    if len(calm) <= MOST_ROWS:
        budget.fill(calm, "rows", head=within + HEADER, foot="\n</details>\n")
    else:
        budget.fill(_calm_kernels(facts), "kernels", head=within, foot="\n</details>\n")
    untried = [f"- {inert(reason)} ({inert(what)})" for reason, what in facts.untried_laws]
    budget.fill(untried, "reasons", head=_UNTRIED, foot="\n</details>\n")
    return budget.text()


_UNTRIED = "<details><summary>○ laws not applicable, by reason</summary>\n"


def _calm_kernels(facts: Facts) -> list[str]:
    """Returns a line for each kernel with results in order, peers last."""
    kernels = [kernel for kernel in facts.kernels if any(each.standing in CALM for each in kernel.results)]
    return [
        f"- {GLYPHS[kernel.standing]} {code(kernel.name)}: {inert(kernel.summary)}"
        for kernel in sorted(kernels, key=lambda item: item.run.peer)
    ]
