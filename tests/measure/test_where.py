"""In which cases a result is wrong, by the cases that were judged."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import verify
from verify.backends import Backend
from verify.cases import Case
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.measure.result import where

GEOMETRY = verify.kernel(like=lambda x: x.sum(-1), shapes={"x": "n d"})(lambda x: x.sum(-1)).op.geometry
SIZES = (1, 3, 16, 17, 33, 64, 65, 129, 257)
CASES = [
    Case("float32", (n, d), fill, layouts=layouts)
    for n in SIZES
    for d in SIZES
    for fill, layouts in (("randn", {}), ("mean 1e3", {"x": "transposed"}), ("ramp", {"x": "stepped"}))
]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda case: case.dims[1] > 64, "in 81 of 243 cases: d from 65 on, right up to 64"),
        (lambda case: case.dims[0] < 16, "in 54 of 243 cases: n up to 3, right from 16 on"),
        (lambda case: case.dims[1] == 33, "in 27 of 243 cases: d = 33"),
        (lambda case: case.dims[1] % 16 == 0, "in 54 of 243 cases: d a multiple of 16"),
        (lambda case: case.dims[1] % 16 > 0, "in 189 of 243 cases: d no multiple of 16"),
        (lambda case: case.fill == "ramp", "in 81 of 243 cases: values: ramp"),
        (lambda case: case.dims[0] > 64 and case.fill == "randn", "in 27 of 243 cases: n from 65 on, right up to 64"),
        (lambda case: case.dims == (33, 17) and case.layouts, "in 2 of 243 cases: the smallest has n = 33, d = 17, v"),
        (lambda case: case.dims == (1, 3) and case.fill == "ramp", "in 1 of 243 cases: n = 1, d = 3, values: ramp"),
        (lambda case: True, "in all 243 cases"),
        (lambda case: False, ""),
    ],
)  # fmt: skip
def test_sizes_values_and_layouts_are_named(rule: object, words: str) -> None:
    found = where(GEOMETRY, CASES, [bool(rule(case)) for case in CASES])  # type: ignore[operator]
    assert found.startswith(words) and bool(found) == bool(words)


def test_what_holds_by_chance_is_not_named() -> None:
    wrong = torch.rand(len(CASES), generator=torch.Generator().manual_seed(3)) < 0.05
    said = where(GEOMETRY, CASES, wrong.tolist())
    assert said.startswith(f"in {int(wrong.sum())} of 243 cases: the smallest has n = ") and "from" not in said
    assert where(GEOMETRY, CASES[:1], [True]) == ""


def test_a_run_says_where_a_kernel_is_wrong(backend: Backend) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def,override]
            return 2 * x

        @staticmethod
        def backward(ctx, dy: Tensor) -> Tensor:  # type: ignore[no-untyped-def,override]
            return 2 * dy if dy.shape[-1] < 65 else 2 * dy.clamp(max=1)

    settings = {"like": lambda x: 2 * x, "shapes": {"x": "n d"}, "dtypes": ["float32"]}
    kernel = verify.kernel(**settings)(lambda x: Scaled.apply(x))  # type: ignore[arg-type,no-untyped-call]
    y, dx = measure_kernel(kernel, Measure("k"), backend).results
    assert (y.status, y.where, dx.status) == ("ok", "", "wrong")
    assert re.search("d from .* on, right up to 6[45]", dx.where)
