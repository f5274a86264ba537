"""Solutions that are compiled: by the process of the solution, within its limits, into a cache of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.referee.samples import FUNCTIONAL, LINEAR, solution, written
from verify.referee import judging
from verify.referee.judging import Settings, judge_many
from verify.referee.plan import Judgement

INLINE = """
from torch.utils.cpp_extension import load_inline

relu = load_inline(
    name="mine",
    cpp_sources="at::Tensor mine(at::Tensor x) { return at::clamp_min(x, 0); }",
    functions=["mine"],
    no_implicit_headers=False,
).mine
"""
CPP = """
#include <torch/extension.h>

at::Tensor forward(at::Tensor x, at::Tensor weight, double eps) {
    return x / (x.square().mean(-1, true) + eps).sqrt() * weight;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }
"""


def judged(folder: Path, problem: Path, solutions: dict[str, str], suffix: str = "py") -> dict[str, Judgement]:
    """Judges solutions with time for a compiler beside other work."""
    for name, text in solutions.items():
        (folder / f"{name}.{suffix}").write_text(text)
    pairs = [(str(problem), str(folder / f"{name}.{suffix}")) for name in solutions]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        found = judge_many(pairs, Settings(backend="cpu", seed=1, timeout=1200), 1)
        return {Path(each.solution).stem: each for each in found}


def test_what_a_solution_has_compiled_is_kept_for_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(judging, "KEPT_EXTENSIONS", 2)
    first = judging._extensions("a", tmp_path)
    assert judging._extensions("a", tmp_path) == first != judging._extensions("b", tmp_path)
    (first / "mine").mkdir()
    (first / "mine" / "lock").touch()
    assert judging._extensions("a", tmp_path) == tmp_path / "extensions", "another judgement builds there"
    os.utime(first / "mine" / "lock", (0, 0))
    (tmp_path / "extensions").rmdir()
    assert judging._extensions("a", tmp_path) == first and not (first / "mine" / "lock").exists()
    judging._extensions("c", tmp_path)
    assert (first.parent / "b").exists(), "another judgement may build there"
    os.utime(first.parent / "b", (0, 0))
    judging._extensions("c", tmp_path)
    assert first.is_dir() and not (first.parent / "b").exists(), "the oldest is removed"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ninja") or not shutil.which("c++"), reason="needs ninja and a C++ compiler")
def test_a_solution_that_is_compiled_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    problem = FUNCTIONAL.write(tmp_path / "problem")
    made = []
    for _ in range(2):
        found = judged(tmp_path, problem, {"right": CPP}, "cpp")["right"]
        assert found.verdict == "accepted", found.message
        made.append([each.stat().st_mtime_ns for each in (tmp_path / "cache").rglob("*.so")])
    assert len(made[0]) == 1 and made[0] == made[1]
    wrong = judged(tmp_path, problem, {"wrong": CPP.replace("* weight", "* weight[0]")}, "cpp")["wrong"]
    assert wrong.verdict == "wrong" and len([*(tmp_path / "cache").rglob("*.so")]) == 2


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ninja") or not shutil.which("c++"), reason="needs ninja and a C++ compiler")
def test_source_in_a_solution_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = solution("return relu(functional.linear(x, weight, bias))", before=INLINE)
    broken = solution("return relu(x)", before=INLINE.replace("clamp_min(x, 0)", "no_such(x)"))
    found = judged(tmp_path, written(tmp_path, problem=LINEAR)["problem"], {"right": text, "broken": broken})
    assert found["right"].verdict == "accepted", found["right"].message
    assert found["broken"].verdict == "fails" and "could not be built" in found["broken"].message
