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
from verify.cases.fingerprint import fingerprint
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


def test_another_seed_than_the_record_has_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(project / "gpu.json", kernel(result()))
    assert main(["run", "--like", "gpu.json", "--seed", "7"]) == 2
    assert capsys.readouterr().err == (
        "verify: --like takes the seed of the record, which is 20260101; received --seed 7\n"
        "  next: verify run --like gpu.json\n"
    )


def test_a_record_without_judged_kernels_has_nothing_to_measure_again(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = kernel(result(source="sweep"))
    saved(project / "sweep.json", swept, kernel(result(), name="theirs", peer=True), command="verify sweep")
    assert main(["run", "--like", "sweep.json"]) == 2
    said = capsys.readouterr().err
    assert "--like takes a record with kernels that `verify run` judged; sweep.json is of 'verify sweep'" in said
    assert "next: verify run FILE.py --like sweep.json" in said


def test_a_record_that_is_not_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--like", "nowhere.json"]) == 2
    assert "cannot read the record nowhere.json" in capsys.readouterr().err


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
        asked.append((list(chosen), session.seed, session.plan, command))
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
