"""Kernels that add exponentials up, where numbers are masked by -inf."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import verify
from tests.measure.test_kernel import few_cases, measured

ROWS: dict[str, Any] = {"dtypes": ["float32"], "gradients": False, "where": "t >= 1"}


@pytest.fixture(autouse=True)
def _two_regimes(monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "masked")


def chosen(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]


def in_blocks(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    top = logits.new_full(logits.shape[:1], -math.inf)
    total = torch.zeros_like(top)
    for part in logits.split(2048, 1):
        new = torch.maximum(top, part.amax(1))
        total = total * (top - new).exp() + (part - new[:, None]).exp().sum(1)
        top = new
    return logits.gather(-1, ids[:, None])[:, 0] - top - total.log()


def test_a_block_of_masked_logits_in_front_of_others_is_found() -> None:
    """-inf less the maximum -inf is NaN in blocks of 2,048, as in a published log-softmax."""
    said = {"shapes": {"logits": "n t", "ids": "n"}, "integers": {"ids": "0 <= ids < t"}, **ROWS}
    wrong = measured(verify.kernel(like=chosen, **said)(in_blocks))
    [result] = wrong.results
    assert (wrong.status, result.status) == ("wrong", "wrong") and "infinite or NaN inputs" in result.reason
    assert "4097" in str(result.worst[0].origin) and result.worst[0].got == "nan"
    assert measured(verify.kernel(like=chosen, **said)(chosen)).status == "ok"


def test_the_shipped_softmax_has_masked_rows_too() -> None:
    def averaged(x: torch.Tensor) -> torch.Tensor:
        return x.double().softmax(-1).to(x.dtype)

    def careless(x: torch.Tensor) -> torch.Tensor:
        return torch.where((x[..., :1] == -math.inf) & (x.shape[-1] > 64), math.nan, averaged(x))

    said = {"op": "softmax", "dtypes": ["float32"], "gradients": False}
    assert measured(verify.kernel(**said)(averaged)).status == "ok"
    [result] = measured(verify.kernel(**said)(careless)).results
    assert result.status == "wrong" and "infinite or NaN inputs" in result.reason


def test_rows_that_are_masked_as_a_whole_may_have_zeros_for_nan() -> None:
    """The program has NaN there, and a fused kernel may skip them. Their logarithm is -inf in both."""

    def averaged(scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scores.softmax(-1) @ v, scores.logsumexp(-1)

    def with_zeros(scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scores.softmax(-1).nan_to_num() @ v, scores.logsumexp(-1)

    def with_nan(scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        top = scores.amax(-1)
        return with_zeros(scores, v)[0], top + (scores - top[:, None]).exp().sum(-1).log()

    said = {"shapes": {"scores": "s t", "v": "t d"}, "outputs": ["y", "lse"], **ROWS}
    for max_ulp in (None, 64):  # which promises this at extreme inputs too
        assert measured(verify.kernel(like=averaged, max_ulp=max_ulp, **said)(with_zeros)).status == "ok"
    results = {each.output: each.status for each in measured(verify.kernel(like=averaged, **said)(with_nan)).results}
    assert results == {"y": "ok", "lse": "wrong"}
