"""Probes: what was measured, what is absent, and that nothing raises."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from verify.backends import probes
from verify.backends.probes import fingerprint, probe


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


def test_tf32_is_seen_in_a_product_and_not_in_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.full

    def cut(*args: object, **kwargs: object) -> torch.Tensor:
        return Truncating(real(*args, **kwargs))  # type: ignore[arg-type]

    class Truncating(torch.Tensor):
        def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
            bits = self.as_subclass(torch.Tensor).contiguous().view(torch.int32)
            return (bits & ~0x1FFF).view(torch.float32) @ other

    assert probe("cpu")["tf32_measured"] is False
    monkeypatch.setattr(torch, "full", cut)
    assert probe("cpu")["tf32_measured"] is True


def test_a_missing_device_is_absent_and_everything_is_json() -> None:
    seen = probe("cuda:99" if torch.cuda.is_available() else "cuda:0")
    text = json.dumps(seen, allow_nan=False)
    assert json.loads(text) == seen
    assert str(seen["torch_flushes_inputs"]).startswith("absent: ")
    assert str(seen["tf32_measured"]).startswith("absent: ")
    assert str(seen["triton_flushes_results"]).startswith("absent: ")


def test_the_fingerprint_names_everything() -> None:
    names = "gpu arch driver cuda torch triton numpy python platform cpu".split()
    seen = fingerprint("cpu")
    assert list(seen) == names
    assert seen["torch"] == torch.__version__ and seen["python"].count(".") == 2
    assert all(isinstance(v, str) and v for v in seen.values())
    if not torch.cuda.is_available():
        assert seen["gpu"] == seen["arch"] == "absent"


def test_a_probe_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: str) -> bool:
        raise RuntimeError("no such unit\nsecond line")

    monkeypatch.setattr(probes, "_tf32_measured", broken)
    assert probe("cpu")["tf32_measured"] == "absent: RuntimeError: no such unit"


def test_the_products_of_the_probe_are_what_they_should_be() -> None:
    (a, b), (c, d) = probes._SUBNORMAL_INPUT, probes._SUBNORMAL_RESULT
    tiny = 2.0**-126
    assert a < tiny <= b and a * b >= tiny  # only flushing the input can make this zero
    assert min(c, d) >= tiny > c * d >= 2.0**-149 and math.frexp(c * d)[0] == 0.5


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n", "550.54.15"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12",
            "580.95.05",
        ),
    ],
)
def test_the_driver_says_its_version_without_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, version: str
) -> None:
    monkeypatch.setattr(probes.subprocess, "run", None)
    (tmp_path / "version").write_text(text)
    assert probes._driver(tmp_path / "version") == version
