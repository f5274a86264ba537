"""docs/speed.md says what the published records say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from verify.records import files
from verify.records.record import SCHEMA, KernelRun, Run, Speed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_speed", ROOT / "docs" / "generate_speed.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_records_say(generator: ModuleType) -> None:
    assert generator.PAGE.read_text() == generator.page(generator.records()), "run: python docs/generate_speed.py"


def test_a_record_becomes_a_section(generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "PUBLISHED", tmp_path)
    monkeypatch.setattr(generator, "PAGE", tmp_path / "speed.md")
    assert generator.main([]) == 2
    speed = [Speed("bfloat16", "forward", (64, 64), 0.125, 0.5, spread=0.002, rounds=3)]
    kernel = KernelRun("mine", "a.py::mine", "gelu", {}, "", "skipped", [], speed=speed)
    run = Run(SCHEMA, "", "", "verify bench gelu", "cuda", 0, "bench", {"torch": "2.0"}, [kernel])
    files.save(run, tmp_path / "sm_90" / "bench_gelu.json")
    assert generator.main([]) == 0
    text = generator.PAGE.read_text()
    assert "## sm_90: gelu\n\nMade by `verify bench gelu`.\n\ntorch 2.0\n" in text
    line = next(line for line in text.splitlines() if line.startswith("  mine "))
    assert line.split() == ["mine", "bfloat16", "-", "-", "0.50", "0.125", "±0.001", "-", "not", "judged"]
    assert generator.main(["--check"]) == 0
    generator.PAGE.write_text(text.replace("0.50", "0.51"))
    assert generator.main(["--check"]) == 1
