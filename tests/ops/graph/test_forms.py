"""Honest kernels compute some steps in another form than the definition. The noise has that form's roundings too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify


def _textbook(x: Tensor, approximate: str) -> Tensor:
    """GELU as x (1 + f) / 2 in float32."""
    if approximate == "none":
        share = torch.erf((x * math.sqrt(0.5)).double())
    else:
        share = torch.tanh(((x + 0.044715 * x * x * x) * math.sqrt(2 / math.pi)).double())
    return x * (0.5 * (1 + share.float()))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_as_one_plus_erf_is_right_while_half_of_its_digits_are_left(approximate: str) -> None:
    def gelu(x: Tensor) -> Tensor:
        return functional.gelu(x, approximate=approximate)

    x, tail = torch.linspace(-3, 3, 97), torch.linspace(-4, -3.8, 97)
    verify.assert_close(_textbook(x, approximate), like=gelu, inputs=(x,))
    for kernel, at in ((_textbook(tail, approximate), tail), (gelu(x.double()).float() * 1.001, x)):
        with pytest.raises(AssertionError, match="y is wrong"):
            verify.assert_close(kernel, like=gelu, inputs=(at,))
