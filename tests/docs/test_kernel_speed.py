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


def test_of_another_gpu_the_targets_that_it_alone_misses_are_shown() -> None:
    here, there = record("gates"), record("gelu") | {"device": "another GPU, torch 2.11"}
    shown = kernel_speed.elsewhere(there, here).splitlines()
    assert "targets are met on this GPU. another GPU, torch 2.11, Triton 3.6.0; " in shown[0]
    assert shown[2] == "| missed on this GPU alone | target | a GPU | another GPU |"
    assert shown[4] == "| gelu gelu float32 1024x4096 forward | 0.97 | 1.111 of eager | 0.500 of eager |"
    assert not any("gates" in line or "norms" in line for line in shown)
    assert kernel_speed.elsewhere(here, here).count("|") == 0


def test_tables_show_times_and_figures() -> None:
    norms = kernel_speed.elementwise("norms", "heads", "fp8")(record("norms")).splitlines()
    assert norms[2] == (
        "| rms_norm | float32 | 64 x 4,096 | 80.0 | 200.0 | eager | **0.500** | 200.0 | eager | **0.500** |"
    )
    assert norms[2 + 48].startswith("| rms_norm | float32 | 16,384 x 64 | 80.0 | 90.0 | eager | 1.111 |")
    assert norms[-1] == "Bold: below 0.97."
    linear = kernel_speed.linear(record()).splitlines()
    layer = "| gelu_tanh | bfloat16 | 8,192, 4,096, 16,384 | 90.0 | 100.0 | 150.0 | 95.0 "
    assert linear[2] == layer + "| 1.056 | **0.864** | 90.0 | 95.0 |"
    host = kernel_speed.host(record("host")).splitlines()
    assert host[2] == "| gelu | 200.0 | 100.0 | 120.0 | 200.0 | 100.0 | 120.0 | 240.0 | **+100** |"
    block = kernel_speed.block(record()).splitlines()
    assert block[2] == "| rms+swiglu 1 x 512 | wall, us | 90 |  | 100 | 120 |"
    assert "| rms+swiglu | error of out | 1.00e-03 |  |  |  |" in block
    assert "| `all` | 1234 | 1000 |" in block and "| `plans.py:1 by` | 56 |  |" in block
