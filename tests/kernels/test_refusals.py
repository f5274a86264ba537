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
from kernels.rope import rope
from kernels.swiglu import swiglu, swiglu_split
from tests.golden import answers
from tests.kernels.public import DEVICE


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=DEVICE)


def cpu(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def test_a_refused_call_states_the_rule_and_what_was_received() -> None:
    answers(Path(__file__).parent / "snapshots" / "refusals.txt", globals())


@pytest.mark.parametrize(
    "function", [gelu, geglu, swiglu, layer_norm, lambda t: rope(*[t.view(1, 1, 2, 4)] * 2, *[t.view(1, 2, 4)] * 2)]
)
def test_a_cpu_tensor_without_the_interpreter_is_refused(function, monkeypatch) -> None:
    for module in (launch, norm_launch):
        monkeypatch.setattr(module, "INTERPRETED", False)
    with pytest.raises((ValueError, RuntimeError), match=r"cpu[;:] .*TRITON_INTERPRET=1"):
        function(cpu(2, 4))
