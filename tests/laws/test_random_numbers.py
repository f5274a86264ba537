"""Dropout with a seed is judged exactly: the numbers of a definition are those of Triton's generator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import verify
from tests.laws.trial import breaks, holds
from verify.backends import Backend
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Target

EXAMPLE = Path(__file__).parents[2] / "examples" / "random_numbers.py"


def definition(x: Tensor, seed: Tensor) -> Tensor:
    return dropped(x, seed, torch.arange(len(x), device=x.device))


def dropped(x: Tensor, seed: Tensor, place: Tensor) -> Tensor:
    u = verify.philox_uniform(verify.philox(seed, place)[0])
    return torch.where(u > 0.125, x * (1 / 0.875), 0.0).to(x.dtype)


def declared(function: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    settings = {"shapes": {"x": "n", "seed": ""}, "integers": {"seed": "0 <= seed < 2**62"}, "gradients": False}
    return verify.kernel(like=definition, dtypes=["float32"], name="k", **settings)(lambda x, seed: function(x, seed))


def place(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device)


def test_a_triton_dropout_is_right_at_every_element(backend: Backend) -> None:
    kernel, *_ = load(Target(str(EXAMPLE)))
    holds("accuracy", kernel)


WRONG: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the block is lost": lambda x, seed: dropped(x, seed, place(x) % 64),
    "half of the seed": lambda x, seed: dropped(x, seed & 0xFFFFFFFF, place(x)),
}


@pytest.mark.parametrize("bug", WRONG)
def test_a_dropout_with_other_numbers_is_found(bug: str) -> None:
    breaks("accuracy", declared(WRONG[bug]), "limit")


def test_a_number_has_no_length_that_could_be_wrong() -> None:
    """Longer and shorter operands are refused with an error; a seed is one number."""

    def checked(x: Tensor, seed: Tensor) -> Tensor:
        if x.dtype != torch.float32 or x.device != seed.device:
            raise TypeError(f"x is float32, on the device of the seed; received {x.dtype}")
        return definition(x, seed)

    holds("error contract", declared(checked))
