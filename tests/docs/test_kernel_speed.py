"""docs/kernel_speed.py: what the page of kernels shows of a record of kernels.bench.everything."""

from __future__ import annotations

from typing import Any

from docs import kernel_speed
from kernels.bench import promises


def record(slow: str = "") -> dict[str, Any]:
    """A record of all rows; ours takes twice as long as its peers in those of the group `slow`."""
    rows = {}
    for row in promises.rows():
        ours = 200.0 if row.group == slow else 90.0
        us = {"ours": ours, "eager": 100.0, "compile": 150.0, "copy": 80.0, "bare": 240.0, "floor": 110.0}
        us |= {"cublas": 95.0} if row.group == "linear" else {"liger": 120.0}
        rows[row.key] = {"us": {"forward": us, "step": us, "gpu": us}, "failed": {}}
        if row.group == "block" and row.shape == (1, 512):
            rows[row.key]["errors"] = {"ours": {"y": 0.001, "dx": 0.002, "parameters": 0.003}}
            rows[row.key]["profile"] = {"ours": {"all": 1234.0, "plans.py:1 by": 56.0}, "eager": {"all": 1000.0}}
    peers = {"liger-kernel": "0.8.5", "quack-kernels": "absent"}
    about = {"device": "a GPU, torch 2.11", "triton": "3.6.0", "commit": "0123456789abcdef", "peers": peers}
    return {**about, "rows": rows}


def test_a_record_that_meets_every_target_lists_none() -> None:
    shown = kernel_speed.promised(record())
    assert f"targets are met in {len(promises.rows())} rows. " in shown and "|" not in shown
    assert "a GPU, torch 2.11, Triton 3.6.0; liger-kernel 0.8.5, quack-kernels absent; commit 0123456789ab." in shown


def test_a_missed_target_has_its_ceiling_and_reason() -> None:
    shown = kernel_speed.promised(record("host"))
    line = next(line for line in shown.splitlines() if line.startswith("| host gelu bfloat16"))
    reason = promises.REASONS["host"].format(140)
    assert line == f"| host gelu bfloat16 512x1024 step | +20 us | +100 us beyond eager |  | {reason} |"
    slow = record("linear")
    assert "| layers of cells.txt, step | 80% | 0 of 60 at 0.95" in kernel_speed.promised(slow)
    slow["rows"].pop(promises.rows()[0].key)
    assert f"; 1 of {len(promises.rows())} rows were not measured." in kernel_speed.promised(slow)
    assert "8192x4096x16384" not in kernel_speed.promised(slow)
