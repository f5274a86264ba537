"""How `mutants.endurance` shares out laws and twins, what a chunk tries, and what its report counts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import verify
from mutants.endurance import LARGE, Chunk, Schedule, entries_of, pairs_of, report, rolled
from verify.cases import Case
from verify.cases.strategies import Sizes
from verify.laws import registry
from verify.laws.law import Broken, Law, Subject

PAIRS = [(law, twin) for law in ("cheap", "dear") for twin in ("a", "b")]
SECONDS = {"cheap": 0.001, "dear": 1.0}  # per case


def run(schedule: Schedule, chunks: int) -> list[Chunk]:
    """One worker that stays with no twin, and takes as long for a case as its law does."""
    done: list[Chunk] = []
    while len(done) < chunks and (task := schedule.take("a", -math.inf)) is not None:
        done.append(task | {"seconds": SECONDS[task["law"]] * task["cases"], "alarm": ""})
        schedule.finish(task, done[-1])
    return done


def schedule(entries: list[Chunk], **changed: object) -> Schedule:
    made = Schedule(**{"cases": 100, "laws": [], "shard": (0, 1), "entries": entries, "deadline": math.inf} | changed)
    made.begin(PAIRS)
    return made


def cases(entries: list[Chunk], law: str) -> int:
    return sum(entry["cases"] for entry in entries if entry["law"] == law)


def test_every_law_gets_its_number_and_every_twin_its_part() -> None:
    done = run(schedule([]), 1_000)
    assert cases(done, "cheap") == cases(done, "dear") == 100
    assert {(entry["law"], entry["twin"]) for entry in done} == set(PAIRS)
    assert len({(entry["law"], entry["twin"], entry["number"]) for entry in done}) == len(done)


def test_a_stopped_run_goes_on_where_it_was() -> None:
    before = run(schedule([]), 5)
    after = run(schedule(before), 1_000)
    assert cases(before, "dear") + cases(after, "dear") == 100
    assert not {(e["law"], e["twin"], e["number"]) for e in before} & {
        (e["law"], e["twin"], e["number"]) for e in after
    }


def test_the_report_counts_each_chunk_once_and_fails_on_an_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, out = tmp_path / "state.jsonl", tmp_path / "report.json"
    fine = {"law": "shapes", "twin": "a", "number": 0, "cases": 7, "alarm": "", "seconds": 0.5}
    state.write_text(
        f"{json.dumps(fine)}\n{json.dumps(fine | {'number': 1})}\n{json.dumps(fine)[:20]}", encoding="utf-8"
    )
    assert len(entries_of(state)) == 2
    assert report([state, state], out) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["cases"] == 14
    assert "14 cases    1 twins  0 alarms      14.0 cases per second and core" in capsys.readouterr().out
    alarm = fine | {"number": 2, "alarm": "the worker died"}
    state.write_text(f"{json.dumps(fine)}\n{json.dumps(alarm)}\n", encoding="utf-8")
    assert report([state], None) == 1
    assert "ALARM shapes on a, chunk 2: the worker died" in capsys.readouterr().out


@verify.kernel(op="silu", dtypes=["float32", "bfloat16"])
def silu(x):  # type: ignore[no-untyped-def]
    return x / (1 + (-x).exp())


def test_a_rolled_chunk_has_new_cases_of_every_dtype_and_stops_at_an_alarm(backend: Any) -> None:
    seen: list[Case] = []

    def check(subject: Subject, case: Case) -> None:
        seen.append(case)
        if len(seen) == 27:
            raise Broken("the 27th", case, {})

    law: Law = replace(registry.get("determinism"), check=check)
    subjects = [Subject(silu, dtype, backend, Sizes()) for dtype in silu.dtypes]
    assert rolled(law, subjects, 1, 11) == (11, "")
    first = [case.to_json() for case in seen]
    assert [case.dtype for case in seen] == ["float32"] * 6 + ["bfloat16"] * 5
    assert rolled(law, subjects, 2, 11) == (11, "")
    assert len({case.to_json() for case in seen}) > 20
    cases, alarm = rolled(law, subjects, 1, 11)
    assert cases == 5 and alarm == f"the 27th {seen[-1].to_json()}"
    assert [case.to_json() for case in seen[22:]] == first[:5]
    assert rolled(law, [], 1, 11) == (0, "")


def test_cases_of_a_law_that_compiles_come_in_groups_of_one_structure() -> None:
    seen: list[Case] = []
    law = replace(registry.get("compiled"), check=lambda subject, case: seen.append(case))
    kernel = verify.kernel(op="silu", dtypes=["float32"])(lambda x: x)
    subject = Subject(kernel, "float32", None, Sizes(elements=300, width=300, depth=64))  # type: ignore[arg-type]
    assert rolled(law, [subject], 1, 60) == (60, "")
    structures = [(case.dims, case.layouts, case.fill, case.upstream) for case in seen]
    groups = [structures[:25], structures[25:50], structures[50:]]
    assert all(group.count(group[0]) == len(group) for group in groups)
    assert any(group[0] != groups[0][0] for group in groups)
    assert len({case.seed for case in seen}) > 50


def test_shipped_kernels_are_tried_in_place_of_twins(backend: Any) -> None:
    pairs = pairs_of(backend, shipped=True)
    names = {name for _, name in pairs}
    assert {"gelu", "layer_norm", "linear"} <= names and not {"torch_gelu", "torch_layer_norm"} & names
    absent = set(LARGE) if backend.device == "cpu" else set()
    assert {law for law, _ in pairs} == {law.name for law in registry.ALL} - absent
    assert all(twin.op.name for _, twin in pairs.values())
