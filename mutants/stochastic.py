"""Stochastic rounding of float32 to bfloat16 with one defect each: five ways to let training drift.

The twin takes 16 bits of Philox for each element and goes up in magnitude where they are below the 16 bits that are cut
off.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

import verify
from mutants.mutant import Family
from verify.declare.declaration import Kernel

LAW = "stochastic rounding"


def _rounded(x: Tensor, seed: Tensor, bug: str | None) -> Tensor:
    if x.dtype != torch.float32 or x.ndim != 1 or seed.numel() != 1 or seed.device != x.device:
        raise TypeError(f"x is a float32 vector beside one seed on its device; received {x.dtype} {list(x.shape)}")
    place = torch.arange(len(x), device=x.device)
    if bug == "seed ignored":
        seed = torch.zeros_like(seed)
    if bug == "lanes in pairs":
        place = place // 2
    random = verify.philox(seed.reshape(()), place)[0] & 0xFFFF
    if bug == "always up":
        random = torch.zeros_like(random)
    bits = x.contiguous().view(torch.int32)
    dropped = (bits & 0xFFFF) + (0x1000 if bug == "biased by 1/16" else 0)
    y = ((bits & -0x10000) + ((random < dropped).to(torch.int32) << 16)).view(torch.float32).bfloat16()
    if bug == "off by one neighbour":
        y = torch.where(random % 256 == 7, (y.view(torch.int16) + 1).view(torch.bfloat16), y)
    return y


@cache
def _declared() -> Kernel:
    declare = verify.kernel(
        like=lambda x, seed: x,
        shapes={"x": "n", "seed": ""},
        integers={"seed": "0 <= seed < 2**31"},
        stochastic="seed",
        dtypes=["float32"],
        output_dtypes={"y": "bfloat16"},
        gradients=False,
        name="rounded",
    )
    return declare(lambda x, seed: _rounded(x, seed, None))


def _make(bug: str | None, name: str) -> Kernel:
    return replace(_declared(), name=name, function=lambda x, seed: _rounded(x, seed, bug))


_FAMILY = Family("stochastic", _make)
for _bug, _note in (
    ("always up", "no random number is compared"),
    ("biased by 1/16", "a sixteenth of the spacing is added before the comparison"),
    ("seed ignored", "every step of training rounds alike"),
    ("lanes in pairs", "two elements share a random number"),
    ("off by one neighbour", "one element in 256 is a spacing further"),
):
    _FAMILY.add(_bug, "stochastic rounding", "forward", _note, killed_by=(LAW,))
MUTANTS = tuple(_FAMILY.mutants)
