"""Offsets in 32 bits: the sizes from which on they wrap are those that were published, and 64 bits need none."""

from __future__ import annotations

import pytest

from mutants import wraps
from verify import backends
from verify.declare.declaration import Kernel
from verify.laws.addresses import smallest_wraps
from verify.laws.engine import PROFILES
from verify.laws.law import Subject, plain_case

AXIS = {"permuted": 1}  # where it is not the first dimension that grows
QUICK = ("fused_views", "padded_copy", "returning")  # a view, a loaded index, a branch; the others take minutes in all
FEW = 3


def base_of(name: str) -> tuple[int, ...]:
    dims, axis = wraps.WRAPS[name][0], AXIS.get(name, 0)
    return (*dims[:axis], FEW, *dims[axis + 1 :])


def found_in(kernel: Kernel, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
    subject = Subject(kernel, kernel.dtypes[0], backends.select(), PROFILES["ci"].sizes["small"])
    return [each.dims for each in smallest_wraps(subject, plain_case(subject, dims))]


NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in wraps.WRAPS]


@pytest.mark.parametrize("name", NAMES)
def test_the_published_size_is_found_without_its_memory(name: str) -> None:
    assert wraps.WRAPS[name][0] in found_in(vars(wraps)[f"{name}_wrong"], base_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_offsets_in_64_bits_are_right_at_all_sizes(name: str) -> None:
    assert found_in(vars(wraps)[name], base_of(name)) == []
