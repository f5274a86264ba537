"""Declarations that are refused: each with its error and the next step, in snapshots/refusals.txt."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.golden import refusals
from verify.declare.declaration import kernel

CALLS = """
kernel(op="gelu", dtypes=["float12"])(mine)
kernel(op="gelu", dtypes=torch.int8)(mine)
kernel(op="gelu", dtypes=[])(mine)
kernel(op="gelu", dtypes=["float32", "float32"])(mine)
kernel(op="gelu", largest=0.0)(mine)
kernel(op="gelu", largest={"float32": "1"})(mine)
kernel(op="gelu", largest=float("inf"))(mine)
kernel(op="gelu", largest={"float64": 1.0})(mine)
kernel(op="gelu", largest={"float32": {"y": 1.0}})(mine)
kernel(op="gelu", layouts="contigous")(mine)
kernel(op="gelu", policy="strict")(mine)
kernel(op="gelu", where=5)(mine)
kernel(op="gelu", layouts="strided")(mine)
kernel(op="gelu", layouts={"x": "dense"})(mine)
kernel(op="gelu", layouts={"z": "contiguous"})(mine)
kernel(op="gelu", backends=["npu"])(mine)
kernel(op="gelu", operands=["z"])(mine)
kernel(op="gelu", outputs=["z"])(mine)
kernel(op="gelu", gradients=["dz"])(mine)
kernel(op="gelu", gradients="dz")(mine)
kernel(op="gelu", gradients=["x", "dx"])(mine)
kernel(op="gelu", gradients=[])(mine)
kernel(op="gelu", max_ulp=0.4)(mine)
kernel(op="gelu", max_ulp="1")(mine)
kernel(op="gelu", max_ulp={"float32": 1})(mine)
kernel(op="gelu", max_ulp={"float32": 0.1}, dtypes="float32")(mine)
kernel(op="gelu", output_dtypes="float32")(mine)
kernel(op="gelu", output_dtypes={})(mine)
kernel(op="gelu", output_dtypes={"z": "float32"})(mine)
kernel(op="gelu", output_dtypes={"float64": {"y": "float32"}})(mine)
kernel(op="gelu", output_dtypes={"float16": {"y": "int8"}})(mine)
kernel(op="gelu", operand_dtypes={"x": "float32"}, dtypes="bfloat16")(mine)
kernel(op="gelu", operand_dtypes={"x": "float64"})(mine)
kernel(op="gelu", output_dtypes={"y": "float64"}, max_ulp={"float64": 1}, dtypes="float32")(mine)
kernel(op="gelu", max_ulp=True)(mine)
kernel(op="gelu", max_ulp=float("nan"))(mine)
kernel(op="gelu", max_ulp=float("inf"))(mine)
kernel(op="gelo")(mine)
kernel(op="gelu", params={"form": "erf"})(mine)
kernel(op="gelu", params={"approximate": "erf"})(mine)
kernel(op="layer_norm", operands=["weight"])(mine)
kernel(op="layer_norm", operands=["x", "weight"], gradients=["x", "bias"])(mine)
kernel(op="gelu")(3)
kernel(mine)
kernel(mine, op="silu")
kernel("silu")
kernel()
kernel(op=len)(mine)
kernel(op="gelu")(Layer)
kernel(op="gelu")(Function)
kernel(op="layer_norm")(few)
kernel(op="gelu")(many)
kernel(op="gelu", requires="liger-kernel")(mine)
kernel(op="gelu", requires="test_refusals")(mine)
kernel(op="silu", name="a::b")(mine)
kernel(op="silu", name="")(mine)
kernel(op="silu", name=5)(mine)
kernel(op="silu", name="ä" * 101)(mine)
kernel(op="gelu", into=["y"])(mine)
kernel(op="gelu", inputs="acts.npz")(mine)
kernel(op="gelu", domain={"x": "x >= 0"})(mine)
kernel(op="gelu", domain={"x": "1 < x <= 1"})(mine)
kernel(op="gelu", domain={"x": "1e39 <= x"})(mine)
kernel(op="gelu", domain={"y": "0 <= y"})(mine)
kernel(op="gelu", domain={"x": "10 <= x"}, largest=2.0)(mine)
"""


def mine(x):
    return x


def few(x, *, eps):
    return x


def many(x, weight):
    return x


class Layer(torch.nn.Module):
    pass


class Function(torch.autograd.Function):
    pass


def test_a_declaration_that_cannot_be_is_refused_with_the_rule_and_the_next_step() -> None:
    path = Path(__file__).parent / "snapshots" / "refusals.txt"
    refusals(path, CALLS, globals() | {"kernel": kernel})
    held = path.read_text(encoding="utf-8")
    assert held.count("UsageError: ") == held.count("\n  next: ") == len(CALLS.strip().splitlines())
