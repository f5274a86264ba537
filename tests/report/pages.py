"""Pages of every subject as text of a terminal or as a comment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verify.records.bounds.changes import Change, Proposal
from verify.records.bounds.verdict import Verdict
from verify.records.compare import Comparison
from verify.records.record import Run
from verify.report import bounds_words, compare_words, gate_words, run_table
from verify.report.markdown import comment
from verify.report.terminal.text_page import Terminal, render


def of_run(run: Run, terminal: Terminal, *, record: str = "") -> str:
    return render(run_table.document(run, record=record), terminal)


def of_gate(verdict: Verdict, terminal: Terminal, **more: Any) -> str:
    return render(gate_words.document(verdict, **more), terminal)


def of_comparison(found: Comparison, terminal: Terminal, **more: Any) -> str:
    return render(compare_words.document(found, **more), terminal)


def of_proposal(found: Proposal, terminal: Terminal, written: Sequence[str]) -> str:
    return render(bounds_words.proposal(found, written=written), terminal)


def of_review(found: Sequence[Change], base: str, terminal: Terminal) -> str:
    return render(bounds_words.review(found, base), terminal)


def comment_of_run(run: Run, *, limit: int = comment.LIMIT, record: str = "") -> str:
    return comment.render(run_table.document(run, record=record), limit=limit)


def comment_of_gate(verdict: Verdict, base: Comparison | None = None, *, limit: int = comment.LIMIT) -> str:
    others = [] if base is None else [compare_words.document(base)]
    return comment.render(gate_words.document(verdict), *others, limit=limit)
