"""The honest solutions of mutants/honest.py are right, so that a rejection is a fault of the judge."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.breakages.programs import programs
from benchmarks.breakages.steps import outputs_of
from mutants import honest
from verify.referee.formats import model

SAMPLE = ("softmax", "layer norm", "cross entropy", "attention, causal", "conv2d", "matmul, 512, bfloat16")


def solved(text: str, operands: list[Tensor]) -> list[Tensor]:
    known: dict[str, Any] = {}
    exec(compile(text, "solution", "exec"), known)
    return outputs_of(known["compute"](*operands))


@pytest.mark.parametrize("name", SAMPLE)
def test_every_order_of_sums_computes_the_program(name: str) -> None:
    program = programs()[name]
    kind = getattr(torch, program.dtype)
    operands = [each.to(kind) if each.is_floating_point() else each for each in program.drawn(5)]
    wide = [each.double() if each.is_floating_point() else each for each in operands]
    wanted = outputs_of(program.function(*wide))
    most = 2e-5 if kind is torch.float32 else 1e-2
    for order in honest.ORDERS:
        found = solved(honest._of_program(program, order, "functional").text, operands)
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.dtype == kind and torch.allclose(mine.double(), theirs.double(), rtol=most, atol=most)


def test_sums_in_another_order_have_other_bits() -> None:
    program = programs()["matmul, 512"]
    operands = program.drawn(5)
    bits = [solved(honest._of_program(program, order, "functional").text, operands)[0] for order in honest.ORDERS]
    assert all(not torch.equal(bits[0], other) for other in bits[1:])


def test_there_are_four_hundred_of_each_kind_and_each_can_be_read() -> None:
    hand, twins, crossed = list(honest.written()), list(honest.twins()), list(honest.crossed())
    for each in (*hand, *twins, *crossed):
        ast.parse(each.text)
        assert "$" not in each.text
    assert len(hand) >= 60 and len(twins) >= 100 and len(crossed) >= 500
    found = honest.honest(400, seed=2)
    assert len({each.name for each in found}) == 400 and honest.honest(20, seed=2) == honest.honest(20, seed=2)
    assert {each.name for each in hand} <= {each.name for each in found}
    formats = {each.name.rpartition(", ")[2] for each in found}
    assert formats >= {*honest.FORMATS, "twin", "compiled", "side_stream", "graph", "own_buffer", "thread"}


@pytest.mark.parametrize("problem", ["linear", "mask", "conv_norm", "experts", "narrow"])
def test_a_technique_computes_its_problem(problem: str) -> None:
    made = {each.name: each for each in honest.crossed() if each.name.startswith(f"{problem}, ")}
    assert len(made) >= 13
    for each in made.values():
        reference: dict[str, Any] = {}
        own: dict[str, Any] = {}
        exec(compile(each.files["problem.py"], "problem", "exec"), reference)
        kept, grad = torch.get_float32_matmul_precision(), torch.is_grad_enabled()
        torch.manual_seed(3)
        model, inputs = reference["Model"](), reference["get_inputs"]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("builtins.print", print)
            patch.setattr(torch, "load", torch.load)
            exec(compile(each.text, "solution", "exec"), own)
            torch.manual_seed(3)
            torch.set_grad_enabled(True)
            mine = own["ModelNew"]()
            mine.load_state_dict(model.state_dict())
            with torch.no_grad():
                model(*inputs), mine(*inputs)
                assert torch.equal(mine.eval()(*inputs), model.eval()(*inputs)), each.name
        torch.set_float32_matmul_precision(kept)
        torch.set_grad_enabled(grad)


def test_a_model_of_any_number_of_arguments_has_names_for_them() -> None:
    class Model(torch.nn.Module):
        def forward(self, *operands: Tensor) -> Tensor:
            return operands[0]

    assert model._labels(Model(), (torch.ones(2),), set()) == ["input1"]
