"""Explicit values reach the kernel as they are written, and whatever does not fit is refused."""

from __future__ import annotations

import pytest
import torch

from verify import ops
from verify.cases import Case, inputs_of, upstream_of
from verify.cases.case import LIMIT, spell
from verify.errors import UsageError
from verify.truth.ulp import bits_of, pattern_at

GELU = ops.get("gelu")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_spelled_values_come_back_to_the_bit(dtype: str) -> None:
    recipe = Case(dtype=dtype, dims=(3, 41), fill="mixed", seed=5)
    x = inputs_of(GELU, recipe, "cpu")["x"]
    assert x is not None
    spelled = Case(dtype=dtype, dims=(3, 41), fill="normal", values={"x": spell(x)})
    again = inputs_of(GELU, Case.from_json(spelled.to_json()), "cpu")["x"]
    assert again is not None and again.dtype == x.dtype and again.shape == x.shape
    assert torch.equal(bits_of(again), bits_of(x))


def test_fewer_rows_than_the_tensor_has_repeat() -> None:
    case = Case(
        dtype="float16", dims=(5, 2), fill="normal", values={"x": "3c00400042004400"}, edits={"x": {"9": "0000"}}
    )
    x = inputs_of(GELU, case, "cpu")["x"]
    assert x is not None and x.tolist() == [[1, 2], [3, 4], [1, 2], [3, 4], [1, 0]]


def test_an_edit_changes_one_element_and_no_other() -> None:
    plain = Case(dtype="float32", dims=(2, 8), fill="normal")
    edited = Case(dtype="float32", dims=(2, 8), fill="normal", edits={"x": {"11": "ff800000"}})
    before, after = inputs_of(GELU, plain, "cpu")["x"], inputs_of(GELU, edited, "cpu")["x"]
    assert before is not None and after is not None
    assert after[1, 3] == -torch.inf
    assert int((bits_of(before) != bits_of(after)).sum()) == 1


def test_upstream_gradients_are_spelled_under_d_and_their_output() -> None:
    case = Case(
        dtype="float16",
        dims=(2,),
        fill="normal",
        upstream="ones",
        values={"dy": "3c00fbff"},
        edits={"dy": {"0": "0001"}},
    )
    upstream = upstream_of(GELU, case, {"y": torch.zeros(2, dtype=torch.float16)})
    assert [pattern_at(upstream["y"], i) for i in range(2)] == [0x0001, 0xFBFF]


def test_a_pattern_is_never_negative() -> None:
    assert pattern_at(torch.tensor([0.0, -0.0], dtype=torch.float64), 1) == 1 << 63
    assert pattern_at(torch.tensor([[1.0], [-2.0]], dtype=torch.bfloat16), 1) == 0xC000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"values": {"x": "3c00"}}, "4 hex digits for each of its 2 elements, 8 in all; received 4"),
        ({"values": {"x": "3c00zz00"}}, "an element of 'x' is 4 hex digits; received 'zz00'"),
        ({"values": {"q": "3c003c00"}}, "the case spells out 'q'"),
        ({"values": {"dy": "3c003c00"}}, "spells out 'dy' but asks for no gradient"),
        ({"edits": {"x": {"2": "3c00"}}}, "an element from 0 to 1; received '2'"),
        ({"edits": {"x": {"-1": "3c00"}}}, "an element from 0 to 1; received '-1'"),
        ({"edits": {"x": {"0": "3c0"}}}, "an element of 'x' is 4 hex digits; received '3c0'"),
        ({"dims": (LIMIT + 1,), "values": {"x": "3c00" * (LIMIT + 1)}}, "at most 65,536 elements"),
        ({"dims": (3, 2), "values": {"x": "3c00" * 3}}, "24 in all, or for whole rows, which repeat; received 12"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        inputs_of(GELU, Case(**{"dtype": "float16", "dims": (2,), "fill": "normal", **fields}), "cpu")
