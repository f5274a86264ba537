"""The proof of published quantisers: what it counts, and that it fails on a wrong one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

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
