"""Sequences and experts that depend on their company: on padding, on neighbours, on the number of an expert.

Two functions. The logarithm of the sum of exponentials of each padded sequence, and the two best experts of each token.
Twins compute in float64 and round once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

import verify
from mutants.mutant import Family
from verify.declare.declaration import Kernel

SEQUENCES, EXPERTS = "padding", "accuracy"


def _log_sum(x: Tensor, lengths: Tensor, bug: str | None = None) -> Tensor:
    """The logarithm of the sum of exponentials of each sequence."""
    seen = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    wide = x.double()
    if bug == "padding masked by adding":
        return (wide + torch.where(seen, 0.0, -1e4)).logsumexp(-1).float()
    if bug == "maximum of padding":
        top = wide.float().amax(-1, keepdim=True)
        return ((wide.float() - top).exp().where(seen, 0.0).sum(-1).log() + top[:, 0]).float()
    return wide.masked_fill(~seen, -torch.inf).logsumexp(-1).float()


def _gated(x: Tensor, gate: Tensor, w: Tensor, bug: str | None = None) -> Tensor:
    """The products of each token with its two best experts, weighted by a softmax of the scores."""
    p, best = torch.softmax(x.double() @ gate.double(), -1).topk(2, -1)
    y = torch.zeros(len(x), w.shape[-1], dtype=torch.float64, device=x.device)
    for expert in range(len(w)):
        weight = torch.where(best == expert, p, 0.0).sum(-1)
        if bug == "room for two tokens of expert 0" and expert == 0:
            weight = weight * ((weight > 0).cumsum(0) <= 2)
        swapped = bug == "experts swapped from 4 on" and 4 <= expert < len(w) // 2 * 2
        y = y + weight[:, None] * (x.double() @ w[expert ^ 1 if swapped else expert].double())
    return y.float()


@cache
def _declared(function: object) -> Kernel:
    said = {"dtypes": ["float32"], "gradients": False, "largest": 8.0, "name": "twin"}
    if function is _log_sum:
        shapes, integers = {"x": "b s", "lengths": "b"}, {"lengths": "1 <= lengths <= s"}
        return verify.kernel(like=_log_sum, shapes=shapes, integers=integers, **said)(lambda x, lengths: None)
    shapes = {"x": "t d", "gate": "d e", "w": "e d f"}
    return verify.kernel(like=_gated, shapes=shapes, where="e >= 2", **said)(lambda x, gate, w: None)


def _make_sequences(bug: str | None, name: str) -> Kernel:
    return replace(_declared(_log_sum), name=name, function=lambda x, lengths: _log_sum(x, lengths, bug))


def _make_experts(bug: str | None, name: str) -> Kernel:
    return replace(_declared(_gated), name=name, function=lambda x, gate, w: _gated(x, gate, w, bug))


_SEQUENCES, _EXPERTS = Family("sequences", _make_sequences), Family("experts", _make_experts)
for _bug, _note in (
    ("padding masked by adding", "-10,000 hides numbers up to 10,000"),
    ("maximum of padding", "all exponentials of a sequence become 0 beside large padding"),
):
    _SEQUENCES.add(_bug, "company of a sequence", "forward", _note, killed_by=(SEQUENCES,))
for _bug, _note in (
    ("room for two tokens of expert 0", "the others are dropped"),
    ("experts swapped from 4 on", "a block of four experts is right"),
):
    _EXPERTS.add(_bug, "number of an expert", "forward", _note, killed_by=(EXPERTS,))
MUTANTS = (*_SEQUENCES.mutants, *_EXPERTS.mutants)
