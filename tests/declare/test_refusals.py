"""Declarations that are refused: each with its error and the next step, in snapshots/refusals.txt."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.golden import answers
from verify.declare.declaration import kernel


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
    answers(path, globals() | {"kernel": kernel})
    held = path.read_text(encoding="utf-8")
    assert held.count("UsageError: ") == held.count("\n  next: ") == held.count(">>> ")
