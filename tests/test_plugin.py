"""The pytest plugin: it changes nothing in a project that does not use verify, and serves one that does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTALLED = any(point.value == "verify.plugin" for point in entry_points(group="pytest11"))

# -- a neighbour: a plain Hypothesis suite in an environment that has verify --------------------------------

PLAIN = """
import sys
from hypothesis import given, settings, strategies as st

ALREADY = [name for name in ("torch", "triton", "numpy", "msgspec") if name in sys.modules]
NAMES, CALLS = set(settings._profiles), []

@given(st.integers(0, 1 << 40))
def test_many(n):
    CALLS.append(n)

def test_nothing_changed():
    assert ALREADY == []
    assert not [name for name in NAMES if name.startswith("verify")] and not {"quick", "nightly", "exhaustive"} & NAMES
    print("profile", settings.get_current_profile_name(), settings().max_examples, len(CALLS))
"""


@pytest.mark.parametrize("options", [(), ("--hypothesis-profile=ci",)])
def test_a_plain_hypothesis_suite_keeps_its_profile_on_ci(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_plain.py").write_text(PLAIN)
    done = run_pytest(tmp_path, "-s", *options, CI="true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "profile ci 100 100" in done.stdout


def test_a_suite_without_hypothesis_does_not_import_it(tmp_path: Path) -> None:
    heavy = ("hypothesis", "torch", "triton", "numpy", "msgspec", "mpmath", "rich")
    (tmp_path / "test_plain.py").write_text(
        f"import sys\ndef test_it():\n    assert 'verify.plugin' in sys.modules\n"
        f"    assert [name for name in {heavy} if name in sys.modules] == []\n"
    )
    done = run_pytest(tmp_path, CI="true")
    assert done.returncode == 0, done.stdout + done.stderr


# -- a project that uses verify -------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--hypothesis-profile=verify-nightly", "--verify-profile=nightly"])
def test_an_option_that_names_a_profile_registers_those_that_the_project_has_not(tmp_path: Path, option: str) -> None:
    (tmp_path / "conftest.py").write_text(
        "from hypothesis import settings\nsettings.register_profile('verify-exhaustive', max_examples=7)\n"
    )
    (tmp_path / "test_it.py").write_text(
        "from hypothesis import settings\n"
        "def test_it():\n"
        "    assert settings.get_current_profile_name() == 'verify-nightly' and settings().max_examples == 400\n"
        "    assert settings.get_profile('verify-ci').derandomize\n"
        "    assert settings.get_profile('verify-exhaustive').max_examples == 7\n"
    )
    done = run_pytest(tmp_path, option)
    assert done.returncode == 0, done.stdout + done.stderr


CLOSE = """
import pytest, torch
import torch.nn.functional as F

pytestmark = pytest.mark.verify(like=F.silu)

@pytest.mark.parametrize("n", [3, 64])
def test_right(verify_close, n):
    x = torch.randn(n)
    verify_close(F.silu(x), inputs=(x,))

@pytest.mark.verify(like=F.gelu)
def test_half(verify_close):
    x = torch.ones(4)
    verify_close(F.gelu(x) / 2, inputs=(x,))
"""
RAISES = """
import verify

@verify.kernel(op="gelu", dtypes=["bfloat16"], gradients=False, refuses=True)
def raises(x):
    raise RuntimeError("no such unit")

test_raises = verify.laws_for(raises, laws=["accuracy", "determinism"])
"""


@pytest.mark.usefixtures("warm")
def test_the_fixture_compares_with_the_definition_of_the_marker(tmp_path: Path) -> None:
    (tmp_path / "test_close.py").write_text(CLOSE)
    done = run_pytest(tmp_path, "--strict-markers", "-rA")
    assert "gelu.y is wrong" in done.stdout and "assertions.py" not in done.stdout
    assert re.findall(r"^(PASSED|FAILED) (?:\S+::)(\S+)", done.stdout, re.MULTILINE) == [
        ("PASSED", "test_right[3]"),
        ("PASSED", "test_right[64]"),
        ("FAILED", "test_half"),
    ]


@pytest.mark.usefixtures("warm")
def test_a_kernel_that_refuses_every_case_fails(tmp_path: Path) -> None:
    (tmp_path / "test_laws.py").write_text(RAISES)
    done = run_pytest(tmp_path, "--verify-profile=quick", TRITON_INTERPRET="1")
    assert done.returncode == 1 and "raises: it refuses every case: raises raised RuntimeError" in done.stdout
    assert "1 failed, 1 skipped" in done.stdout


def run_pytest(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest with the plugin in a folder, as if outside of this session."""
    theirs = ("PYTEST_", "CI", "GITHUB_ACTIONS", "HYPOTHESIS")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    if not INSTALLED:
        command += ["-p", "verify.plugin"]
    return subprocess.run(
        command, cwd=folder, env=outside | {"PYTHONPATH": str(ROOT)} | environment, capture_output=True, text=True
    )
