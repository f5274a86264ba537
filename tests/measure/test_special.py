"""The special-value matrix: which inputs, what is right, what is wrong, and where there is none."""

from __future__ import annotations

import pytest
import torch

import verify
from verify.backends import Interpreter
from verify.cases import Case
from verify.measure.call import run_kernel
from verify.measure.element import patterns, special_values
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.record import SpecialValue
from verify.truth import formats
from verify.truth.ulp import from_bits

CPU = Interpreter("cpu")
F = torch.nn.functional


def test_the_patterns_are_the_special_ones() -> None:
    values = from_bits(torch.tensor(patterns(formats.named("float16"))), formats.named("float16"))
    tiny = torch.finfo(torch.float16)
    assert values[:2].tolist() == [0.0, 0.0]
    assert torch.signbit(values[:10]).tolist() == [False, True] * 5
    assert values[2::2][:4].tolist() == [2.0**-24, 2.0**-14 - 2.0**-24, tiny.max, torch.inf]
    assert torch.isnan(values[-1])


def matrix(kernel: verify.Kernel, result: str = "y", dtype: str = "float16") -> list[SpecialValue]:
    return special_values(kernel, "a.py::k", dtype, lambda case: run_kernel(kernel, case, "cpu"))[result]


def test_a_right_kernel_is_right_everywhere() -> None:
    @verify.kernel(op="silu", dtypes=["float16"], gradients=False)
    def right(x):
        wide = x.double()
        return torch.where(wide < -1e4, -0.0, wide / (1 + torch.exp(-wide))).half()

    rows = matrix(right)
    assert [row.status for row in rows] == ["ok"] * 11
    assert [row.inputs["x"].split()[0] for row in rows[:2]] == ["0", "-0"]
    assert rows[8].inputs == {"x": "inf (0x7c00)"}
    assert (rows[8].got, rows[8].truth) == ("inf", "inf")
    assert rows[9].truth == "0.0"
    assert (rows[10].got, rows[10].truth) == ("nan", "nan")
    assert all(row.origin is None for row in rows)


def test_a_wrong_one_comes_with_a_command_that_shows_it() -> None:
    @verify.kernel(op="gelu", dtypes=["float16"], gradients=False)
    def textbook(x):
        return x * 0.5 * (1.0 + torch.erf(x / 2**0.5))

    [wrong] = [row for row in matrix(textbook) if row.status == "wrong"]
    assert wrong.inputs == {"x": "-inf (0xfc00)"}
    assert wrong.got == "nan"
    from verify.diagnose.replay import replay

    origin = wrong.origin
    assert origin is not None and origin.target == "a.py::k"
    seen = replay(textbook, "a.py::k", CPU, Case.from_json(origin.case), result=origin.result, index=origin.index)
    assert seen.worst.inputs == wrong.inputs
    assert seen.worst.got == "nan"


def test_each_operand_takes_its_turn_and_a_packed_one_has_two() -> None:
    @verify.kernel(op="geglu", dtypes=["float16"])
    def packed(x):
        first, second = x.chunk(2, -1)
        return first * F.gelu(second)

    rows = matrix(packed)
    assert len(rows) == 22
    for row in rows[:11]:
        assert row.inputs["x2"] == "1 (0x3c00)"
    for row in rows[11:]:
        assert row.inputs["x1"] == "1 (0x3c00)"
    assert rows[8].inputs["x1"] == rows[19].inputs["x2"] == "inf (0x7c00)"
    gradients = matrix(packed, "dx")
    assert [row.inputs["of"] for row in gradients] == ["dx1"] * 22 + ["dx2"] * 22
    assert [{k: v for k, v in row.inputs.items() if k != "of"} for row in gradients[:22]] == [r.inputs for r in rows]
    # d x1 * gelu(x2) / d x1 = gelu(x2): at x1 = inf it is gelu(1)
    assert gradients[8].truth.startswith("0.84134474606854")


def test_a_kernel_that_refuses_the_small_case_keeps_its_figures_and_says_so() -> None:
    @verify.kernel(op="silu", dtypes=["float16"], gradients=False)
    def picky(x):
        if x.numel() < 1000:
            raise ValueError("too small for me")
        return (x.double().clamp(min=-1e4) * torch.sigmoid(x.double())).half()

    run = measure_kernel(picky, Measure("a.py::picky"), CPU)
    assert run.status == "ok"
    assert run.results[0].special == []
    [note] = run.notes
    assert note.startswith("float16: special values were not tried one by one: picky raised ValueError: too small")


@pytest.mark.parametrize("strict", [False, True])
def test_the_sign_of_zero_counts_when_the_policy_says_so(strict: bool) -> None:
    policy = verify.Policy(signed_zero="strict" if strict else "ignore")

    @verify.kernel(op="silu", dtypes=["float16"], gradients=False, policy=policy)
    def positive_zeros(x):
        right = F.silu(x.float()).half()
        return torch.where((right == 0) | torch.isnan(right) & ~torch.isnan(x), torch.zeros_like(right), right)

    wrong = [row.inputs["x"] for row in matrix(positive_zeros) if row.status == "wrong"]
    assert bool(wrong) == strict
