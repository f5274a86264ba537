"""`verify run --like`: the cases of a record again, on another device or below other versions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import verify
from tests.records.bounds.gate_records import kernel, result, run
from verify.backends import Interpreter
from verify.cases.case import fingerprint
from verify.cases.plan import PLAN_SIZES, plan
from verify.cli import main
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.measure.session import Session
from verify.records import files


def saved(path: Path, *kernels: Any, **options: Any) -> Path:
    made = msgspec.structs.replace(run(*kernels), seed=20_260_101, backend="cuda", **options)
    files.save(made, path)
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("targets", [[], ["mine.py::one"]])
def test_seed_plan_and_targets_are_the_records(
    targets: list[str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(
        project / "gpu.json",
        kernel(result()),
        kernel(result(source="sweep"), name="swept"),
        kernel(result(), name="theirs", peer=True),
    )
    for name in ("mine.py", "accuracy.py"):
        (project / name).touch()
    asked: list[Any] = []

    def measure(chosen: Any, session: Session, command: str) -> Any:
        asked.append((list(chosen), session.seed, session.asked.plan, command))
        return files.load(path)

    monkeypatch.setattr("verify.measure.session.run", measure)
    main(["run", *targets, "--like", "gpu.json", "--backend", "interpreter"])
    main(["run", "mine.py"])
    judged = [item.target for item in files.load(path).kernels if item.name == "gelu"]
    words = " ".join(["verify run", *targets, "--like gpu.json --backend interpreter"])
    assert asked == [(targets or judged, 20_260_101, "cuda", words), (["mine.py"], 0, "", "verify run mine.py")]


def test_the_cases_are_those_of_the_other_backend() -> None:
    declared = verify.kernel(op="silu", dtypes=["float64"], gradients=False)(torch.nn.functional.silu)
    here = Interpreter("cpu")
    for cases_of, plan_of in (("cuda", "cuda"), ("", "interpreter")):
        [measured] = measure_kernel(declared, Measure("mine.py::silu", seed=3, plan=cases_of), here).results
        [group] = plan(declared, "float64", plan_of, 3)
        assert measured.properties == fingerprint(declared, "y", "float64", group.cases)
        assert measured.basis.n == sum(math.prod(case.dims) for case in group.cases)
    assert len({each.float64_elements for each in PLAN_SIZES.values()}) == 2
