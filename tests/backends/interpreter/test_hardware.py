"""The interpreter against an H200: the exact operations, bit for bit, by recorded hashes.

hardware_sm_90.json holds, for each experiment of hardware_experiments.py whose result is defined to the bit,
a hash of its 4,096 inputs and one of the outputs that an NVIDIA H200 (driver 580.159.04, CUDA 13.0, Triton
3.6.0) gave. compare_hardware.py makes such a file, and shows the differences themselves.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
VERSION = tuple(int(part) for part in metadata.version("triton").split(".")[:2])
#: torch.randn in float64 ends in other bits on a processor without AVX2: the recorded dots have other operands there.
DRAWS_OTHERS = torch.backends.cpu.get_cpu_capability() == "DEFAULT"
RECORDED: dict[str, list[str]] = json.loads((HERE / "hardware_sm_90.json").read_text())


@pytest.fixture(scope="module")
def script() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("compare_hardware", HERE / "compare_hardware.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("compare_hardware", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("faithful")
def test_every_exact_operation_gives_the_bits_of_an_h200(script: types.ModuleType) -> None:
    outputs = script.run_all("cpu", only=set(RECORDED))
    compared, wrong = 0, []
    for item in [*script.experiments(), *script.dots()]:
        if item.name not in RECORDED:
            continue
        inputs, want = RECORDED[item.name]
        if script.input_hash(item) != inputs:
            continue  # another version of numpy or torch draws other inputs
        compared += 1
        if item.name not in outputs:
            wrong.append(f"{item.name}: did not run")
        elif script.short_hash(script.canonical(outputs[item.name], item.result)) != want:
            wrong.append(item.name)
    # The record is Triton 3.6.0's. From 3.8 `-x` flips the sign bit, where 0 - x keeps +0.0 (docs/toolchains.md).
    assert set(wrong) == ({f"{t} neg" for t in ("fp64", "fp32", "fp16", "bf16")} if VERSION >= (3, 8) else set())
    if compared < 450:
        pytest.skip(f"only {compared} of {len(RECORDED)} experiments have their recorded inputs here")
    others = {name for name in RECORDED if name.startswith("dot fp64")} if DRAWS_OTHERS else set()
    assert compared == len(RECORDED) - len(others)
