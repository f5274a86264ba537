"""Errors of a definition: each changes what it says, and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

import verify
from verify import backends
from verify.diagnose.explain import every_blind_spot
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
        ("multiply at line 19 of _scaled", x * 0.125 * 1.01 + b),
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

    seen = verify.kernel(like=scores, shapes=shapes, where="n <= 8 and m <= 8", dtypes=["float32"])(kernel)
    [found] = every_blind_spot(seen, backends.select("interpreter"), ())
    assert found.tried > 5 and found.spots == []
    wide = verify.kernel(like=scores, shapes=shapes, where="n <= 8 and m <= 8", dtypes=["float32"], max_noise=1e9)
    [found] = every_blind_spot(wide(kernel), backends.select("interpreter"), ())
    assert found.spots == [], "an error far beyond what noise explains is seen by the root mean square"
    narrow = verify.kernel(like=scores, shapes=shapes, where="n == 8 and m == 8", dtypes=["bfloat16"], max_noise=1e3)
    [found] = every_blind_spot(narrow(kernel), backends.select("interpreter"), ())
    assert any("1% off would pass" in spot for spot in found.spots)
