"""kernels/bench/promises.py: which speeds hold a promise."""

from __future__ import annotations

import math

from kernels.bench import promises
from kernels.bench.promises import rows, verdict, walls


def fast(ours: float = 1.0) -> dict:
    us = {"ours": ours, "eager": 1.0, "liger": 1.5, "cublas": 1.0, "copy": 0.5, "floor": 1.0, "bare": 9.0}
    return {"us": {"forward": us, "step": us}, "failed": {}}


def test_each_promise_holds_or_is_below():
    wanted = rows() + walls()
    found = {row.key: fast() for row in wanted}
    assert all(line.held for line in verdict(found, wanted))
    limits = {row: 1 / promises.ENOUGH for row in wanted if row.group in ("norms", "heads", "gated", "gates", "gelu")}
    limits |= dict.fromkeys((row for row in wanted if row.group == "fp8"), 1 / promises.ENOUGH)
    limits |= {row: 1.0 + promises.HOST for row in wanted if row.group == "host"}
    limits |= {row: promises.BLOCK for row in wanted if row.group == "block" and row.shape == (1, 512)}
    limits |= dict.fromkeys(wanted[:3], 1.0) | dict.fromkeys(walls(), promises.WALL)
    assert {row.group for row in limits} == set(promises.GROUPS) - {"compile"}
    for row, limit in limits.items():
        assert all(line.held for line in verdict(found | {row.key: fast(limit * 0.999)}, [row]))
        below = [line for line in verdict(found | {row.key: fast(limit * 1.001)}, [row]) if not line.held]
        assert below and all(line.what.startswith(row.key) for line in below)
        for broken in (fast(math.nan), {"us": {}, "failed": {}}):
            assert not any(line.held for line in verdict(found | {row.key: broken}, [row]))
        assert not any(line.held for line in verdict({}, [row]))
