"""Two walks of a new user, as the docs have them: an own kernel, and a package, each to a gate that passes in CI."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from tests.cli.here import Said, said
from tests.docs.commands import commands_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "foreign-kernels.md").read_text()
README = (ROOT / "README.md").read_text()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the walks of a machine without a GPU"),
]

PACKAGE = """
import torch
import triton
import triton.language as tl


@triton.jit
def _sigmoid(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.exp(tl.load(x_ptr + at, mask=at < n).to(tl.float32))
    tl.store(y_ptr + at, e / (1 + e), mask=at < n)


@triton.jit
def _relu(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, tl.where(x < 0, 0, x), mask=at < n)


def _launched(kernel, x):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    kernel[(triton.cdiv(max(x.numel(), 1), 1024),)](x.contiguous(), y, x.numel(), BLOCK=1024)
    return y


def fused_sigmoid(x):
    return _launched(_sigmoid, x)


def fused_relu(x):
    return _launched(_relu, x)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("toykernels", "accuracy", "mylib")]:
        del sys.modules[name]


def walk(text: str, project: Path) -> Iterator[tuple[list[str], Said]]:
    """Runs the commands of a block one by one."""
    for line in text.strip().splitlines():
        program, *words = shlex.split(line, comments=True)
        assert program == "verify"
        yield words, said(*words, cwd=project)
        if words[0] == "init":  # as the comment beside the command asks
            path = project / "accuracy.py"
            path.write_text(path.read_text().replace('"toykernels")', '"toykernels", gradients=False)'))


def in_ci(project: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    """Runs the commands of the workflow that init wrote as a CI machine would, and returns the gate's answer."""
    monkeypatch.setenv("CI", "true")
    workflow = yaml.safe_load((project / ".github" / "workflows" / "accuracy.yml").read_text())
    done = [said(*words, cwd=project) for words in commands_of(workflow)]
    assert len(done) == 2
    return done[-1]


def test_a_package_to_a_report_and_to_a_gate_with_waivers(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "toykernels").mkdir()
    (project / "toykernels" / "__init__.py").write_text("from .act import fused_relu, fused_sigmoid\n")
    (project / "toykernels" / "act.py").write_text(PACKAGE)
    [block] = re.findall(r"```sh\n(verify init toykernels .*?)```", PAGE, flags=re.DOTALL)
    done = list(walk(block, project))
    assert [words[0] for words, _ in done] == ["init", "run", "bounds", "gate"]
    assert "of these filled in: 2" in done[0][1].stdout
    assert "fused_sigmoid" in (project / "report.html").read_text()
    # the run and the gate find NaN, and no bound is proposed for it
    assert [each.returncode for _, each in done] == [0, 1, 1, 1], [each.stdout[-400:] for _, each in done]
    [waiver] = re.findall(r"```toml\n(\[\[waiver\]\].*?)```", PAGE, flags=re.DOTALL)
    (project / "reports" / "bounds" / "waivers.toml").write_text(waiver)
    again = said("gate", "run.json", cwd=project)
    assert again.returncode == 0 and re.search(r"bounds hold; \d+ findings waived", again.stdout), again.stdout
    assert in_ci(project, monkeypatch).returncode == 0


def test_an_own_kernel_to_a_gate(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL)
    (project / "accuracy.py").write_text(dict(blocks)["accuracy.py"])
    (project / "mylib.py").write_text([text for name, text in blocks if name == "mylib.py"][1])  # the repaired one
    block = README.split("## From there")[1].split("```sh\n")[1].split("```")[0]
    wanted = "\n".join(line for line in block.splitlines() if re.match(r"verify (run|bounds|gate)", line))
    assert said("init", "mylib.py", cwd=project).returncode == 0  # the workflow; accuracy.py is there already
    done = list(walk(wanted, project))
    assert [words[0] for words, _ in done] == ["run", "bounds", "gate"]
    assert [each.returncode for _, each in done] == [0, 0, 0], [each.stdout[-600:] for _, each in done]
    assert in_ci(project, monkeypatch).returncode == 0
