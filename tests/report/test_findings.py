"""What a maintainer would fix first: one cause is one finding, the most ordinary inputs come first."""

from __future__ import annotations

import msgspec

from tests.report.sample import KERNELS, figures, make
from verify.records.record import Result, Run
from verify.report.present import present

replace = msgspec.structs.replace


def broken(result: Result, output: str, dtype: str, of: str, size: float | str) -> Result:
    """The same result, wrong on inputs of one class."""
    worst = replace(result.worst[0], got="nan" if size == "nan" else "0.5", ulp=size)
    inside = replace(result.classes[0], name=of, figures=figures(9, size, size, 0.0, 9), worst=worst, reason="x")
    return replace(result, output=output, dtype=dtype, figures=inside.figures, classes=[inside], worst=[worst])


def three_defects() -> Run:
    run = make([KERNELS["eager"], KERNELS["nan"]])
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


def without_verdict() -> Run:
    """One kernel whose limit zeros would keep in two dtypes, and one whose vacuous limit is accepted."""
    first, other = make([KERNELS["eager"], KERNELS["nan"]]).kernels
    (result, *_) = first.results
    inside = [replace(result.classes[0], reason="")]
    calm = replace(result, status="ok", reason="", classes=inside, worst=[], limit=1e9)
    counted = replace(inside[0].figures, rms=1.3, bias=-0.02, bias_error=0.01, weighed=100)
    inside = [replace(inside[0], figures=counted)]
    empty = replace(calm, output="dx", gate="noise", status="vacuous", reason="zeros would pass", classes=inside)
    empty = replace(empty, limit=8.0, ulp_limit=4.0)
    accepted = replace(calm, trivial="its limit is vacuous, which the declaration accepts: saturated inputs")
    results = [empty, replace(empty, dtype="float16"), replace(empty, output="y", status="undecided", reason="open")]
    noted = replace(other, status="ok", results=[accepted], unrepeatable="", message="", laws=[])
    return make([replace(first, status="undecided", results=results, laws=[]), noted])
