"""The weights of a model and of a solution are not 0 and 1, and both get the same ones."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from verify.referee.weights import constructed


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.bn, self.ln = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width) * 0.02)
        self.eval()


class Folded(nn.Module):
    """Has the weights of the model under other names, two of them prepared while it is made."""

    def __init__(self, width: int) -> None:
        super().__init__()
        conv, bn = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width).eval()
        factor = bn.weight / torch.sqrt(bn.running_var + bn.eps)
        self.w = nn.Parameter((conv.weight * factor[:, None, None, None]).detach())
        self.b = nn.Parameter(((conv.bias - bn.running_mean) * factor + bn.bias).detach())
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.part = nn.Parameter(torch.full((width,), 0.02))


def test_other_names_and_folded_weights_have_the_same_numbers() -> None:
    model, folded = constructed(Model, (8,), 5), constructed(Folded, (8,), 5)
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        assert torch.allclose(model.bn(model.conv(x)), functional.conv2d(x, folded.w, folded.b), atol=1e-5)
    assert torch.equal(model.ln.weight, folded.gamma) and torch.equal(model.ln.bias, folded.beta)
    assert torch.equal(model.scale, folded.part)


def test_no_weight_is_zero_or_one_and_another_seed_has_others() -> None:
    first, second = constructed(Model, (8,), 5), constructed(Model, (8,), 6)
    for name, value in first.state_dict().items():
        if value.is_floating_point():
            assert value.unique().numel() > 1, name
            assert not torch.equal(value, second.state_dict()[name]), name
    assert float(first.bn.running_var.min()) > 0, "a variance stays positive"


def test_pytorch_is_as_before_afterwards() -> None:
    constructed(Model, (8,), 5)
    assert torch.equal(nn.LayerNorm(4).weight, torch.ones(4)) and torch.equal(
        nn.BatchNorm1d(4).running_var, torch.ones(4)
    )
