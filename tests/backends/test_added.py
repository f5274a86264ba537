"""A backend that a package adds: PACKAGE is all that it takes.

The device is the CPU under another name, so that the test runs anywhere.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from tests.cli.here import Said, as_process
from verify.backends import Cpu
from verify.records import files
from verify.records.readings import arch_of

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).resolve().parents[2]

PACKAGE = """
import os
from verify.backends import Backend

class Npu(Backend):
    name, tested, visible = "npu", True, "NPU_DEVICES"

    @classmethod
    def count(cls):
        listed = os.environ.get("NPU_DEVICES")
        return len(listed.split(",")) if listed else int(os.environ.get("NPU_SEEN", "1"))

    @classmethod
    def is_single(cls):
        return "NPU_SEEN" not in os.environ and super().is_single()

    @classmethod
    def here(cls):
        return cls("cpu", "NPU 1000")

    def environment(self):
        return {"arch": "npu_1000"}
"""

KERNELS = """
import torch, verify

@verify.kernel(op="silu", dtypes=["float16"], gradients=False, max_ulp=1)
def mine(x):
    wide = x.double()
    y = torch.where(x.isneginf(), -0.0, wide * torch.sigmoid(wide))
    return torch.where((y == 0) & (x < 0), -0.0, y).to(x.dtype)

@verify.kernel(op="silu", dtypes=["float16"], backends=["npu"])
def only_there(x):
    raise RuntimeError("called")

@verify.kernel(op="silu", dtypes=["float16"], backends=["cuda"])
def elsewhere(x):
    raise RuntimeError("called")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("npu")
    (folder / "site" / "npu-1.0.dist-info").mkdir(parents=True)
    (folder / "site" / "npu-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: npu\nVersion: 1.0\n")
    (folder / "site" / "npu-1.0.dist-info" / "entry_points.txt").write_text("[verify.backends]\nnpu = npu:Npu\n")
    (folder / "site" / "npu.py").write_text(PACKAGE)
    (folder / "accuracy.py").write_text(KERNELS)
    (folder / "pyproject.toml").touch()
    return folder


def verify(project: Path, *arguments: str, **more: str) -> Said:
    path = os.pathsep.join([str(project / "site"), str(ROOT)])
    return as_process(*arguments, cwd=project, without=("CI", "TRITON_INTERPRET"), PYTHONPATH=path, **more)


def test_a_run_on_an_added_backend_has_its_name_and_its_own_bounds(project: Path) -> None:
    done = verify(project, "run", "accuracy.py::mine", "--backend", "npu", "--json", "run.json")
    assert done.returncode == 0, done.stdout + done.stderr
    run = files.load(project / "run.json")
    assert (run.backend, arch_of(run), run.verdict) == ("npu", "npu_1000", "pass")
    assert "npu, profile default" in done.stdout
    proposed = verify(project, "bounds", "propose", "run.json")
    assert "reports/bounds/npu_1000/mine.toml" in proposed.stdout
    gated = verify(project, "gate", "run.json")
    assert gated.returncode == 0 and "all 10 bounds hold" in gated.stdout
    # the same figures of another backend are no answer to these bounds
    cpu = msgspec.structs.replace(run, backend="cpu", environment=run.environment | Cpu("cpu").environment())
    files.save(cpu, project / "cpu.json")
    other = verify(project, "gate", "cpu.json", "--json", "-")
    assert other.returncode == 3 and {row["status"] for row in json.loads(other.stdout)["rows"]} == {"incomparable"}


@pytest.mark.slow
def test_kernels_are_declared_for_it_by_name(project: Path) -> None:
    done = verify(project, "run", "accuracy.py", "--backend", "npu", "--json", "all.json")
    found = {kernel.name: (kernel.status, kernel.message) for kernel in files.load(project / "all.json").kernels}
    assert done.returncode == 1 and found["only_there"][0] == "error" and "called" in found["only_there"][1]
    assert found["elsewhere"] == ("skipped", "declared for cuda; this run is on npu")


LISTED = """
import os, verify

@verify.kernel(op="silu", dtypes=["float16"], backends=["cuda"])
def elsewhere(x):
    raise RuntimeError("called")

with open(__file__ + ".on", "a") as file:
    print("on", os.environ.get("NPU_DEVICES", "all"), file=file)
"""


@pytest.mark.parametrize(
    ("seen", "on"),
    [
        ({"NPU_DEVICES": "4,2,7"}, ["4", "2", "7", "4"]),
        ({"NPU_SEEN": "2"}, ["all", "1", "0", "1"]),  # the first worker counts them, and uses the first
        ({}, ["all", "all", "all", "all"]),
    ],
)
def test_targets_that_run_alone_go_round_the_devices(project: Path, seen: dict[str, str], on: list[str]) -> None:
    names = [f"each{number}.py" for number in range(4)]
    for name in names:
        (project / name).write_text(LISTED)
        (project / f"{name}.on").unlink(missing_ok=True)
    (project / "each.jsonl").unlink(missing_ok=True)
    each = ("--each", "each.jsonl", "--jobs", "4", "--backend", "npu")
    done = verify(project, "run", *names, *each, **seen)
    assert done.returncode == 3, done.stdout + done.stderr
    rows = [json.loads(line) for line in (project / "each.jsonl").read_text().splitlines()]
    assert sorted(row["target"] for row in rows) == names
    assert [(project / f"{name}.on").read_text() for name in names] == [f"on {device}\n" for device in on]
