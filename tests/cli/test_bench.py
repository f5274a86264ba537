"""`verify bench` end to end on the CPU: what is compared, what is said instead of a time, exit codes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.here import Said, said
from verify.records import files, record
from verify.records.merge import identity

KERNELS = """
import torch, verify

@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def right(x):
    wide = x.double().clamp(min=-1000)
    return (wide / (1 + torch.exp(-wide))).half()
"""
PEERS = """
import torch, verify

@verify.kernel(op="silu", dtypes=["float16"], gradients=False, peer=True)
def formula(x):
    return x / (1 + torch.exp(-x))

@verify.kernel(op="silu", dtypes=["float16"], gradients=False, requires="nobody_installs_this", peer=True)
def absent(x):
    import nobody_installs_this
    return nobody_installs_this.silu(x)
"""
WRONG = """
import torch, verify

@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def wrong(x):
    return x / (1 + torch.exp(-x))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "peers.py").write_text(PEERS)
    return folder


@pytest.fixture(scope="module")
def ran(project: Path) -> tuple[Said, record.Run]:
    arguments = (
        "bench",
        "kernels.py",
        "peers.py",
        "--backend",
        "interpreter",
        "--jobs",
        "1",
        "--json",
        "b.json",
        "--html",
        "b.html",
    )
    done = said(*arguments, cwd=project)
    return done, files.load(project / "b.json")


def test_the_interpreter_is_never_a_clock(ran) -> None:  # type: ignore[no-untyped-def]
    done, run = ran
    assert not any(kernel.speed for kernel in run.kernels)
    (gap,) = run.incomplete
    assert gap.text.startswith("speed: not timed, this is the interpreter")
    assert done.returncode == 3
    assert "forward" not in done.stdout
    assert run.id == identity(run)


def test_the_stand_ins_figures_can_be_replayed(ran, project: Path) -> None:  # type: ignore[no-untyped-def]
    _, run = ran
    eager = next(kernel for kernel in run.kernels if kernel.name == "right@eager")
    baseline = next(kernel for kernel in run.kernels if kernel.name == "right").results[0].baseline
    assert baseline is not None and eager.results[0].figures.max_ulp == baseline.max_ulp
    replay = record.replay_command(eager.results[0].worst[0].origin)
    assert replay.startswith("verify replay kernels.py::right@eager ")
    done = said(*shlex.split(replay)[1:], "--backend", "interpreter", cwd=project)
    assert f"got       {eager.results[0].worst[0].got} " in done.stdout


def test_a_wrong_kernel_fails_the_comparison(project: Path) -> None:
    (project / "wrong.py").write_text(WRONG)
    done = said("bench", "wrong.py", "--backend", "interpreter", "--jobs", "1", cwd=project)
    assert done.returncode == 1
    assert "fail: 1 of 1 kernel is wrong" in done.stdout
