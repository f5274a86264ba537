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


def test_there_are_enough_in_three_formats_and_each_can_be_read() -> None:
    hand = list(honest.written())
    assert len(hand) >= 50
    for each in hand:
        ast.parse(each.text)
    assert len(programs()) * len(honest.ORDERS) + len(hand) >= 300
    found = honest.honest(12, seed=2)
    assert len(found) == 12 and found == honest.honest(12, seed=2)
    formats = {each.name.rpartition(", ")[2] for each in found if "written" not in each.name}
    assert formats == {*honest.FORMATS}


def test_a_model_of_any_number_of_arguments_has_names_for_them() -> None:
    class Model(torch.nn.Module):
        def forward(self, *operands: Tensor) -> Tensor:
            return operands[0]

    assert model._labels(Model(), (torch.ones(2),), set()) == ["input1"]
