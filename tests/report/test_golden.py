"""Each report as a whole, in files: `pytest --renew` with this path writes them after a deliberate change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.golden import golden
from tests.records.bounds.gate_records import HASH, SEEN, book, bound, kernel, result, run
from tests.report import pages
from tests.report.bench_record import timed
from tests.report.sample import incomplete, passing, plain, rich, sample
from tests.report.test_findings import three_defects, without_verdict
from tests.report.test_gate_text import everything
from tests.report.test_html import visible
from tests.report.test_laws import with_laws
from verify import __version__
from verify.records.bounds import changes
from verify.records.bounds.verdict import judge
from verify.records.compare import Comparison, compare
from verify.report import bench_words, checks, ci, compare_words
from verify.report.checks import findings
from verify.report.markdown import comment
from verify.report.terminal.text_page import Terminal, render

SNAPSHOTS = Path(__file__).with_name("snapshots")
RUNS = {
    "sample": sample,
    "plain": plain,
    "rich": rich,
    "passing": passing,
    "incomplete": incomplete,
    "defects": three_defects,
    "unproven": without_verdict,
    "laws": with_laws,
}


def compared() -> Comparison:
    """One figure that grew, one that shrank, one on each side only, and a kernel that fails now."""
    before = [result(positive=0.5, tail=0.5), result(0.5, output="dx"), result(0.9, output="old")]
    after = [result(positive=0.91, tail=0.4), result(0.5, output="dx", bits="other"), result(0.9, output="new")]
    fails = kernel(name="fails", status="crashed", message="the process died of SIGSEGV")
    return compare(run(kernel(*before), kernel(result(0.5), name="fails")), run(kernel(*after), fails))


def of_checks() -> str:
    """Returns the findings of a run and of a verdict, as CI shows them."""
    item, held = everything()
    found = [*checks.of_run(sample()), *checks.of_verdict(judge([item], held), Path("bounds"))]
    return "\n\n".join(f"{each.level} {each.rule}: {each.suite} {each.name}\n{each.text}" for each in findings(found))


def reports() -> dict[str, Callable[[], str]]:
    """Maps the name of a golden file to the function that makes its text."""
    item, held = everything()
    found = judge([item], held)
    both = bound(1.0, properties={"run": HASH, "sweep": HASH, "hunt": HASH})
    moved = changes.review(
        book(both, bound(0.5, regime="low")), book(bound(1.0), bound(0.25, regime="low", basis=SEEN))
    )
    made: dict[str, Callable[[], str]] = {
        "gate-80.txt": lambda: pages.of_gate(found, Terminal(80), records=["my run.json"]),
        "gate-120.txt": lambda: pages.of_gate(found, Terminal(120), everything=True, records=["run.json"]),
        "gate.md": lambda: pages.comment_of_gate(found, compared()),
        "compare-80.txt": lambda: pages.of_comparison(compared(), Terminal(80)),
        "compare-120.txt": lambda: pages.of_comparison(compared(), Terminal(120), everything=True),
        "compare.md": lambda: comment.render(compare_words.document(compared())),
        "proposal.txt": lambda: pages.of_proposal(changes.propose([item], held), Terminal(100), written=["a.toml"]),
        "review.txt": lambda: pages.of_review(moved, "HEAD", Terminal(100)),
        "bench.txt": lambda: render(bench_words.document(timed()), Terminal(200)),
        "checks.txt": of_checks,
        # which met the official schema of SARIF 2.1.0 when it was written
        "plain.sarif": lambda: ci.sarif(checks.of_run(plain())).decode().replace(__version__, "VERSION"),
    }
    for name, of in RUNS.items():
        made[f"{name}.md"] = lambda of=of: pages.comment_of_run(of(), record="run.json")
        if name in ("sample", "rich", "passing", "unproven"):
            made[f"page-{name}.txt"] = lambda of=of: visible(of())
        for width in (80, 120):
            made[f"terminal-{name}-{width}.txt"] = lambda of=of, width=width: pages.of_run(of(), Terminal(width))
    return made


REPORTS = reports()


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_its_golden_file(name: str) -> None:
    golden(SNAPSHOTS / name, REPORTS[name]())


def test_every_golden_file_has_its_report() -> None:
    assert {path.name for path in SNAPSHOTS.iterdir()} == {*REPORTS, "figures.txt", "labels.txt"}


def test_a_comment_without_changes_is_one_line() -> None:
    item = run(kernel(result(0.98, low=0.98, high=0.98)))
    held = book(bound(1.0, regime="low"), bound(1.0, regime="high"))
    for other in (None, compare(item, item)):
        assert pages.comment_of_gate(judge([item], held), other) == "✓ verify gate: no changes: all 2 bounds hold.\n"


def test_a_truth_that_no_format_holds_is_shortened() -> None:
    tiny = result(0.9)
    [worst] = tiny.worst
    tiny = msgspec.structs.replace(tiny, worst=[msgspec.structs.replace(worst, truth="-7.433123e-" + 77 * "2")])
    found = judge([run(kernel(tiny))], book(bound(0.5)))
    for text in (pages.of_gate(found, Terminal(120)), pages.comment_of_gate(found)):
        assert "22222222" not in text and "7.433" in text
