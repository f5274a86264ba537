"""Makes flat rows of a run, for pandas: one for each row of the table in the terminal.

    pandas.DataFrame(rows_of(run))

`COLUMNS` names the columns; docs/api.md describes them. Values are text, numbers, True, False or None (unknown, or not
applicable). An error that is NaN or without a bound is `inf`, so that a comparison with the limit finds it.
"""

from typing import Any

from verify.records.figure import rank
from verify.records.record import CLASSES, ORDINARY, Run, replay_command
from verify.records.recorded import judged, largest
from verify.report import result_words, words
from verify.report.present import KernelFacts, ResultFacts, present

Row = dict[str, Any]

COLUMNS = (
    *("kernel", "target", "op", "peer", "kernel_status", "message"),
    *("result", "dtype", "format", "source", "status", "verdict", "reason", "unit", "limit", "limit_ulp"),
    *("max", *CLASSES, "pytorch", "p999", "misrounded", "max_ulp", "nonfinite", "undecided", "open"),
    *("basis", "elements", "seed", "input", "index", "got", "got_hex", "truth", "replay"),
)
UNITS = {"plain": "ULP", "scaled": "ULP scaled", "noise": "noise"}


def rows_of(run: Run) -> list[Row]:
    """Returns the rows of a run, in the order of the table in the terminal."""
    rows = []
    for kernel in present(run).kernels:
        rows += [_row(kernel, each) for each in kernel.results]
        if kernel.is_bare:
            rows.append(_row(kernel))
    return rows


def worst_of(run: Run) -> Row | None:
    """Returns the row of the result furthest beyond its limit, or closest to it. None without results."""
    facts = present(run)
    found = facts.worst or facts.closest
    return None if found is None else _row(found.owner, found)


def _row(facts: KernelFacts, result: ResultFacts | None = None) -> Row:
    kernel = facts.run
    own: Row = {"kernel": kernel.name, "target": kernel.target, "op": words.call(kernel.op, kernel.params)}
    own |= {"peer": kernel.peer, "kernel_status": kernel.status, "message": kernel.message or None}
    return dict.fromkeys(COLUMNS) | own | ({} if result is None else _of_result(result))


def _of_result(facts: ResultFacts) -> Row:
    result, worst = facts.result, facts.worst
    ordinary = next((each for each in result.classes if each.name == ORDINARY), None)
    figures, gate = result.figures, result.gate
    theirs = result.baseline if ordinary is None else ordinary.baseline
    row: Row = {name: getattr(result, name) for name in ("dtype", "source", "status")}
    row |= {name: getattr(figures, name) for name in ("nonfinite", "undecided", "open")}
    row |= {
        "result": result.output,
        "format": result.format or result.dtype,
        "verdict": facts.label,
        "reason": result.reason or None,
        "unit": UNITS[gate],
        "limit": float(result.limit),
        "limit_ulp": result.ulp_limit,
        **{each.name: largest(each.figures, gate) for each in result.classes},
        "max": largest(figures, gate),
        "max_ulp": rank(figures.max_upper),
        "pytorch": None if theirs is None else largest(theirs, gate),
        "p999": rank(judged(figures, gate).p999),
        "misrounded": figures.misrounded / figures.n if figures.n else None,
        "basis": result.basis.kind,
        "elements": result.basis.n,
        "seed": result.basis.seed,
    }
    if worst is not None:
        row |= {name: getattr(worst, name) for name in ("got", "got_hex", "truth")}
        row |= {"input": result_words.named_values(worst.inputs), "index": ", ".join(map(str, worst.index))}
        row["replay"] = replay_command(worst.origin)
    return row
