"""Probes: what was measured, what is absent, and that nothing raises."""

from __future__ import annotations

import pytest
import torch

from verify.backends.probes import probe


def test_the_cpu_keeps_subnormals_and_full_precision(faithful: None) -> None:
    seen = probe("cpu")
    assert (seen["torch_flushes_inputs"], seen["torch_flushes_results"]) == (False, False)
    assert (seen["triton_flushes_inputs"], seen["triton_flushes_results"]) == (False, False)
    assert seen["tf32_measured"] is False
    assert seen["matmul_precision"] in ("highest", "high", "medium")
    assert isinstance(seen["bf16_reduced_precision_reduction"], bool)


def test_flush_to_zero_is_seen_when_it_is_on(faithful: None) -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        seen = probe("cpu")
    finally:
        torch.set_flush_denormal(False)
    assert (seen["torch_flushes_inputs"], seen["torch_flushes_results"]) == (True, True)
    assert (seen["triton_flushes_inputs"], seen["triton_flushes_results"]) == (True, True)
