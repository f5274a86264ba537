"""kernels/modules.py: PyTorch's modules load into ours, and compute the same function."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels import modules
from kernels.bench import block, promises
from tests.kernels.public import DEVICE


class Gated(nn.Module):
    """What LinearGEGLU replaces."""

    def __init__(self, *sizes, **options):
        super().__init__()
        self.linear = nn.Linear(*sizes, **options)

    def forward(self, x):
        first, second = self.linear(x).chunk(2, -1)
        return first * nn.functional.gelu(second)


PAIRS = {
    "gelu": (lambda **k: modules.GELU(), lambda **k: nn.GELU()),
    "gelu tanh": (lambda **k: modules.GELU("tanh"), lambda **k: nn.GELU("tanh")),
    "layer norm": (lambda **k: modules.LayerNorm(6, **k), lambda **k: nn.LayerNorm(6, **k)),
    "without bias": (lambda **k: modules.LayerNorm(6, bias=False, **k), lambda **k: nn.LayerNorm(6, bias=False, **k)),
    "two dimensions": (lambda **k: modules.LayerNorm((4, 6), **k), lambda **k: nn.LayerNorm((4, 6), **k)),
    "rms norm": (lambda **k: modules.RMSNorm(6, **k), lambda **k: nn.RMSNorm(6, **k)),
    "rms norm eps": (lambda **k: modules.RMSNorm([6], 0.5, **k), lambda **k: nn.RMSNorm([6], 0.5, **k)),
    "rms norm two dimensions": (lambda **k: modules.RMSNorm((4, 6), **k), lambda **k: nn.RMSNorm((4, 6), **k)),
    "not affine": (
        lambda **k: modules.RMSNorm(6, elementwise_affine=False, **k),
        lambda **k: nn.RMSNorm(6, elementwise_affine=False, **k),
    ),
    "linear gelu": (lambda **k: modules.LinearGELU(6, 5, **k), lambda **k: nn.Linear(6, 5, **k)),
    "linear geglu": (lambda **k: modules.LinearGEGLU(6, 8, bias=False, **k), lambda **k: Gated(6, 8, bias=False, **k)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_state_dicts_are_exchanged_and_results_agree(backend, name):
    torch.manual_seed(0)
    ours, theirs = (make(device=backend.device, dtype=torch.float64) for make in PAIRS[name])
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    state = getattr(theirs, "linear", theirs).state_dict()
    assert list(ours.state_dict()) == list(state)
    assert all(
        a.shape == b.shape and a.dtype == b.dtype for a, b in zip(ours.parameters(), state.values(), strict=True)
    )
    ours.load_state_dict(state, strict=True)
    getattr(theirs, "linear", theirs).load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(2, 4, 6, dtype=torch.float64, device=backend.device)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    y, want = ours(leaves[0]), theirs(leaves[1])
    if name == "linear gelu":
        want = nn.functional.gelu(want)
    torch.testing.assert_close(y, want, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(want)
    got = torch.autograd.grad(y, [leaves[0], *ours.parameters()], upstream)
    wanted = torch.autograd.grad(want, [leaves[1], *theirs.parameters()], upstream)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in PAIRS if not name.startswith("linear")])
def test_they_are_pytorchs_classes_and_say_so(name):
    ours, theirs = (make() for make in PAIRS[name])
    assert isinstance(ours, type(theirs)) and repr(ours) == repr(theirs)
    assert [p.dtype for p in ours.parameters()] == [torch.float32] * len(list(theirs.parameters()))


@pytest.mark.parametrize(("ours", "theirs"), [("LayerNorm", nn.LayerNorm), ("RMSNorm", nn.RMSNorm)])
@pytest.mark.parametrize("shape", [(6,), (4, 6)])
def test_a_residual_is_added_and_returned(backend, ours, theirs, shape):
    torch.manual_seed(1)
    norm = getattr(modules, ours)(shape, eps=1e-3, device=backend.device)
    x, residual = (torch.randn(2, 4, 6, device=backend.device) for _ in range(2))
    y, s = norm(x, residual)
    assert torch.equal(s, x + residual)
    torch.testing.assert_close(y, theirs(shape, eps=1e-3, device=backend.device)(x + residual))


def test_gates_take_one_tensor_or_two(backend):
    torch.manual_seed(2)
    x = torch.randn(3, 8, device=backend.device)
    first, second = x.chunk(2, -1)
    for gate, function in ((modules.SwiGLU, nn.functional.silu), (modules.GEGLU, nn.functional.gelu)):
        torch.testing.assert_close(gate()(x), first * function(second))
        torch.testing.assert_close(gate(gate_last=False)(x), function(first) * second)
        assert torch.equal(gate()(first, second), gate()(x))
    assert repr(modules.GEGLU("tanh")) == "GEGLU(approximate='tanh', gate_last=True)"
    assert repr(modules.SwiGLU(gate_last=False)) == "SwiGLU(gate_last=False)"
    assert repr(modules.LinearGELU(3, 4, approximate="tanh")).endswith("bias=True, approximate='tanh')")


@pytest.mark.parametrize("kind", promises.BLOCKS)
def test_the_decoder_block_is_more_accurate_than_pytorchs(kind):
    names = ["ours", "eager", *(["ours fused"] if kind == "layer+geglu" else [])]
    found = {name: block.errors(name, kind, 16, 32, 48, torch.bfloat16, DEVICE) for name in names}
    assert all(0 < found["ours"][name] <= found["eager"][name] for name in ("y", "dx", "parameters"))
    assert found.get("ours fused", found["ours"])["y"] <= found["ours"]["y"] * 1.02
