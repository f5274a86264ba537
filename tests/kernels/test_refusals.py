"""What the public functions refuse: each call with its error, as users read it, in snapshots/refusals.txt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

# ruff: noqa: F401 (the calls below name them)
from kernels import gelu_cuda, launch, modules
from kernels.geglu import geglu, geglu_split
from kernels.gelu import gelu, gelu_backward
from kernels.layer_norm import launch as norm_launch
from kernels.layer_norm import layer_norm, layer_norm_residual, layer_norm_residual_bias
from kernels.linear_act import linear_act, linear_data_grad
from kernels.linear_geglu import linear_geglu
from kernels.rms_norm import rms_norm, rms_norm_fp8, rms_norm_gated, rms_norm_residual
from kernels.swiglu import swiglu, swiglu_split
from tests.golden import refusals
from tests.kernels.public import DEVICE

CALLS = """
gelu(ones(2), "erf")
gelu(ones(2).long())
gelu(ones(2).to_sparse())
gelu_backward(ones(3), ones(2))
gelu_cuda.gelu(cpu(2))
gelu_cuda.gelu(cpu(2), "fast")
gelu_cuda.gelu(cpu(2).int())
geglu(ones(2, 2), "erf")
geglu(ones(2, 3))
geglu(ones())
geglu_split(ones(2, 3).long(), ones(2, 3).long())
geglu_split(ones(2, 3), ones(2, 2))
swiglu(ones(2, 3))
swiglu(ones())
swiglu_split(ones(2, 3).long(), ones(2, 3).long())
swiglu_split(ones(2, 3), ones(2, 2))
layer_norm(ones(2, 4097), ones(4096))
layer_norm(ones(2, 4097), None, ones(1, 4097))
layer_norm(ones(2, 4097).int())
layer_norm(ones())
layer_norm(cpu(2, 9), cpu(9).to("meta"))
layer_norm(ones(2, 9), eps=-1e-5)
layer_norm_residual(ones(2, 9), ones(9))
layer_norm_residual_bias(ones(2, 9), ones(2, 9), ones(3))
rms_norm(ones(2, 9), ones(8))
rms_norm(ones(2, 9), eps=-1.0)
rms_norm(ones())
rms_norm(ones(2, 9).int())
rms_norm_residual(ones(2, 9), ones(9))
rms_norm_gated(ones(2, 9), ones(1, 9))
rms_norm_gated(ones(2, 9), ones(2, 9).half())
rms_norm_gated(ones(2, 9).double(), ones(2, 9).double())
rms_norm_fp8(ones(1, 16_385))
rms_norm_fp8(ones(2, 9), group=32)
linear_act(ones(2, 4097), ones(6, 4096))
linear_act(ones(2, 4), ones(4))
linear_act(ones(), ones(4, 4))
linear_act(ones(2, 4), ones(6, 4), ones(3))
linear_act(ones(2, 4), ones(6, 4).double())
linear_act(ones(2, 4).int(), ones(6, 4).int())
linear_act(ones(2, 4), ones(3, 4), activation="relu")
linear_data_grad(ones(2, 4), ones(3, 5), ones(2, 5), "gelu")
linear_data_grad(ones(2, 3), ones(3, 5), ones(2, 4), "gelu")
linear_geglu(ones(2, 4097), ones(6, 4096))
linear_geglu(ones(2, 4), ones(4))
linear_geglu(ones(), ones(4, 4))
linear_geglu(ones(2, 4), ones(6, 4), ones(3))
linear_geglu(ones(2, 4), ones(6, 4).double())
linear_geglu(ones(2, 4).int(), ones(6, 4).int())
linear_geglu(ones(2, 4), ones(3, 4))
linear_geglu(ones(2, 4), ones(6, 4), approximate="erf")
modules.LinearGEGLU(3, 5)
modules.LayerNorm((4, 6))(ones(6, 4))
"""


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=DEVICE)


def cpu(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def test_a_refused_call_states_the_rule_and_what_was_received() -> None:
    refusals(Path(__file__).parent / "snapshots" / "refusals.txt", CALLS, globals())


@pytest.mark.parametrize("function", [gelu, geglu, swiglu, layer_norm])
def test_a_cpu_tensor_without_the_interpreter_is_refused(function, monkeypatch) -> None:
    for module in (launch, norm_launch):
        monkeypatch.setattr(module, "INTERPRETED", False)
    with pytest.raises((ValueError, RuntimeError), match=r"cpu[;:] .*TRITON_INTERPRET=1"):
        function(cpu(2, 4))
