"""Modules with `get_inputs()` and `get_init_inputs()`, as benchmarks of generated kernels hold them."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import flint
import pytest
import torch
from mpmath import mp
from torch import Tensor, nn

import verify
from tests.measure.test_kernel import CPU
from verify.errors import UsageError
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.ops.graph.like import Definition
from verify.ops.op import Op, Problem
from verify.truth.enclosure import from_arb

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features, scale):
        super().__init__()
        self.linear = nn.Linear(features, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = scale

    def forward(self, x, power):
        return torch.relu(self.norm(self.linear(x))) * self.scale**power

def get_inputs():
    return [torch.rand(4, 5), 2]

def get_init_inputs():
    return [5, 0.5]
"""


def _fast(op: Op, x: Tensor) -> Tensor:
    return op.fast(Problem({"x": x}, {}, {}, op.outputs))[op.outputs[0]].value


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_a_problem_file_is_verified_as_docs_like_says(tmp_path: Path, factor: float) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM)
    problem = runpy.run_path(str(tmp_path / "problem.py"))
    torch.manual_seed(0)
    model = problem["Model"](*problem["get_init_inputs"]())

    @verify.kernel(like=model, examples=problem["get_inputs"], dtypes=["float32"], gradients=False, max_ulp=1e4)
    def kernel(x: Tensor, power: int = 2) -> Tensor:
        rows = x.double() @ model.linear.weight.double().T + model.linear.bias.double()
        around = rows - rows.mean(0)
        normal = around / (around.square().mean(0) + model.norm.eps).sqrt()
        return (torch.relu(normal) * model.scale**power * factor).float()

    assert kernel.operands == ("x",)
    run = measure_kernel(kernel, Measure("problem.py::kernel"), CPU)
    assert (run.status, [result.output for result in run.results]) == ("ok" if factor == 1.0 else "wrong", ["y"])


@pytest.mark.parametrize(
    ("examples", "words"),
    [
        ([(torch.ones(3), 2.0)], "operands are tensors; an example has s=2.0"),
        ([(torch.ones(3),)], "a tensor for each operand, x, s; received 1"),
    ],
)
def test_what_is_no_tensor_is_fixed_by_a_default(examples: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Definition(lambda x, s: x * s, ["x", "s"], examples=examples).op()


def test_values_beside_tensors_keep_their_places() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    for examples in ((0.5, x, True), {"s": 0.5, "x": x, "twice": True}):
        op = Definition(lambda s, x, twice: (x - s) * (2 if twice else 1), ["x"], examples=examples).op()
        assert _fast(op, x).tolist() == [1.0, 3.0, 5.0]
    with pytest.raises(UsageError, match="the examples differ"):
        Definition(lambda x, s: x * s, ["x"], examples=[(x, 1.0), (x, 2.0)]).op()


def test_tensors_that_a_program_makes_or_casts_are_real_too() -> None:
    """In float32 they met operands in float64: 'expected scalar type Double but found Float'."""
    kept = torch.full((5, 2), 0.1)
    op = Definition(
        lambda x: x.float() @ kept + torch.eye(3, 2, dtype=torch.half) + torch.tensor(0.1), ["x"], shapes={"x": "3 5"}
    ).op()
    x = torch.randn(3, 5)
    want = x.double() @ kept.double() + torch.eye(3, 2) + 0.1
    assert torch.get_default_dtype() == torch.float32 and torch.allclose(_fast(op, x), want, rtol=1e-14, atol=1e-14)


class Recurrent(nn.Module):
    """Keeps its hidden state, a plain attribute, and counts what a batch norm in training has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.cell = nn.BatchNorm1d(4), nn.LSTM(4, 3, batch_first=True)
        self.state = torch.full((1, 2, 3), 0.25)
        self.seen = torch.zeros(2, 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.copy_(x)  # in place: with what autograd knows of x
        y, (self.state, _) = self.cell(self.norm(x.transpose(1, 2)).transpose(1, 2), (self.state, torch.zeros(1, 2, 3)))
        return y


def test_what_a_call_leaves_in_a_module_does_not_change_the_next() -> None:
    torch.manual_seed(0)
    module, x = Recurrent(), torch.randn(2, 2, 4)
    op = Definition(module, ["x"], examples=[(x,)]).op()
    found = _fast(op, x)
    op.fast(Problem({"x": x}, {}, {"y": torch.ones(2, 2, 3)}, ("y", "dx")))  # traced once more
    again = Definition(module, ["x"], examples=[(x,)]).op()
    assert torch.equal(_fast(op, x), found) and torch.equal(_fast(again, x), found)
    assert op.baseline(x).shape == found.shape and not module.seen.requires_grad
    assert module.norm.num_batches_tracked == 0 and float(module.state.max()) == 0.25
    assert torch.allclose(found.float(), module(x), atol=1e-5)


def test_far_out_a_ball_is_an_enclosure_and_mpmath_has_digits() -> None:
    """x Phi(x) at -1e20 overflowed an int, and log(s / (1 - s)) was 0 for mpmath: 14,427 of 16,384 bits cancel."""
    gelu, x = Definition(nn.functional.gelu, ["x"]).op(), torch.tensor([-1e20])
    problem = Problem({"x": x}, {}, {"y": torch.ones(1)}, ("y", "dx"))
    for result in ("y", "dx"):
        arb = gelu.points(problem, result, [0])[0].arb
        assert arb is not None and from_arb(arb(128)) is not None
    logit = Definition(lambda x: torch.log(torch.sigmoid(x) / (1 - 1 / (1 + torch.exp(-x)))), ["x"]).op()
    x = torch.tensor([9_999.9])
    [point] = logit.points(Problem({"x": x}, {}, {}, ("y",)), "y", [0])
    with mp.workprec(300):
        assert point.arb is not None and abs(point.mp(160) - float(x)) < 1e-30
        assert abs(point.arb(1 << 14) - flint.arb(float(x))) < 1e-30


def test_a_row_of_one_number_less_its_mean_is_zero() -> None:
    """As where a public problem subtracts the mean of a maximum: the interval of a long product left 0 open."""

    def centred(x: Tensor, weight: Tensor) -> Tensor:
        most = (x @ weight).amax(1, keepdim=True)
        return nn.functional.gelu(most - most.mean(1, keepdim=True))

    x, weight = torch.linspace(-1, 1, 600).view(2, 300), torch.linspace(-1, 2, 1200).view(300, 4)
    op = Definition(centred, ["x", "weight"], examples=[(x, weight)]).op()
    upstream = {"y": torch.full((2, 1), 0.3)}
    for each in op.fast(Problem({"x": x, "weight": weight}, {}, upstream, ("y", "dx", "dweight"))).values():
        assert not each.value.any() and not each.bound.any()
    x[1] = math.inf
    found = op.fast(Problem({"x": x, "weight": weight}, {}, {}, ("y",)))["y"]
    assert found.value[0] == 0 and (found.value[1].isnan() or found.bound[1].isinf())
