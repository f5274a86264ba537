"""The comparison of two records sees every figure, bit and text, and nothing of dates, durations and commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.same_records import comparable, differences, main
from tests.report.sample import rich
from verify.records.files import save
from verify.records.record import Run

replace = msgspec.structs.replace


def changed(run: Run, **fields: Any) -> Run:
    """The first result of the first kernel with other fields."""
    kernel = run.kernels[0]
    results = [replace(kernel.results[0], **fields), *kernel.results[1:]]
    return replace(run, kernels=[replace(kernel, results=results), *run.kernels[1:]])


def found(base: Run, head: Run) -> list[str]:
    return list(differences(comparable(base), comparable(head)))


def test_what_no_two_runs_share_is_no_difference() -> None:
    run = rich()
    kernels = [replace(kernel, seconds=9.0, speed=[]) for kernel in run.kernels]
    other = replace(run, id="x", created="2001", command="verify", seconds=1.0, kernels=kernels)
    other = replace(other, environment={**run.environment, "commit": "abc", "dirty": True})
    assert comparable(run) != msgspec.to_builtins(run) and found(run, other) == []


def test_every_other_change_names_its_place() -> None:
    run = rich()
    result = run.kernels[0].results[0]
    worst = [replace(result.worst[0], origin=replace(result.worst[0].origin, index=7)), *result.worst[1:]]
    place = f"kernels[0: {run.kernels[0].name}].results[0: {result.output} {result.dtype}]"
    for head, line in (
        (changed(run, bits="00ff"), f"{place}.bits: {result.bits!r}, now '00ff'"),
        (changed(run, figures=replace(result.figures, misrounded=1)), f"{place}.figures.misrounded: "),
        (changed(run, worst=worst), f"{place}.worst[0].origin.index: {result.worst[0].origin.index}, now 7"),
        (changed(run, worst=[]), f"{place}.worst: {len(result.worst)} entries, now 0"),
        (replace(run, kernels=run.kernels[:-1]), f"kernels: {len(run.kernels)} entries, now {len(run.kernels) - 1}"),
        (replace(run, seed=5), "seed: 0, now 5"),
    ):
        assert [text for text in found(run, head) if text.startswith(line)], line


def test_the_sign_of_a_zero_and_the_type_of_a_value_are_differences() -> None:
    assert list(differences(0.0, -0.0)) == [": 0.0, now -0.0"]
    assert list(differences({"a": True}, {"a": 1})) == ["a: True, now 1"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(rich(), tmp_path / "a.json")
    save(changed(rich(), bits="00ff", reason="other"), tmp_path / "b.json.gz")
    assert main([str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 0
    assert capsys.readouterr().out.startswith("0 differences in ")
    assert main([str(tmp_path / "a.json"), str(tmp_path / "b.json.gz")]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 differences in ")
