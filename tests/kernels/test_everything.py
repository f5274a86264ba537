"""kernels/bench/everything.py without a GPU: its rows, its verdicts, and records that are continued."""

from __future__ import annotations

import json
import math

import pytest

from kernels.bench import everything
from kernels.bench.everything import Row, cells, figure, rows, verdict


def test_sixty_layers_are_listed_with_every_activation():
    listed = cells()
    assert len({row.key for row in listed}) == len(listed) == 60
    assert {row.name for row in listed} == {"id", "gelu", "gelu_tanh", "squared_relu", "geglu", "geglu_tanh"}
    assert {row.dtype for row in listed} == {"bfloat16", "float16"}
    assert {64, 16384} <= {size for row in listed for size in row.shape}
    assert all(64 <= size <= 16384 for row in listed for size in row.shape)


def test_rows_are_unique_and_the_promised_layers_come_first():
    every = rows()
    assert len({row.key for row in every}) == len(every)
    assert [row.shape for row in every[:3]] == [(8192, 4096, 16384), (4096, 4096, 16384), (512, 1024, 4096)]
    assert {row.group for row in every} == set(everything.GROUPS)
    assert {row.name for row in every if row.group == "host"} >= {"gelu", "layer_norm", "linear_act", "swiglu"}


def fast(ours: float = 1.0) -> dict:
    us = {"ours": ours, "eager": 1.0, "liger": 1.5, "copy": 0.5}
    return {"us": {"forward": us, "step": us}, "failed": {}}


def test_a_figure_is_the_fastest_peers_time_over_ours():
    assert figure({"ours": 2.0, "eager": 3.0, "liger": 2.5, "copy": 1.0}) == (1.25, "liger")
    assert math.isnan(figure({"ours": 2.0, "copy": 1.0})[0])
    assert math.isnan(figure({"eager": 2.0})[0])


def test_each_promise_holds_or_is_below():
    wanted = rows()
    found = {row.key: fast() for row in wanted}
    assert all(held for held, _ in verdict(found, wanted))
    for row, limit in {
        wanted[0]: 1.0,
        next(r for r in wanted if r.group == "norms"): 1 / everything.ENOUGH,
        next(r for r in wanted if r.group == "gates"): 1 / everything.ENOUGH,
        next(r for r in wanted if r.group == "host"): 1.0 + everything.HOST,
        next(r for r in wanted if r.group == "block"): everything.BLOCK,
    }.items():
        assert all(held for held, _ in verdict(found | {row.key: fast(limit * 0.999)}, wanted))
        below = [text for held, text in verdict(found | {row.key: fast(limit * 1.001)}, wanted) if not held]
        assert below and all(text.startswith(row.key) for text in below)
        for broken in (fast(math.nan), {"us": {}, "failed": {}}):
            assert any(
                not held for held, text in verdict(found | {row.key: broken}, wanted) if text.startswith(row.key)
            )
    missing = {key: result for key, result in found.items() if key != wanted[0].key}
    assert not all(held for held, _ in verdict(missing, wanted))


def test_four_of_five_layers_are_promised():
    wanted = cells()
    found = {row.key: fast(1.0 if i < 48 else 2.0) for i, row in enumerate(wanted)}
    assert [held for held, _ in verdict(found, wanted)] == [True]
    [(held, text)] = verdict(found | {wanted[0].key: fast(1.06)}, wanted)
    assert not held
    assert text == "linear: 47 of 60 layers of cells.txt at 0.95 of the fastest peer; 80% promised"


def test_a_record_is_continued_unless_the_kernels_changed(monkeypatch, tmp_path, capsys):
    wanted, seen = [Row("gates", "gelu", "bfloat16", (n, 4096)) for n in (1, 2)], []
    monkeypatch.setattr(everything, "rows", lambda: wanted)
    monkeypatch.setattr(everything.report, "device", lambda program: "here")
    monkeypatch.setattr(everything, "measured", lambda row: seen.append(row) or fast())
    path = tmp_path / "record.json"
    main = ["--check", "--json", str(path)]
    assert everything.main([*main, "--seconds", "-1"]) == 1
    assert "2 rows were not measured" in capsys.readouterr().out
    monkeypatch.setattr(everything, "rows", lambda: wanted[:1])
    assert everything.main(main) == 0
    monkeypatch.setattr(everything, "rows", lambda: wanted)
    assert everything.main(main) == 0
    assert seen == wanted
    assert set(json.loads(path.read_text())["rows"]) == {row.key for row in wanted}
    monkeypatch.setattr(everything, "source", lambda: "changed")
    with pytest.raises(SystemExit, match="has another kernels; give another --json"):
        everything.main(main)
    monkeypatch.setattr(everything, "measured", lambda row: fast(2.0))
    assert everything.main(["--check", "--json", str(tmp_path / "slow.json")]) == 1
    assert everything.main(["--json", str(tmp_path / "slow.json")]) == 0
    assert everything.main(["--check", "--only", "block", "--json", str(tmp_path / "none.json")]) == 1
