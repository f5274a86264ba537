"""What a maintainer would fix first: one cause is one finding, the most ordinary inputs come first."""

from __future__ import annotations

import msgspec

from tests.report.sample import eager_kernel, figures, make, nan_kernel
from verify.records.record import Result, Run
from verify.report.html import record_html
from verify.report.markdown import record_markdown
from verify.report.markdown.comment import inert
from verify.report.present import present
from verify.report.result_words import limit_of, on_average, result_notes
from verify.report.terminal import record_text
from verify.report.terminal.text_page import Terminal

replace = msgspec.structs.replace


def broken(result: Result, output: str, dtype: str, of: str, size: float | str) -> Result:
    """The same result, wrong on inputs of one class."""
    worst = replace(result.worst[0], got="nan" if size == "nan" else "0.5", ulp=size)
    inside = replace(result.classes[0], name=of, figures=figures(9, size, size, 0.0, 9), worst=worst, reason="x")
    return replace(result, output=output, dtype=dtype, figures=inside.figures, classes=[inside], worst=[worst])


def three_defects() -> Run:
    run = make([eager_kernel(), nan_kernel()])
    first, other = run.kernels
    (result, *_) = first.results
    results = [
        broken(result, "y", "float32", "demanding", "nan"),
        broken(result, "dx", "float32", "demanding", "nan"),  # of the same inputs
        broken(result, "y", "bfloat16", "extreme", 900.0),
        broken(result, "dw", "float16", "ordinary", 50.0),
        broken(result, "dw", "float32", "ordinary", 70.0),
        broken(result, "y", "float16", "demanding", "nan"),
    ]
    calm = replace(other, status="ok", results=[replace(other.results[0], status="ok", reason="")])
    return replace(run, kernels=[replace(first, results=results), calm])


def test_results_of_one_cause_are_one_finding_and_ordinary_inputs_come_first() -> None:
    found = present(three_defects()).findings
    assert [(each.result.output, each.result.dtype, each.also_words) for each in found] == [
        ("dw", "float32", "dw float16 (50)"),
        ("y", "float32", "dx float32 (NaN); y float16 (NaN)"),
        ("y", "bfloat16", ""),
    ]


def test_the_page_has_each_cause_once_before_the_table() -> None:
    run = three_defects()
    page = record_html.render(run)
    front = page[page.index('<h2 id="worst-title">') : page.index('<h2 id="results-title">')]
    texts = [f"{each.result.output} {each.result.dtype}" for each in present(run).findings]
    heads = [front.index(f"</a>, {texts[0]}:"), *(front.index(f" {text}</a></h3>") for text in texts[1:])]
    assert heads == sorted(heads)
    assert "Of the same cause: dw float16 (50)" in front and "<dd>dx float32 (NaN); y float16 (NaN)</dd>" in front
    assert front.count('<div class="command">') == len(present(run).findings)
    assert "Other causes" not in record_html.render(make([eager_kernel()]))


def without_verdict() -> Run:
    """One kernel whose limit zeros would keep in two dtypes, and one whose vacuous limit is accepted."""
    first, other = make([eager_kernel(), nan_kernel()]).kernels
    (result, *_) = first.results
    inside = [replace(result.classes[0], reason="")]
    calm = replace(result, status="ok", reason="", classes=inside, worst=[], limit=1e9)
    counted = replace(inside[0].figures, rms=1.3, bias=-0.02, bias_error=0.01, weighed=100)
    inside = [replace(inside[0], figures=counted)]
    empty = replace(calm, output="dx", gate="noise", status="vacuous", reason="zeros would pass", classes=inside)
    empty = replace(empty, limit=8.0, ulp_limit=4.0)
    accepted = replace(calm, trivial="saturated inputs")
    results = [empty, replace(empty, dtype="float16"), replace(empty, output="y", status="undecided", reason="open")]
    noted = replace(other, status="ok", results=[accepted], unrepeatable="", message="", laws=[])
    return make([replace(first, status="undecided", results=results, laws=[]), noted])


def test_an_accepted_vacuous_limit_is_shown_and_passes() -> None:
    run = without_verdict()
    run = replace(run, kernels=run.kernels[1:])
    note = "its limit is vacuous, which the declaration accepts: saturated inputs"
    assert run.verdict == "pass"
    assert note in " ".join(record_text.render(run, Terminal(200)).split())
    assert inert(f"y bfloat16: {note}") in record_markdown.render(run)
    assert note in record_html.render(run)


def test_a_trivial_answer_that_is_right_is_a_note() -> None:
    run = without_verdict()
    (result,) = run.kernels[1].results
    trivial = "on ordinary inputs zeros are right"
    assert result_notes(replace(result, trivial=trivial)) == [f"y bfloat16: {trivial}"]


def test_the_figures_of_a_result_stand_in_its_details() -> None:
    run = make([eager_kernel()])
    (kernel,) = run.kernels
    part = kernel.results[0].classes[0]
    own = replace(part.figures, n=100, misrounded=20, scaled_max=3.0, scaled_upper=3.0, rms=2.6)
    own = replace(own, bias=0.5, bias_error=0.01, weighed=100)
    theirs = replace(own, misrounded=10, scaled_max=0.1, scaled_upper=0.1)
    of_noise = {"gate": "noise", "limit": 8.0, "ulp_limit": 4.0}
    inside = [replace(part, figures=replace(own, scaled_max=14.0, scaled_upper=14.0), baseline=theirs, reason="rms")]
    result = replace(kernel.results[0], classes=inside, **of_noise)
    told = "rms 2.6; bias +0.5 +- 0.01 ULP; misrounded 20.0%, PyTorch 10.0%; worse than PyTorch 14 times"
    assert (limit_of(result), on_average(result)) == ("8× noise or 4 ULP", told)
    run = replace(run, kernels=[replace(kernel, results=[result])])
    page = record_html.render(run)
    assert f"Ordinary inputs: {told}." in page and "limit 8× noise or 4 ULP" in page
    assert inert(told) in record_markdown.render(run)
    assert told in " ".join(record_text.render(run, Terminal(200)).split())
    plain = replace(result, gate="plain", limit=4.0, ulp_limit=None, classes=[])
    assert limit_of(plain) == "4 ULP" and on_average(plain).startswith("misrounded ")
