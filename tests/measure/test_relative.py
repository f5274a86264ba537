"""A promise of whole rows: kernels that quantise inside keep it, and mistakes that limits of elements hide break it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.measure.test_kernel import few_cases
from verify import backends
from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.record import KernelRun

SHAPES = {"q": "h s d", "k": "h t d", "v": "h t d"}


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def in_steps(x: Tensor, most: int) -> Tensor:
    """Rounded to whole numbers of steps, as many as `most` for the largest number of a row."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / most
    return (x / scale).round() * scale


def quantised(q: Tensor, k: Tensor, v: Tensor, most: int = 127) -> Tensor:
    return attention(in_steps(q.float(), most), in_steps(k.float(), most), v.float())


def padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys beyond the end take part with a score of 0, as in a public kernel."""
    k, v = (functional.pad(x, (0, 0, 0, -k.shape[1] % 64)) for x in (k, v))
    return quantised(q, k, v)


def one_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last query of the last head is 6% off: 3 units, where elements of a right kernel have up to 8."""
    y = quantised(q, k, v)
    y[-1:, -1:] *= 1.06
    return y


def judged(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Tensor], promise: Any, dtype: str = "bfloat16"
) -> tuple[Kernel, KernelRun]:
    few_cases(monkeypatch, "randn")
    declare = verify.kernel(like=attention, shapes=SHAPES, where="d >= 1", dtypes=[dtype], promise=promise, name="k")
    kernel = declare(lambda q, k, v: function(q, k, v).to(q.dtype))
    return kernel, measure_kernel(kernel, Measure("here.py::k"), backends.select())


def test_int8_scores_keep_a_promise_of_two_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, done = judged(monkeypatch, quantised, verify.relative_rms(0.02))
    assert done.results[0].status == "ok", done.results[0].reason
    assert "y within 0.02 of the root mean square of each row" in kernel.promise
    (note,) = [each for each in done.notes if each.startswith("y bfloat16: the error is ")]
    own, theirs = (float(words.split()[0].strip(",")) for words in note.partition("error is ")[2].split("PyTorch's "))
    assert 0.001 < theirs < own < 0.02
    assert "where rounding to bfloat16 gives about 0.0015; promised within 0.02" in note


@pytest.mark.parametrize(
    "function", [padded, one_row, lambda q, k, v: quantised(q, k, v, most=7)], ids=["padded", "one row", "four bits"]
)
def test_a_mistake_breaks_it(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Tensor]) -> None:
    _, done = judged(monkeypatch, function, verify.relative_rms(0.02), "float32")
    assert done.results[0].status == "wrong"
    assert "lie in rows that are not within 0.02 of the root mean square of each row" in done.results[0].reason


def test_a_head_and_the_tensor_average_over_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, got = torch.ones(2, 4, 8, dtype=torch.float64), torch.ones(2, 4, 8, dtype=torch.float64)
    got[1, 3] = 1.06
    for per, share, count in (("row", 0.05, 8), ("row", 0.07, 0), ("head", 0.025, 32), ("head", 0.035, 0)):
        assert int(verify.relative_rms(share, per=per).broken(got, truth).sum()) == count, (per, share)
    assert int(verify.relative_rms(0.02, per="tensor").broken(got, truth).sum()) == 64
    got[1, 3, 0] = math.nan
    assert int(verify.relative_rms(0.3).broken(got, truth).sum()) == 8
    truth[1, 3] = math.nan
    assert int(verify.relative_rms(0.3).broken(got, truth).sum()) == 0
    zeros = torch.zeros(1, 1, dtype=torch.float64)
    assert not verify.relative_rms(0.3).broken(zeros, zeros).any()
    assert verify.relative_rms(0.3).broken(zeros + 1, zeros).all()
    _, done = judged(monkeypatch, quantised, {"y": verify.relative_rms(0.02, per="head")})
    assert done.results[0].status == "ok"


def test_no_promise_is_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros have an error of 1, and half of the right values one of 0.5; shares are below 0.4."""
    share = 0.39
    for factor in (0.0, 0.5):
        _, done = judged(monkeypatch, lambda q, k, v, by=factor: by * attention(q, k, v), verify.relative_rms(share))
        assert done.results[0].status == "wrong"
    _, done = judged(monkeypatch, quantised, verify.relative_rms(share))
    assert done.results[0].status == "ok", done.results[0].reason


def test_a_bad_promise_is_an_error() -> None:
    for share in (0, 0.4, True, "2%"):
        with pytest.raises(UsageError, match="a share above 0 and below 0.4"):
            verify.relative_rms(share)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="per is one of row, head, tensor|row, head, tensor"):
        verify.relative_rms(0.1, per="batch")  # type: ignore[arg-type]
    declare = {"like": attention, "shapes": SHAPES}
    with pytest.raises(UsageError, match=r"promise is a verify.relative_rms, or some by result; received 0.02"):
        verify.kernel(**declare, promise=0.02)(attention)
    with pytest.raises(UsageError, match="promise is about its results, y; received 'z'"):
        verify.kernel(**declare, promise={"z": verify.relative_rms(0.02)})(attention)
    with pytest.raises(UsageError, match="an op by name has no use for promise="):
        verify.kernel(op="gelu", promise=verify.relative_rms(0.02))
