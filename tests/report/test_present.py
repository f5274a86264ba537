"""The words of the verdict: labels, the worst result, the sentence, the next command."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.golden import answers
from tests.report import pages
from tests.report.sample import KERNELS, empty, figures, incomplete, make, passing, sample
from verify.records import recorded
from verify.records.record import ClassFigures, Gap, KernelRun, LawRun, Origin, Result, Unmeasured
from verify.report import result_words, run_table
from verify.report.html import record_html
from verify.report.present import KernelFacts, present
from verify.report.terminal import text_page
from verify.report.terminal.text_page import Terminal

replace = msgspec.structs.replace


def label(result: Result, **changes: object) -> str:
    return KernelFacts(replace(KERNELS["good"], results=[replace(result, **changes)])).results[0].label  # type: ignore[arg-type]


def few(got: str, **inputs: str) -> str:
    """A few words about an element with these inputs: they name the largest input with its sign."""
    result = KERNELS["nan"].results[0]
    worst = replace(result.worst[0], inputs=inputs, got=got, truth="-4.5e-38")
    part = ClassFigures("demanding", result.figures, 1.0, None, worst, "a reason")
    return result_words.wrong_words(replace(result, status="wrong", classes=[part]))


def test_labels_follow_the_vocabulary_of_the_field() -> None:
    scope = {"one": KERNELS["good"].results[0], "scaled": KERNELS["layer_norm"].results[0], "n": 65_536}
    answers(Path(__file__).parent / "snapshots" / "labels.txt", globals() | scope)


def test_a_result_is_wrong_as_pytorch_in_every_class_of_inputs_or_not_at_all() -> None:
    """A drop-in replacement of PyTorch's function is no worse than it; the words also fit into 80 columns."""
    calm, off = figures(9, 0.5, 0.5, 0.25, 0), figures(9, 4.4, 0.5, 0.25, 3)
    worst = KERNELS["nan"].results[0].worst[0]
    ordinary = ClassFigures("ordinary", calm, 4.0, calm)
    demanding = ClassFigures("demanding", off, 4.0, off, worst, "4.4 ULP on demanding inputs, the limit is 4")
    result = replace(KERNELS["good"].results[0], status="wrong", figures=off, classes=[ordinary, demanding], limit=4.0)
    assert label(result) == "NaN at 1e+01, as PyTorch"
    right = replace(demanding, baseline=calm)  # PyTorch keeps the limit there
    extreme = replace(demanding, name="extreme", baseline=figures(9, 0.6, 0.5, 0.25, 3))
    assert label(result, classes=[ordinary, right]) == "NaN at 1e+01"
    assert label(result, classes=[ordinary, demanding, extreme]) == "NaN at 1e+01"
    assert label(result, classes=[ordinary, replace(demanding, baseline=None)]) == "NaN at 1e+01"
    run = make([replace(KERNELS["good"], status="wrong", results=[result])])
    text = text_page.render(run_table.document(run), Terminal(80))
    assert "✗ as PyTorch\n" in text and "PyTorch is as wrong on the same" in text
    assert "PyTorch is as wrong" not in present(replace(run, kernels=[*run.kernels, KERNELS["nan"]])).sentence


def test_nan_on_demanding_inputs_is_said_beside_a_small_error_on_ordinary_ones() -> None:
    """It decides no order: a result that is far off on ordinary inputs is worse than one that is a little off there."""
    kernel = KERNELS["good"]
    result = replace(kernel.results[0], status="wrong", reason="1.9 ULP on ordinary inputs, the limit is 1", limit=1.0)
    off, nan = figures(9, 1.9, 0.5, 0.25, 3), figures(9, "nan", 0.5, 0.25, 3, nonfinite=2)
    worst = KERNELS["nan"].results[0].worst[0]
    ordinary = ClassFigures("ordinary", off, 1.0, None, worst, result.reason)
    demanding = ClassFigures("demanding", nan, 1.0, None, worst, "NaN at 2 of 9 demanding inputs")
    little = replace(result, figures=nan, classes=[ordinary, demanding])
    assert result_words.trouble(little) == "1.9 ULP on ordinary inputs, NaN on demanding ones"
    large = replace(little, output="dx", classes=[replace(ordinary, figures=figures(9, 7.5, 0.5, 0.25, 3))])
    assert recorded.badness(large) > recorded.badness(little)
    noise = replace(large, gate="noise", classes=[ordinary, replace(demanding, limit=None)])
    assert result_words.trouble(noise).endswith("\N{MULTIPLICATION SIGN} noise on ordinary inputs")

    def text(*results: Result) -> str:
        wrong = replace(kernel, status="wrong", results=list(results))
        return pages.of_run(msgspec.structs.replace(make([kernel]), kernels=[wrong]), Terminal(120))

    assert text(little).count("and      NaN at 2 of 9 demanding inputs: ") == 1
    assert "the worst is gelu_erf dx bfloat16: 7.5 ULP\n" in text(little, large)


