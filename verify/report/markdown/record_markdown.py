"""The report as GitHub Markdown, for a pull request or job summary: verdict first, details folded.

Results in order are rows while there are few; of many, each kernel is one line.
"""

from __future__ import annotations

from verify.records.record import CLASSES, RESULT_STATUSES, KernelRun, LawRun, Result, Run, replay_command
from verify.report import findings, run_words, words
from verify.report.judged import limit_of, on_average, remedy, result_notes
from verify.report.markdown.comment import Budget, code, fenced, inert, table_row
from verify.report.run_words import Found
from verify.report.signs import GLYPHS, STANDING

RANK = {
    "wrong": 0,
    "crashed": 1,
    "timeout": 2,
    "error": 3,
    "undecided": 4,
    "vacuous": 4,
    "interrupted": 4,
    "skipped": 4,
    "ok": 5,
    "peer": 6,
}
HEADER = (
    "| kernel | result | dtype | ordinary | demanding | extreme | basis | PyTorch | verdict |\n"
    "| --- | --- | --- | ---: | ---: | ---: | --- | ---: | --- |"
)
MOST_LINES = 12
MOST_ROWS = 60  # of results in order, and of peers


def render(run: Run, *, limit: int = 60_000, record: str = "") -> str:
    """The whole comment, at most `limit` bytes; `record` is the path for the next command."""
    sign = GLYPHS[STANDING[run.verdict]]
    budget = Budget(limit)
    budget.must(f"### {sign} verify: {_verdict(run)}\n")
    closing = f"\nNext:\n\n{fenced(run_words.next_command(run, record=record))}\n{_setting(run)}\n"
    budget.reserve(closing)
    if limits := run_words.limits_of(run):
        lines = [f"- {code(run_words.name_of(kernel))} {inert(text)}" for kernel, text in limits]
        budget.fill(lines, "limits", head="**Limits**\n")
    if missing := run_words.not_measured(run):
        budget.fill(
            [f"- {inert(gap.text)}" for gap in missing],
            "things that were not measured",
            head="**Not measured**\n",
        )
    wrong = [_unrepeatable(kernel) for kernel in run_words.unrepeatable(run)]
    wrong += [_worst(found) for found in findings.findings(run)]
    wrong += [_law(kernel, law) for kernel, law in run_words.broken_laws(run)]
    unproven = [_unproven(found) for found in findings.unproven(run)]
    failed = [_failure(kernel) for kernel in run_words.failures(run)]
    rows = _rows(run)
    calm = [line for rank, line in rows if rank >= RANK["ok"]]
    # a long table must not crowd out the worst inputs
    share = 0.6 if wrong or failed or unproven else 1.0
    budget.fill([line for rank, line in rows if rank < RANK["ok"]], "rows", head=HEADER, foot=_notes(run), share=share)
    budget.fill(wrong, "wrong results", share=0.95)  # what follows needs room to say how much of it is left out
    budget.fill(unproven, "results without a verdict")
    budget.fill(failed, "failed kernels")
    judged = [(kernel, result) for kernel in run.kernels if not kernel.peer for result in kernel.results]
    noted = [f"- {code(kernel.name)} {inert(text)}" for kernel, result in judged for text in result_notes(result)]
    budget.fill(noted, "notes", head="**Notes**\n")
    within = f"<details><summary>{words.plural(len(calm), 'row')} in order, or of peers</summary>\n\n"
    if len(calm) <= MOST_ROWS:
        budget.fill(calm, "rows", head=within + HEADER, foot="\n</details>\n")
    else:
        budget.fill(_calm_kernels(run), "kernels", head=within, foot="\n</details>\n")
    budget.fill(_untried(run), "reasons", head=_UNTRIED, foot="\n</details>\n")
    return budget.text()


_UNTRIED = "<details><summary>○ laws not applicable, by reason</summary>\n"


def _untried(run: Run) -> list[str]:
    return [f"- {inert(reason)} ({inert(what)})" for reason, what in run_words.untried_laws(run)]


def _verdict(run: Run) -> str:
    return f"**{run.verdict}:** {inert('; '.join(run_words.clauses(run)))}"


def _setting(run: Run) -> str:
    return f"<sub>{inert(run_words.setting(run))}; record {code(run.id)}</sub>"


def _notes(run: Run) -> str:
    results = [result for kernel in run.kernels for result in kernel.results]
    notes = []
    if results:
        notes.append("ordinary, demanding, extreme: the largest error in ULP on inputs of that class.")
    gates = {result.gate for result in results}
    notes += [f"{words.MARK[gate].strip()}: {text}." for gate, text in words.LEGEND.items() if gate in gates]
    if any("≥" in run_words.of_class(result, name) for result in results for name in CLASSES):
        notes.append(f"≥: {words.OPEN}.")
    if any(kernel.peer for kernel in run.kernels):
        notes.append("peer: measured for comparison, not judged.")
    return f"\n<sub>{' '.join(notes)}</sub>\n" if notes else ""


def _rows(run: Run) -> list[tuple[int, str]]:
    """(rank, row), worst first, so that what is left out for length is what matters least."""
    found: list[tuple[tuple[float, ...], str]] = []
    for kernel in run.kernels:
        for result in run_words.leading(kernel):
            standing = run_words.standing(kernel, result)
            order = (RANK[standing], *(-part for part in run_words.badness(result)))
            found.append((order, _row(kernel, result, standing)))
        if not kernel.results or kernel.status not in RESULT_STATUSES:
            standing = run_words.standing(kernel)
            word = run_words.STATUS_WORD[kernel.status]
            cells = [code(run_words.name_of(kernel)), *[""] * 7, f"{GLYPHS[standing]} {word}"]
            found.append(((RANK[standing],), table_row(cells)))
    return [(int(order[0]), line) for order, line in sorted(found, key=lambda pair: pair[0])]


