"""kernels/bench/everything.py without a GPU: its rows, its verdicts, and records that are continued."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch

from kernels.bench import block, everything, host, promises
from kernels.bench.promises import Row, cells, figure, rows, verdict
from tests.kernels.public import DEVICE

PARAMETERS = block.parameters


def test_rows_are_unique_and_the_promised_layers_come_first():
    every = rows()
    assert len({row.key for row in every}) == len(every)
    assert [row.shape for row in every[:3]] == [(8192, 4096, 16384), (4096, 4096, 16384), (512, 1024, 4096)]
    assert {row.group for row in every} == set(promises.GROUPS)
    calls = {row.name for row in every if row.group == "host"} - set(promises.FP8)
    assert calls == {name for name, (_, found) in host.problems(4, 8).items() if "eager" in found}


def fast(ours: float = 1.0) -> dict:
    us = {"ours": ours, "eager": 1.0, "liger": 1.5, "cublas": 1.0, "copy": 0.5, "floor": 1.0, "bare": 9.0}
    return {"us": {"forward": us, "step": us}, "failed": {}}


def test_a_figure_is_the_fastest_peers_time_over_ours():
    assert figure({"ours": 2.0, "eager": 3.0, "liger": 2.5, "copy": 1.0, "floor": 1.0, "bare": 1.0}) == (1.25, "liger")
    assert figure({"ours": 2.0, "eager": 3.0, "floor": 1.0}, "floor") == (3.0, "eager")
    assert math.isnan(figure({"ours": 2.0, "copy": 1.0})[0])
    assert math.isnan(figure({"eager": 2.0})[0])


def test_each_promise_holds_or_is_below():
    wanted = rows()
    found = {row.key: fast() for row in wanted}
    assert all(line.held for line in verdict(found, wanted))
    limits = {row: 1 / promises.ENOUGH for row in wanted if row.group in ("norms", "heads", "gated", "gates", "gelu")}
    limits |= dict.fromkeys((row for row in wanted if row.group == "fp8"), 1 / promises.ENOUGH)
    limits |= {row: 1.0 + promises.HOST for row in wanted if row.group == "host"}
    limits |= {row: promises.BLOCK for row in wanted if row.group == "block" and row.shape == (1, 512)}
    limits |= dict.fromkeys(wanted[:3], 1.0)
    assert {row.group for row in limits} == set(promises.GROUPS) - {"compile"}
    for row, limit in limits.items():
        assert all(line.held for line in verdict(found | {row.key: fast(limit * 0.999)}, [row]))
        below = [line for line in verdict(found | {row.key: fast(limit * 1.001)}, [row]) if not line.held]
        assert below and all(line.what.startswith(row.key) for line in below)
        for broken in (fast(math.nan), {"us": {}, "failed": {}}):
            assert not any(line.held for line in verdict(found | {row.key: broken}, [row]))
        assert not any(line.held for line in verdict({}, [row]))


def test_four_of_five_layers_are_promised_and_the_ceiling_stands_beside_it():
    wanted = cells()
    found = {row.key: fast(1.0 if i < 48 else 2.0) for i, row in enumerate(wanted)}
    assert [line.held for line in verdict(found, wanted)] == [True]
    slow = fast(1.06)
    slow["us"]["step"]["floor"] = 1.06
    [line] = verdict(found | {wanted[0].key: slow}, wanted)
    assert not line.held and line.ceiling == "59"
    assert line.reached == (
        "47 of 60 at 0.95 of the best of eager, torch.compile and bare products (alone: 47 of eager, 47 of cublas)"
    )
    assert str(line).startswith("layers of cells.txt, step: 47 of 60") and "; target 80%; ceiling 59 (" in str(line)


def test_torch_compile_is_measured_apart_and_counts_by_its_ratio_to_ours():
    layer, other = Row("linear", "id", "float16", (2, 3, 4)), Row("compile", "id", "float16", (2, 3, 4))
    found = {
        layer.key: {"us": {"step": {"ours": 2.0, "eager": 2.5}}},
        other.key: {"us": {"step": {"ours": 4.0, "compile": 3.0}}},
    }
    assert promises.times(found, layer, "step") == {"ours": 2.0, "eager": 2.5, "compile": 1.5}
    assert promises.times({layer.key: found[layer.key]}, layer, "step") == {"ours": 2.0, "eager": 2.5}


def test_a_target_that_is_missed_names_the_reason():
    row = next(row for row in rows() if row.group == "host")
    [line] = verdict({row.key: fast(50.0)}, [row])
    assert str(line) == (f"{row.key} step: +49 us beyond eager; target +20 us ({promises.REASONS['host'].format(8)})")
    gate = next(row for row in rows() if row.group == "gates" and row.dtype == "float32")
    slow = {"us": {which: {"ours": 2.0, "eager": 3.0, "liger": 1.0} for which in ("forward", "step")}}
    lines = verdict({gate.key: slow}, [gate])
    assert [line.reason for line in lines] == [promises.REASONS["float32"], promises.REASONS["in place"]]
    norm = promises.Row("gated", "rms_norm_gated", "bfloat16", (1024, 4096))
    assert [line.reason for line in verdict({norm.key: slow}, [norm])] == [promises.REASONS["gated"], ""]


SMALL = {"linear": (16, 32, 64), "compile": (16, 32, 64), "block": (2, 8)}


@pytest.mark.skipif(DEVICE != "cpu", reason="the program itself runs there")
@pytest.mark.parametrize("group", [group for group in promises.GROUPS if group != "compile"])
def test_rows_of_each_group_time_every_pass_of_ours_and_eager(monkeypatch, group):
    """On the interpreter, with small tensors, where a graph is the function and takes as long as it says."""
    for name in ("synchronize", "Stream", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(block, "waves", lambda *shape: torch.sin(torch.arange(float(math.prod(shape)))).view(shape))
    monkeypatch.setattr(block, "parameters", lambda kind, *_: PARAMETERS(kind, 32, 48, torch.bfloat16, "cpu"))
    monkeypatch.setattr(block, "WIDTH", 32)
    monkeypatch.setattr(block, "errors", lambda name, *_: {"y": 0.5})
    monkeypatch.setattr(block, "timed", lambda call, steps: 2.0)
    monkeypatch.setattr(host, "host_times", lambda calls, rounds: {name: 1e6 * bool(calls[name]) for name in calls})
    monkeypatch.setattr(host, "profiled", lambda call: {"all": 3.0})
    monkeypatch.setattr(everything.report, "captured", lambda call, stream: SimpleNamespace(replay=call))
    monkeypatch.setattr(
        everything.report, "medians", lambda calls, n: {k: float(call() is not None) for k, call in calls.items()}
    )
    graph_times = everything.graph_times  # of graphs that repeat a call ten times
    monkeypatch.setattr(everything, "graph_times", lambda calls, count, failed: graph_times(calls, 2, failed))
    for name in [*dict.fromkeys(row.name for row in rows() if row.group == group)][:3]:
        row = Row(group, name, "bfloat16", SMALL.get(group, (4, 128 if name in promises.FP8 else 32)))
        found = everything.measured(row)
        assert not {"ours", "eager"} & found["failed"].keys(), found["failed"]
        passes = {"step", "gpu"} if group == "block" else {"forward"} if name in promises.FP8 else {"forward", "step"}
        for which in passes:
            assert {"ours", "eager"} <= found["us"][which].keys()
        assert group != "linear" or {"cublas", "floor"} <= found["us"]["step"].keys()
        assert row.key in everything.line(row, found)
        assert group != "host" or name in promises.FP8 or found["profile"]["ours"] == {"all": 3.0}
        json.dumps(found)


def test_a_record_is_continued_unless_the_kernels_changed(monkeypatch, tmp_path, capsys):
    wanted, seen = [Row("gates", "gelu", "bfloat16", (n, 4096)) for n in (1, 2)], []
    monkeypatch.setattr(everything, "rows", lambda: wanted)
    monkeypatch.setattr(everything.report, "device", lambda program: "here")
    monkeypatch.setattr(everything, "configure", lambda: None)
    monkeypatch.setattr(everything, "freeze", lambda: None)
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
    wanted.append(Row("gates", "gelu", "bfloat16", (3, 4096)))
    monkeypatch.setattr(everything, "measured", lambda row: 1 / 0)
    capsys.readouterr()
    assert everything.main(main) == 1
    printed = capsys.readouterr().out
    assert "not measured: ZeroDivisionError: division by zero" in printed and "1 rows were not measured" in printed
    assert set(json.loads(path.read_text())["rows"]) == {row.key for row in wanted[:2]}
    monkeypatch.setattr(everything, "source", lambda: "changed")
    with pytest.raises(SystemExit, match="has another kernels; give another --json"):
        everything.main(main)
    monkeypatch.setattr(everything, "measured", lambda row: fast(2.0))
    assert everything.main(["--check", "--json", str(tmp_path / "slow.json")]) == 1
    assert everything.main(["--json", str(tmp_path / "slow.json")]) == 0
    assert everything.main(["--check", "--only", "block", "--json", str(tmp_path / "none.json")]) == 1
