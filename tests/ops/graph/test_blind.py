"""Errors of a definition: each changes what it says, and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

import verify
from verify import backends
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.ops.graph.blind import mutated, mutations
from verify.ops.graph.program import trace
from verify.ops.graph.steps import Run

X, B = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.5, 0.25])


def _scaled(x: Tensor, b: Tensor) -> Tensor:
    return x * 0.125 + b


def test_each_constant_and_each_step_is_off_once_and_a_sum_loses_each_of_its_terms() -> None:
    program = trace(_scaled, {"x": X.double(), "b": B.double()})
    run = Run({"x": X, "b": B}, torch.device("cpu"))
    x, b = X.double(), B.double()
    right = [
        ("the constant 0.125 1% off", x * 0.125 * 1.01 + b),
        ("multiply at line 20 of _scaled", x * 0.125 * 1.01 + b),
        ("add at line", (x * 0.125 + b) * 1.01),
        ("add at line", x * 0.125),  # left out
    ]
    found = [(each.words, made["y"]) for each, made in mutated(program, run, ["y"], 99)]
    assert len(found) == len(mutations(program, ["y"])) == len(right)
    for (words, made), (begins, want) in zip(sorted(found, key=lambda one: "left" in one[0]), right, strict=True):
        assert words.startswith(begins) and torch.allclose(made, want, rtol=1e-12), words


def test_a_temperature_that_a_wide_limit_excuses_is_named_and_one_that_the_default_sees_is_not() -> None:
    shapes = {"q": "n 16", "k": "m 16"}

    def scores(q: Tensor, k: Tensor) -> Tensor:
        return torch.softmax(q @ k.T * 0.25, -1)

    def kernel(q: Tensor, k: Tensor) -> Tensor:
        return scores(q, k)

    def notes(dtype: str, max_noise: float | None) -> list[str]:
        where = "n == 8 and m == 8"
        said = {"shapes": shapes, "where": where, "dtypes": [dtype], "max_noise": max_noise, "gradients": False}
        declared = verify.kernel(like=scores, **said)(kernel)
        return measure_kernel(declared, Measure("k.py::kernel"), backends.select("interpreter")).notes

    beyond = notes("float32", 1e9)
    assert not any("would pass on inputs" in note for note in beyond), "the root mean square sees what noise cannot be"
    assert any("1% off would pass" in note for note in notes("bfloat16", 1e3))
