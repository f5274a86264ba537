"""Integer results on every page: how many are wrong, and never how many ULP."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from tests.measure.test_kernel import few_cases
from verify.backends import Backend
from verify.declare.declaration import Kernel
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records import recorded
from verify.records.record import Result
from verify.report import result_words


def measured(function: Any, backend: Backend, **said: Any) -> Result:
    declared: Kernel = verify.kernel(shapes={"x": "n d"}, dtypes=["float32"], name="it", **said)(function)
    [result] = [each for each in measure_kernel(declared, Measure("here.py::it"), backend).results if each.counts]
    return result


def test_wrong_integers_are_counted(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "mean 1e3")

    def places(x: Tensor) -> Tensor:
        return (x.half() if x.mean() > 100 else x).argmax(-1)

    result = measured(places, backend, like=lambda x: x.argmax(-1))
    if backend.scale == "large":
        pytest.skip("among the rows that a GPU is given, ordinary ones are wrong too")
    [wrong] = [each for each in result.classes if each.reason and each.limit is not None]
    count, n = wrong.figures.misrounded, wrong.figures.n
    assert result.status == "wrong" and 0 < count < n
    assert result.reason == f"{count:,} of {n:,} integers are wrong on demanding inputs"
    assert result_words.of_class(result, "demanding") == f"{count:,} wrong"
    assert result_words.of_class(result, "ordinary") == "0"
    assert result_words.trouble(result) == f"{count:,} wrong on demanding inputs"
    assert result_words.wrong_words(result) == "wrong on demanding inputs"
    assert result_words.limit_of(result) == "no wrong integer"
    worst = recorded.shown_worst(result)
    assert worst is not None and worst.got.isdigit() and worst.truth.isdigit() and worst.got != worst.truth
    assert result_words.error_text(worst, result.gate, counts=True) == "another integer"
    assert not any("ULP" in text for text in (result.reason, result_words.on_average(result)))


@pytest.mark.parametrize("kind", [torch.bool, torch.int32])
def test_right_integers_beside_numbers_are_exact(
    kind: torch.dtype, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_cases(monkeypatch, "randn")
    result = measured(
        lambda x: (2 * x, (x > 0).to(kind)), backend, like=lambda x: (2 * x, x > 0), outputs=["y", "positive"]
    )
    assert (result.output, result.status, result.format) == ("positive", "ok", "integers")
    assert result_words.most(result, result.figures) == "0"
