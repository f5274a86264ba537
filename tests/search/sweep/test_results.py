"""Sweeps of results that are integers, or have another dtype than the inputs."""

from __future__ import annotations

import pytest
import torch

import verify
from verify.backends import Backend
from verify.records.record import Result
from verify.search.sweep.checking import check
from verify.search.sweep.finishing import finish
from verify.search.sweep.serve import space_of


def swept(kernel: verify.Kernel, backend: Backend, dtype: str, low: float, high: float) -> dict[str, Result]:
    space = space_of(kernel, "here.py::it", dtype, bounds=(low, high), baseline=True)
    run = finish(kernel, space, check(kernel, space, (0, space.chunks), backend))
    return {result.output.partition(" ")[0]: result for result in run.results}


@pytest.mark.parametrize("sign", [1, -1])
def test_the_one_wrong_integer_of_a_range_is_found(sign: int, backend: Backend) -> None:
    kernel = verify.kernel(like=lambda x: x.round().to(torch.int8), dtypes=["float32"], name="rounds_up")(
        lambda x: x.add(0.5 * sign).floor().to(torch.int8) if sign > 0 else x.sub(0.5).ceil().to(torch.int8)
    )
    found = swept(kernel, backend, "float32", *sorted((sign * 2.4999, sign * 2.5001)))["y"]
    assert (found.status, found.format, found.figures.misrounded) == ("wrong", "integers", 1)
    assert found.reason == f"1 of {found.figures.n} integers are wrong on ordinary inputs"
    assert (found.worst[0].got, found.worst[0].truth) == (str(3 * sign), str(2 * sign))
    assert found.baseline is not None and found.baseline.misrounded == 0


def test_a_condition_is_right_everywhere(backend: Backend) -> None:
    kernel = verify.kernel(like=lambda x: x > 0.1, dtypes=["float32"], name="above")(lambda x: x >= 0.1)
    assert swept(kernel, backend, "float32", 0.0999, 0.1001)["y"].status == "ok"


def test_a_result_is_judged_in_its_own_format(backend: Backend) -> None:
    wide = {"like": torch.tanh, "dtypes": ["bfloat16"], "output_dtypes": {"y": "float32"}, "gradients": False}
    right = verify.kernel(**wide, name="right")(lambda x: torch.tanh(x.float()))
    narrow = verify.kernel(**wide, name="narrow")(lambda x: torch.tanh(x).float())
    found = swept(right, backend, "bfloat16", 0.5, 1.0)["y"]
    assert (found.status, found.format) == ("ok", "float32")
    assert swept(narrow, backend, "bfloat16", 0.5, 1.0)["y"].status == "wrong"
