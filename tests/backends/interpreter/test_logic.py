"""`and`, `or`, `not` and comparisons on the interpreter: as a GPU computes them, not as Python does."""

from __future__ import annotations

import types

import pytest
import torch

pytestmark = pytest.mark.usefixtures("faithful")


def test_and_or_not_of_blocks_are_those_of_their_elements(k: types.ModuleType) -> None:
    """Python's `and` gives the last mask alone, which reads and writes beyond the tensor."""
    x = torch.arange(1.0, 7.0)
    out = torch.zeros(16)
    k.logic_of_blocks[(1,)](x, out, 2, 3, BLOCK=4)
    assert out.reshape(4, 4).tolist() == [[1, 0, 0, -1], [0, 0, 0, -1], [-1] * 4, [-1] * 4]


@pytest.mark.parametrize(("n", "flag", "want"), [(3, True, [1, 0]), (7, True, [0, 1]), (2, True, [0, 0])])
def test_constants_decide_before_tensors(n: int, flag: bool, want: list[int], k: types.ModuleType) -> None:
    out = torch.zeros(2, dtype=torch.int64)
    k.logic_of_constants[(1,)](out, n, FLAG=flag)
    assert out.tolist() == want
    k.logic_of_constants[(1,)](out.zero_(), n, FLAG=False)
    assert out.tolist() == [0, 1]


def test_every_operand_that_is_a_tensor_is_evaluated(k: types.ModuleType) -> None:
    """A compiled kernel has no way around the second one: here it adds up."""
    out = torch.zeros(1, dtype=torch.int64)
    for n in (3, 300):
        k.counting_condition[(1,)](out, n)
    assert out.item() == 2


def test_chained_comparisons_are_refused_as_by_the_compiler(k: types.ModuleType) -> None:
    with pytest.raises(Exception, match="simultaneous multiple comparison is not supported: 0 < n < 5"):
        k.chained_comparison[(1,)](torch.zeros(1), 3)
