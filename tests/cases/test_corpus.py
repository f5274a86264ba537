"""The corpus: one file per pinned case, the same content once, nothing dropped silently."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from verify.cases import Case, corpus
from verify.errors import UsageError

CASE = Case(dtype="float32", dims=(1, 1), fill="ones", values={"x": "c0b729d2"})


def entry(**fields: object) -> corpus.PinnedCase:
    given: dict[str, object] = {"result": "y", "index": 0, "error": 16777210.9, "gate": "plain", "why": "a hunt"}
    return corpus.entry("my_gelu", "accuracy.py::my_gelu", "gelu", CASE, **{**given, **fields})  # type: ignore[arg-type]


def test_an_entry_comes_back_as_it_went_in(tmp_path: Path) -> None:
    made = entry(backend="interpreter", commit="0123abc", showed="got -0, truth -2.98e-8")
    path, new = corpus.add(made, tmp_path)
    assert new and path == tmp_path / "my_gelu" / f"{made.id}.json"
    assert corpus.cases_for("my_gelu", None, tmp_path) == [made]
    assert corpus.cases_for("my_gelu", "float32", tmp_path) == [made]
    assert path.read_text().endswith("}\n") and '"c0b729d2"' in path.read_text()


def test_the_order_in_which_a_case_names_operands_is_not_part_of_it(tmp_path: Path) -> None:
    fields = {"dtype": "float32", "dims": (1, 1), "fill": "ones"}
    one = Case(**fields, values={"x2": "3f800000", "x1": "c0b729d2"})  # type: ignore[arg-type]
    two = Case(**fields, values={"x1": "c0b729d2", "x2": "3f800000"})  # type: ignore[arg-type]
    first, second = (corpus.entry("k", "f.py::k", "geglu_split", case, result="y", index=0) for case in (one, two))
    assert first.id == second.id
    path, _ = corpus.add(first, tmp_path)
    assert corpus.cases_for("k", None, tmp_path)[0].id == path.stem
    assert not corpus.add(second, tmp_path)[1]


def test_the_same_find_is_pinned_once_and_the_first_word_stays(tmp_path: Path) -> None:
    first = entry(why="first")
    corpus.add(first, tmp_path)
    _, new = corpus.add(entry(why="second", error=1.0, backend="cuda"), tmp_path)
    assert not new
    assert [item.why for item in corpus.cases_for("my_gelu", None, tmp_path)] == ["first"]
    assert entry(index=1).id != first.id != entry(result="dx").id


def test_entries_of_other_kernels_and_dtypes_stay_out(tmp_path: Path) -> None:
    half = Case(dtype="float16", dims=(2,), fill="mixed")
    corpus.add(entry(), tmp_path)
    corpus.add(corpus.entry("my_gelu", "a.py::my_gelu", "gelu", half, law="determinism"), tmp_path)
    corpus.add(corpus.entry("other", "a.py::other", "gelu", CASE, law="determinism"), tmp_path)
    assert [item.about for item in corpus.cases_for("my_gelu", "float32", tmp_path)] == ["y[0]"]
    assert len(corpus.cases_for("my_gelu", None, tmp_path)) == 2
    assert corpus.cases_for("my_gelu", "bfloat16", tmp_path) == []
    assert corpus.cases_for("nobody", None, tmp_path) == []


def test_a_file_that_no_longer_reads_is_an_error_that_names_it(tmp_path: Path) -> None:
    path, _ = corpus.add(entry(), tmp_path)
    good = json.loads(path.read_text())
    broken = [
        ("not json", "is not a corpus entry"),
        (json.dumps({**good, "extra": 1}), "unknown field `extra`"),
        (json.dumps({**good, "case": {**good["case"], "shape": 3}}), "unknown field `shape`"),
        (json.dumps({**good, "schema": 9}), "has corpus schema 9; this verify reads 1"),
        (json.dumps({**good, "law": "determinism"}), "pins a law or a result, one of them"),
        (json.dumps({**good, "index": -1}), "by its index from 0; received -1"),
        (json.dumps({**good, "dtype": "float16"}), "the dtype of its case, float32; got 'float16'"),
        (json.dumps({**good, "index": 5}), "a file is named after what it pins"),
    ]
    for text, rule in broken:
        path.write_text(text)
        with pytest.raises(UsageError) as caught:
            corpus.cases_for("my_gelu", "float32", tmp_path)
        assert rule in str(caught.value) and path.name in str(caught.value)


def test_impossible_entries_are_refused() -> None:
    with pytest.raises(UsageError, match="pins a law or a result, one of them; received '' and ''"):
        entry(result="", index=None)
    with pytest.raises(UsageError, match="pins a law, which has no index; received 0"):
        entry(result="", law="determinism")


def _add_many(where: Path, first: int) -> None:
    for number in range(first, first + 20):
        corpus.add(entry(index=number % 25), where)


def test_processes_that_add_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add_many, args=(tmp_path, first)) for first in (0, 5, 10)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert sorted(item.index for item in corpus.cases_for("my_gelu", None, tmp_path)) == list(range(25))  # type: ignore[type-var]
    assert not list(tmp_path.glob("*/.*")), "no half-written file stays"


def test_the_folder_is_the_project_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.verify]\ncorpus = "pinned"\n')
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert corpus.folder() == tmp_path / "pinned"
    corpus.add(entry())
    assert len(corpus.cases_for("my_gelu", "float32")) == 1
