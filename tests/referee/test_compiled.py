"""Solutions that are compiled: by the process of the solution, within its limits, into a folder of this judgement."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.referee.samples import FUNCTIONAL, LINEAR, solution, written
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


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ninja") or not shutil.which("c++"), reason="needs ninja and a C++ compiler")
def test_a_solution_of_source_is_compiled_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    problem = FUNCTIONAL.write(tmp_path / "problem")
    found = judged(tmp_path, problem, {"right": CPP, "wrong": CPP.replace("* weight", "* weight[0]")}, "cpp")
    assert found["right"].verdict == "accepted", found["right"].message
    assert found["wrong"].verdict == "wrong"
    assert not [*tmp_path.rglob("*.so")], "no later judgement finds what this solution has made"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ninja") or not shutil.which("c++"), reason="needs ninja and a C++ compiler")
def test_source_in_a_solution_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = solution("return relu(functional.linear(x, weight, bias))", before=INLINE)
    broken = solution("return relu(x)", before=INLINE.replace("clamp_min(x, 0)", "no_such(x)"))
    found = judged(tmp_path, written(tmp_path, problem=LINEAR)["problem"], {"right": text, "broken": broken})
    assert found["right"].verdict == "accepted", found["right"].message
    assert found["broken"].verdict == "fails" and "could not be built" in found["broken"].message
