"""docs/speed.md says what the published records say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, module
from verify.records import files
from verify.records.record import SCHEMA, KernelRun, Run, Speed

GENERATOR = module(ROOT / "docs" / "generate_speed.py")


def test_the_page_is_what_the_records_say() -> None:
    assert GENERATOR.PAGE.read_text() == GENERATOR.page(GENERATOR.records()), "run: python docs/generate_speed.py"


def test_a_record_becomes_a_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GENERATOR, "PUBLISHED", tmp_path)
    monkeypatch.setattr(GENERATOR, "PAGE", tmp_path / "speed.md")
    assert GENERATOR.main([]) == 2
    speed = [Speed("bfloat16", "forward", (64, 64), 0.125, 0.5, spread=0.002, rounds=3)]
    kernel = KernelRun("mine", "a.py::mine", "gelu", {}, "", "skipped", [], speed=speed)
    run = Run(SCHEMA, "", "", "verify bench gelu", "cuda", 0, "bench", {"torch": "2.0"}, [kernel])
    files.save(run, tmp_path / "sm_90" / "bench_gelu.json")
    assert GENERATOR.main([]) == 0
    text = GENERATOR.PAGE.read_text()
    assert "## sm_90: gelu\n\nMade by `verify bench gelu`.\n\ntorch 2.0\n" in text
    line = next(line for line in text.splitlines() if line.startswith("  mine "))
    assert line.split() == ["mine", "bfloat16", "-", "-", "0.50", "0.125", "±0.001", "-", "not", "judged"]
    assert GENERATOR.main(["--check"]) == 0
    GENERATOR.PAGE.write_text(text.replace("0.50", "0.51"))
    assert GENERATOR.main(["--check"]) == 1
