"""Writes the report as GitHub Markdown, for a pull request or job summary: verdict first, details folded.

Results in order have a row each while there are few. If there are many, each kernel has one line.
"""

from __future__ import annotations

from verify.records.record import LawRun, Run, replay_command
from verify.report import result_words, words
from verify.report.markdown.comment import Budget, code, fenced, inert, table_row
from verify.report.present import Facts, KernelFacts, ResultFacts, ResultRow, law_word, present
from verify.report.result_words import limit_of, on_average, remedy, result_notes
from verify.report.signs import CALM, GLYPHS, STANDING

HEADER = (
    "| kernel | result | dtype | ordinary | demanding | extreme | basis | PyTorch | verdict |\n"
    "| --- | --- | --- | ---: | ---: | ---: | --- | ---: | --- |"
)
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
    wrong = [_unrepeatable(kernel) for kernel in facts.unrepeatable]
    wrong += [_worst(found) for found in facts.findings]
    wrong += [_law(kernel, law) for kernel, law in facts.broken_laws]
    unproven = [_unproven(found) for found in facts.unproven]
    failed = [_failure(kernel) for kernel in facts.failures]
    loud = [_row(row) for row in facts.rows if row.standing not in CALM]
    calm = [_row(row) for row in facts.rows if row.standing in CALM]
    # A long table must leave room for the worst inputs.
    share = 0.6 if wrong or failed or unproven else 1.0
    budget.fill(loud, "rows", head=HEADER, foot=_notes(facts), share=share)
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


def _notes(facts: Facts) -> str:
    results = [each for kernel in facts.kernels for each in kernel.results]
    notes = []
    if results:
        notes.append("ordinary, demanding, extreme: the largest error in ULP on inputs of that class.")
    gates = {each.result.gate for each in results}
    notes += [f"{words.MARK[gate].strip()}: {text}." for gate, text in words.LEGEND.items() if gate in gates]
    if any("≥" in text for each in results for text in each.classes.values()):
        notes.append(f"≥: {words.OPEN}.")
    if any(kernel.run.peer for kernel in facts.kernels):
        notes.append("peer: measured for comparison, not judged.")
    return f"\n<sub>{' '.join(notes)}</sub>\n" if notes else ""


def _calm_kernels(facts: Facts) -> list[str]:
    """Returns a line for each kernel with results in order, peers last."""
    kernels = [kernel for kernel in facts.kernels if any(each.standing in CALM for each in kernel.results)]
    return [
        f"- {GLYPHS[kernel.standing]} {code(kernel.name)}: {inert(kernel.summary)}"
        for kernel in sorted(kernels, key=lambda item: item.run.peer)
    ]


def _row(row: ResultRow) -> str:
    sign, each = GLYPHS[row.standing], row.result
    if each is None:
        return table_row([code(row.kernel.name), *[""] * 7, f"{sign} {row.kernel.word}"])
    mark = "" if each.maximum == "NaN" else each.mark
    ordinary, *others = map(inert, each.classes.values())
    return table_row(
        [
            code(row.kernel.name),
            code(each.result.output),
            code(words.dtype_of(each.result)),
            ordinary + mark,
            *others,
            words.basis_of(each.result),
            each.baseline,
            f"{sign} " + (f"**{each.label}**" if row.standing == "wrong" else each.label),
        ]
    )


def _folded(heading: str, facts: list[tuple[str, str]], command: str = "") -> str:
    """Returns a table of facts behind a heading, and a command that shows them again."""
    table = "\n".join(f"| {name} | {value} |" for name, value in facts)
    again = f"{fenced(command)}\n" if command else ""
    return f"<details><summary>{heading}</summary>\n\n| | |\n| --- | --- |\n{table}\n\n{again}</details>\n"


def _failure(kernel: KernelFacts) -> str:
    shown = "<br>".join(code(line) for line in kernel.last_words(MOST_LINES) if line)
    hint = f"Next: {inert(kernel.advice)}\n\n" if kernel.advice else ""
    return (
        f"<details><summary>{GLYPHS[kernel.standing]} {kernel.word}: {code(kernel.name)}</summary>\n\n"
        f"{shown}\n\n{hint}{fenced(kernel.rerun)}\n</details>\n"
    )


def _unrepeatable(kernel: KernelFacts) -> str:
    facts = [("why", inert(kernel.run.unrepeatable)), ("besides", inert(kernel.besides()))]
    shown = [(name, value) for name, value in facts if value]
    return _folded(f"✗ {code(kernel.name)}: not deterministic", shown, kernel.replay)


def _law(kernel: KernelFacts, law: LawRun) -> str:
    facts = [("why", inert(law.message)), *((inert(name), code(value)) for name, value in law.facts.items())]
    if besides := kernel.besides(law):
        facts.append(("besides", inert(besides)))
    return _folded(f"✗ {code(kernel.law_title(law))}: {law_word(law)}", facts, replay_command(law.origin))


def _name(found: ResultFacts) -> str:
    return " ".join(map(code, (found.owner.name, found.result.output, found.result.dtype)))


def _unproven(found: ResultFacts) -> str:
    result = found.result
    facts = [("why", inert(result.reason)), ("also", inert(found.also_words)), ("next", inert(remedy(result)))]
    shown = [(name, value) for name, value in facts if value]
    return _folded(f"{GLYPHS[result.status]} {_name(found)}: {result.status}", shown)


def _worst(found: ResultFacts) -> str:
    """Returns a folded block for one wrong result."""
    result, worst = found.result, found.worst
    facts = [("why", inert(result.reason))] if result.reason else []
    if worst is not None:
        where = result_words.index_text(worst)
        facts += [
            ("input", code(result_words.inputs_text(worst)) + (f" at {code(where)}" if where else "")),
            ("got", code(worst.got) + ("" if result.counts else f" ({code(worst.got_hex)})")),
            ("truth", code(words.truth(worst.truth))),
            ("error", inert(result_words.error_text(worst, result.gate, counts=result.counts))),
        ]
    facts += [
        ("limit", limit_of(result)),
        ("max", f"{found.figure}, {words.basis_of(result)}"),
        ("on average", inert(on_average(result))),
    ]
    if found.also:
        facts.append(("also", inert(found.also_words)))
    if result.figures.nonfinite:
        count = words.share(result.figures.nonfinite, result.figures.n).replace("<", "&lt;").replace(">", "&gt;")
        facts.append(("NaN or infinity on one side", f"{result.figures.nonfinite:,} elements ({count})"))
    heading = f"✗ {_name(found)}: {found.figure}"
    return _folded(heading, facts, "" if worst is None else replay_command(worst.origin))
