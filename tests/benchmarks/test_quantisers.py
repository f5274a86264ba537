"""The proof of published quantisers: what it counts, and that it fails on a wrong one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from benchmarks import quantisers as proof
from examples import quantisers


def test_a_quantiser_is_proved_for_every_scale_and_every_decoding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert proof.main(["mxfp8", "mxfp4_even", "--device", "cpu", "--json", str(tmp_path / "proof.json")]) == 0
    held = msgspec.json.decode((tmp_path / "proof.json").read_bytes())
    assert held["device"] == "cpu"
    rows = held["figures"]
    assert [(row["quantiser"], row["decode"], row["scales"]) for row in rows] == [
        ("mxfp8", 1 << 16, 0x7F7F),
        ("mxfp4_even", 1 << 12, 0x7F7F),
    ]
    assert all(
        row[f"{name} all"] and not row[f"{name} wrong"] for row in rows for name in ("decode", "scales", "codes")
    )
    assert "2 with every scale, 2 of them with every decoding; nothing is wrong" in capsys.readouterr().out


def test_a_wrong_quantiser_fails_the_proof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    encoding = replace(quantisers.mxfp4.encoding, rule="rceil")
    monkeypatch.setattr(quantisers, "mxfp4", replace(quantisers.mxfp4, encoding=encoding))
    assert proof.main(["mxfp4"]) == 1
    out = capsys.readouterr().out
    assert "scales follow the rule floor, the declaration says rceil" in out and "wrong: mxfp4" in out


def test_a_decoder_that_makes_zero_of_the_smallest_scale_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(codes: torch.Tensor, name: str) -> torch.Tensor:
        return torch.where(codes == 255, torch.nan, (codes.int() << 23).view(torch.float32))

    monkeypatch.setattr(quantisers, "scale_of", shifted)
    assert proof.decoded(quantisers.mxfp8.encoding, "cpu")[1] == 252, "all codes but zeros and NaN, once"


def test_fewer_than_twelve_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in list(vars(quantisers).items()):
        if isinstance(value, proof.Kernel) and name != "mxfp4":
            monkeypatch.delattr(quantisers, name)
    assert proof.main([]) == 1


def test_scales_of_float32_are_tried_bit_by_bit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slice around 1; that of another rule fails, and the first amax is named to the bit."""
    few = ["--all-float32", "--first", "3f7ffff0", "--count", "300", "--chunk", "128"]
    assert proof.main(["mxfp8", "mxfp8_rceil", "fp8_blocks", *few]) == 0
    assert "seen 300 float32 scales  0 under another scale  0 wrong" in capsys.readouterr().out
    encoding = replace(quantisers.mxfp4.encoding, rule="ceil")
    monkeypatch.setattr(quantisers, "mxfp4", replace(quantisers.mxfp4, encoding=encoding))
    assert proof.main(["mxfp4", *few]) == 1
    assert "299 wrong" in (out := capsys.readouterr().out) and "amax 0x1.fffffe0000000p-1" not in out
    assert proof.main(["nvfp4", *few]) == 1, "no quantiser whose scale follows from amax alone"
