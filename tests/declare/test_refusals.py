"""Declarations that are refused: each with its error and the next step, in snapshots/refusals.txt."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.golden import answers
from verify.cases import case_of, inputs_of
from verify.declare.declaration import kernel


def mine(x):
    return x


def few(x, *, eps):
    return x


def many(x, weight):
    return x


def writes(**said):
    """Declares a kernel that writes into y."""
    kernel(like=torch.exp, dtypes=["float32"], **said)(lambda x, y: torch.exp(x, out=y))


def structured(**said):
    """Declares a kernel of rows and their places, and draws its operands."""
    given = {"shapes": {"x": "n d", "p": "n"}, "dtypes": ["float32"], "name": "places", **said}
    made = kernel(like=lambda x, p: x * p[:, None], **given)(lambda x, p: x[p.long()])
    inputs_of(made.op, case_of(made, "float32", dims=(3, 2)), "cpu")


class Layer(torch.nn.Module):
    pass


class Function(torch.autograd.Function):
    pass


def test_a_declaration_that_cannot_be_is_refused_with_the_rule_and_the_next_step() -> None:
    path = Path(__file__).parent / "snapshots" / "refusals.txt"
    answers(path, globals() | {"kernel": kernel})
    held = path.read_text(encoding="utf-8")
    assert held.count("UsageError: ") == held.count("\n  next: ") == held.count(">>> ")
