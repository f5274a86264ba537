"""Hunts of integer results: one that is wrong is found, and equal elements may come in any order."""

from __future__ import annotations

from typing import Any

import verify
from tests.measure.test_kernel import CPU
from verify.search.hunt.outcome import Hunted, hunt
from verify.search.hunt.requests import Hunt, Settings


def hunted(function: Any, evaluations: int) -> Hunted:
    kernel = verify.kernel(like=lambda x: x.argmax(-1), shapes={"x": "n d"}, dtypes=["float32"], name="it")(function)
    return hunt(kernel, "here.py::it", CPU, Hunt("float32", "y"), Settings(evaluations=evaluations, population=64))


def test_a_wrong_integer_is_found() -> None:
    found = hunted(lambda x: x.bfloat16().argmax(-1), 128).result
    [worst, *_] = found.worst
    assert (found.status, found.format) == ("wrong", "integers")
    assert worst.got != worst.truth and found.reason == f"{worst.got} in the place of {worst.truth}"


def test_the_last_of_equal_elements_is_right() -> None:
    found = hunted(lambda x: x.shape[-1] - 1 - x.flip(-1).argmax(-1), 128).result
    assert (found.status, found.format, found.reason) == ("ok", "integers", "")
