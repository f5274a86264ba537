"""kernels/bench/everything.py without a GPU: its rows, its verdicts, and records that are continued."""

from __future__ import annotations

import json
import math

import pytest

from kernels.bench import everything, promises
from kernels.bench.promises import Row, rows, verdict


def fast(ours: float = 1.0) -> dict:
    us = {"ours": ours, "eager": 1.0, "liger": 1.5, "cublas": 1.0, "copy": 0.5, "floor": 1.0, "bare": 9.0}
    return {"us": {"forward": us, "step": us}, "failed": {}}


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