def test_a_maximum_beside_open_elements_is_a_lower_end() -> None:
    result = KERNELS["layer_norm"].results[0]
    found = replace(result.figures, open=37, undecided=37)
    endless = replace(result.figures, scaled_upper="inf", max_upper="inf")  # as older records have it
    for each in (found, endless):
        assert label(result, figures=each, classes=[]) == "at least 0.949 ULP scaled, open"
        assert result_words.maximum(each, "scaled") == "≥0.949"
        assert recorded.size_of(each, "scaled", None) == (0, pytest.approx(0.949, abs=1e-3))
    run = make([replace(KERNELS["layer_norm"], results=[replace(result, figures=found)])])
    assert "≥: at least: the errors of other elements are unknown" in pages.of_run(run, Terminal(200))
    assert ">=0.949" in pages.of_run(run, Terminal(200, glyphs=False))
    assert "at least 0.949 ULP scaled, open" in pages.comment_of_run(run)
    page = record_html.render(run)
    assert "at least 0.949 ULP scaled, open" in page and "; 37 open" in page


def test_a_peer_is_never_called_wrong() -> None:
    peer = KERNELS["peer"]
    assert peer.results[0].status == "wrong"
    assert KernelFacts(peer).results[0].label == "255 ULP"
    nan = replace(KERNELS["nan"], peer=True)
    assert KernelFacts(nan).results[0].label == "NaN"
    run = make([KERNELS["good"], nan])
    assert present(run).sentence.startswith("pass: 1 kernel ") and present(run).worst is None
    assert present(run).wrong == []


def test_the_worst_is_nan_then_infinity_then_the_multiple_of_the_limit() -> None:
    def kernel(name: str, top: float | str, limit: float) -> KernelRun:
        base = KERNELS["eager"]
        result = replace(
            base.results[0],
            figures=figures(10, top, top, 1.0, 1),
            limit=limit,  # type: ignore[arg-type]
        )
        return replace(base, name=name, results=[result])

    order = [
        kernel("tight", 6.0, 1.0),
        kernel("loose", 40.0, 10.0),
        kernel("infinite", "inf", 4.0),
        kernel("nan", "nan", 4.0),
    ]
    seen = []
    while order:
        found = present(make(order)).worst
        assert found is not None
        seen.append(found.owner.name)
        order = [item for item in order if item.name != found.owner.name]
    assert seen == ["nan", "infinite", "tight", "loose"]


def test_every_sentence_begins_with_the_verdict_of_the_record() -> None:
    for run in (sample(), passing(), incomplete(), empty()):
        assert present(run).sentence.split(":")[0] == run.verdict


def test_the_next_command() -> None:
    replay = present(sample()).next_command()
    assert replay.startswith("verify replay accuracy.py::exp_tanh_gelu '{")
    raising = [kernel for kernel in sample().kernels if kernel.status == "error"]
    assert present(make(raising[:1])).next_command() == "verify run accuracy.py::geglu_packed"
    hung = [kernel for kernel in sample().kernels if kernel.status in ("timeout", "error")]
    assert present(make(hung)).next_command() == "verify run accuracy.py::geglu_slow"
    assert present(incomplete()).next_command() == "verify run accuracy.py --profile default"
    assert present(empty()).next_command() == "verify list"
    assert present(passing()).next_command() == f"{passing().command} --json run.json --html report.html"
    assert present(passing()).next_command("a b.json") == "verify bounds propose 'a b.json'"


def test_cases_that_nothing_allows_a_kernel_to_refuse_are_counted_in_the_sentence() -> None:
    run = passing()
    one, text = run.kernels[0], "gelu: float32: it refuses 15 of 17 cases"
    refused = [Unmeasured("refused", "float32", [(2, 4)], count, 17, "no", Origin("a", "{}", "y")) for count in (12, 3)]
    laws = [LawRun("shapes", "float32", "ok", 3, "no", refused=2, undeclared=True)]
    kernels = [msgspec.structs.replace(one, unmeasured=refused, laws=laws), *run.kernels[1:]]
    facts = present(msgspec.structs.replace(run, kernels=kernels, incomplete=[Gap("refused", text, one.target)]))
    assert "nothing wrong was seen, but 1 kernel refused 17 of 22 cases without a declaration" in facts.sentence
    assert facts.sentence.startswith("incomplete: ")
    assert facts.next_command() == run.command


def test_what_an_interrupt_stopped_is_called_so_and_counted_once() -> None:
    stopped = replace(KERNELS["good"], status="interrupted", message="not finished: interrupted", results=[], laws=[])
    run = make([stopped], incomplete=[Gap("interrupted", f"{stopped.name}: {stopped.message}", stopped.target)])
    assert run.verdict == "incomplete"
    assert present(run).sentence == "incomplete: nothing wrong was seen, but 1 kernel was interrupted"
    assert [line.text for line in present(run).missing] == [f"{stopped.name}: not finished: interrupted"]
    shown = pages.of_run(run, Terminal(100))
    assert "○ interrupted" in shown and "skipped" not in shown