def _calm_kernels(run: Run) -> list[str]:
    """A line for each kernel with results in order, peers last."""
    kernels = [
        kernel
        for kernel in run.kernels
        if any(run_words.standing(kernel, result) in ("ok", "peer") for result in kernel.results)
    ]
    return [
        f"- {GLYPHS[run_words.standing(kernel)]} {code(run_words.name_of(kernel))}: {inert(run_words.summary(kernel))}"
        for kernel in sorted(kernels, key=lambda item: item.peer)
    ]


def _row(kernel: KernelRun, result: Result, standing: str) -> str:
    scaled = "" if run_words.maximum(result.figures, result.gate) == "NaN" else words.MARK[result.gate]
    label = run_words.label(kernel, result)
    return table_row(
        [
            code(run_words.name_of(kernel)),
            code(result.output),
            code(words.dtype_of(result)),
            *(inert(run_words.of_class(result, name)) + scaled * (at == 0) for at, name in enumerate(CLASSES)),
            words.basis_of(result),
            run_words.baseline_of(result),
            f"{GLYPHS[standing]} " + (f"**{label}**" if standing == "wrong" else label),
        ]
    )


def _failure(kernel: KernelRun) -> str:
    lines = words.clean_lines(kernel.message) if kernel.message else ["no message was recorded"]
    if len(lines) > MOST_LINES:
        lines = [
            f"… {len(lines) - MOST_LINES} lines left out; the record has them",
            *lines[-MOST_LINES:],
        ]
    shown = "<br>".join(code(line) for line in lines if line)
    sign, word = GLYPHS[run_words.standing(kernel)], run_words.STATUS_WORD[kernel.status]
    advice = run_words.advice(kernel)
    hint = f"Next: {inert(advice)}\n\n" if advice else ""
    return (
        f"<details><summary>{sign} {word}: {code(run_words.name_of(kernel))}</summary>\n\n"
        f"{shown}\n\n{hint}{fenced(run_words.rerun(kernel))}\n</details>\n"
    )


def _unrepeatable(kernel: KernelRun) -> str:
    rows = [("why", inert(kernel.unrepeatable)), ("besides", inert(run_words.besides(kernel)))]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows if value)
    heading = f"<summary>✗ {code(run_words.name_of(kernel))}: not deterministic</summary>"
    return f"<details>{heading}\n\n| | |\n| --- | --- |\n{table}\n\n{fenced(run_words.replay_of(kernel))}\n</details>\n"


def _law(kernel: KernelRun, law: LawRun) -> str:
    facts = [("why", inert(law.message)), *((inert(k), code(v)) for k, v in law.facts.items())]
    if besides := run_words.besides(kernel, law):
        facts.append(("besides", inert(besides)))
    table = "\n".join(f"| {key} | {value} |" for key, value in facts)
    heading = f"<summary>✗ {code(run_words.law_title(kernel, law))}: {run_words.law_word(law)}</summary>"
    return f"<details>{heading}\n\n| | |\n| --- | --- |\n{table}\n\n{fenced(replay_command(law.origin))}\n</details>\n"


def _unproven(found: Found) -> str:
    result = found.result
    facts = [("why", inert(result.reason)), ("also", inert(findings.also(found))), ("next", inert(remedy(result)))]
    table = "\n".join(f"| {key} | {value} |" for key, value in facts if value)
    name = " ".join(code(part) for part in (run_words.name_of(found.kernel), result.output, result.dtype))
    heading = f"<summary>{GLYPHS[result.status]} {name}: {result.status}</summary>"
    return f"<details>{heading}\n\n| | |\n| --- | --- |\n{table}\n\n</details>\n"


def _worst(found: Found) -> str:
    kernel, result, worst = found.kernel, found.result, found.worst
    maximum = run_words.maximum(result.figures, result.gate)
    figure = maximum if maximum == "NaN" else f"{maximum}{words.UNIT[result.gate]}"
    name = " ".join(code(part) for part in (run_words.name_of(kernel), result.output, result.dtype))
    facts = [
        ("limit", limit_of(result)),
        ("max", f"{figure}, {words.basis_of(result)}"),
        ("on average", inert(on_average(result))),
    ]
    if worst is not None:
        where = run_words.index_text(worst)
        facts = [
            ("input", code(run_words.inputs_text(worst)) + (f" at {code(where)}" if where else "")),
            ("got", f"{code(worst.got)} ({code(worst.got_hex)})"),
            ("truth", code(words.truth(worst.truth))),
            ("error", inert(run_words.error_text(worst, result.gate))),
            *facts,
        ]
    if result.reason:
        facts.insert(0, ("why", inert(result.reason)))
    if found.also:
        facts.append(("also", inert(findings.also(found))))
    if result.figures.nonfinite:
        count = words.share(result.figures.nonfinite, result.figures.n).replace("<", "&lt;").replace(">", "&gt;")
        facts.append(("NaN or infinity on one side", f"{result.figures.nonfinite:,} elements ({count})"))
    table = "\n".join(f"| {key} | {value} |" for key, value in facts)
    replay = f"\n{fenced(replay_command(worst.origin))}" if worst is not None else ""
    heading = f"<summary>✗ {name}: {figure}</summary>"
    return f"<details>{heading}\n\n| | |\n| --- | --- |\n{table}\n{replay}\n</details>\n"
