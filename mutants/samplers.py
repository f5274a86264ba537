"""Samplers with one defect each: Gumbel-max, inverse of the cumulative sum, top-k, top-p, and speculative decoding.

Twins take their random numbers from Philox, by the seed and the place, and compute in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import verify
from mutants.mutant import Family
from verify.declare.declaration import Kernel

LAW = "distribution"
_KEPT, _MASS = 5, 0.8  # of top-k and top-p
_WORD = 0xFFFFFFFF


def _philox(seed: Tensor, place: Tensor, stream: int) -> Tensor:
    """Returns the first word of `verify.philox`, by a second route and in half the time.

    `verify.philox` splits its products so that programs can be traced. Here int64 overflows and keeps the low 64 bits.
    """
    c0, c1, c2, c3 = place & _WORD, place >> 32, torch.full_like(place, stream), torch.zeros_like(place)
    k0, k1 = seed & _WORD, seed >> 32
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c2 = (second >> 32) & _WORD ^ c1 ^ k0, (first >> 32) & _WORD ^ c3 ^ k1
        c1, c3 = second & _WORD, first & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0


def _uniform(seed: Tensor, like: Tensor, bug: str | None, stream: int = 0) -> Tensor:
    """Returns a number in (0, 1) for each element."""
    place = torch.arange(like.numel(), device=like.device).reshape(like.shape)
    if bug == "one noise for all rows":
        place = place % like.shape[-1] if like.ndim > 1 else 0 * place
    if bug == "seed of 4 bits":
        seed = seed & 15
    u = (_philox(seed.reshape(()), place, stream) >> 8).double() * 2.0**-24 + 2.0**-25
    return (u * 256).floor() / 256 + 2.0**-9 if bug == "noise of 8 bits" else u


def _of_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    return (logits / temperature[:, None]).softmax(-1)


def _gumbel(logits: Tensor, temperature: Tensor, seed: Tensor, bug: str | None) -> Tensor:
    scaled = logits.double() / (1.0 if bug == "temperature ignored" else temperature.double()[:, None])
    return (scaled - (-_uniform(seed, logits, bug).log()).log()).argmax(-1)


def _inverse(probabilities: Tensor, seed: Tensor, bug: str | None) -> Tensor:
    """Returns the first number whose cumulative probability exceeds a random one."""
    count = probabilities.shape[-1]
    total = probabilities.double().cumsum(-1)
    if bug == "float16 cumulative sum":  # NumPy rounds each partial sum
        total = torch.from_numpy(np.cumsum(probabilities.half().cpu().numpy(), -1)).to(probabilities.device)
    u = _uniform(seed, probabilities[:, 0], bug)[:, None]
    found = (total.double() <= u * total[:, -1:].double()).sum(-1)
    if bug == "float16 cumulative sum":
        found = (total.double() <= u).sum(-1)
    return found.clamp(max=count - (2 if bug == "last number never drawn" else 1))


def _of_logits(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def _of_top_k(logits: Tensor) -> Tensor:
    values, places = logits.topk(_KEPT, -1)
    return torch.zeros_like(logits).scatter(1, places, values.softmax(-1))


def _top_k(logits: Tensor, seed: Tensor, bug: str | None) -> Tensor:
    if bug == "ties kept":
        least = logits.topk(_KEPT, -1).values[:, -1:]
        return _inverse(logits.double().masked_fill(logits < least, -torch.inf).softmax(-1), seed, bug)
    return _inverse(_of_top_k(logits.double()), seed, bug)


def _of_top_p(logits: Tensor) -> Tensor:
    ordered, places = logits.softmax(-1).sort(-1, descending=True)
    kept = torch.where(ordered.cumsum(-1) - ordered < _MASS, ordered, 0.0)
    return torch.zeros_like(logits).scatter(1, places, kept / kept.sum(-1, keepdim=True))


def _top_p(logits: Tensor, seed: Tensor, bug: str | None) -> Tensor:
    ordered, places = logits.double().softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    if bug == "cut one too early":
        before = functional.pad(before[:, 1:], (0, 1), value=2.0)
        before[:, 0] = 0.0
    if bug == "cut one too late":
        before = functional.pad(before[:, :-1], (1, 0))
    kept = torch.where(before < _MASS, ordered, 0.0)
    return places.gather(1, _inverse(kept / kept.sum(-1, keepdim=True), seed, bug)[:, None])[:, 0]


def _of_draft(logits: Tensor, draft: Tensor, token: Tensor) -> Tensor:
    """Returns the probabilities of the token that stands in the end, where `token` was drawn from the draft's."""
    p, q, one = logits.softmax(-1), draft.softmax(-1), functional.one_hot(token, logits.shape[-1]).to(logits.dtype)
    accepted = (p * one).sum(-1, keepdim=True) / (q * one).sum(-1, keepdim=True)
    rest = (p - q).relu()
    return one * accepted.clamp(max=1) + (1 - accepted).relu() * rest / rest.sum(-1, keepdim=True).clamp(min=1e-30)


def _speculative(logits: Tensor, draft: Tensor, token: Tensor, seed: Tensor, bug: str | None) -> Tensor:
    p, q = logits.double().softmax(-1), draft.double().softmax(-1)
    ratio = p.gather(1, token[:, None])[:, 0] / q.gather(1, token[:, None])[:, 0]
    rest = p if bug == "rest not subtracted" else (p - q).relu()
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)
    other = _inverse(rest / rest.sum(-1, keepdim=True), seed, bug)
    return torch.where(
        _uniform(seed, ratio, bug, stream=0 if bug == "one number for both" else 1) < ratio, token, other
    )


_SEEDED: Mapping[str, Any] = {"dtypes": ["float32"], "draws": {"y": "seed"}}
_SHAPES, _SEED = {"logits": "r v", "seed": ""}, {"seed": "0 <= seed < 2**31"}
_KINDS: Mapping[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "Gumbel": (
        _gumbel,
        {
            "like": _of_temperature,
            "shapes": {"logits": "r v", "temperature": "r", "seed": ""},
            "domain": {"temperature": "0.5 <= temperature <= 2"},
        },
    ),
    "inverse": (lambda logits, seed, bug: _inverse(_of_logits(logits.double()), seed, bug), {"like": _of_logits}),
    "top-k": (_top_k, {"like": _of_top_k, "where": f"v >= {_KEPT}"}),
    "top-p": (_top_p, {"like": _of_top_p}),
    "speculative": (
        _speculative,
        {
            "like": _of_draft,
            "shapes": {"logits": "r v", "draft": "r v", "token": "r", "seed": ""},
            "integers": {"token": "0 <= token < v", **_SEED},
        },
    ),
}


@cache
def _declared(kind: str) -> Kernel:
    function, settings = _KINDS[kind]
    names = list(settings.get("shapes", _SHAPES))
    declare = verify.kernel(operands=names, **{"shapes": _SHAPES, "integers": _SEED, **_SEEDED, **settings})
    return declare(lambda *operands: function(*operands, None))


def _make(bug: str | None, name: str, kind: str) -> Kernel:
    function, _ = _KINDS[kind]

    def call(*operands: Tensor) -> Tensor:
        if any(each.is_meta for each in operands) or len({each.device for each in operands}) > 1:
            raise ValueError("operands have memory, on one device")
        return function(*operands, bug)

    return replace(_declared(kind), name=name, function=call)


_FAMILY = Family("sampler", _make)
for _kind, _bug, _note in (
    ("Gumbel", "temperature ignored", "each row is drawn at a temperature of 1"),
    ("Gumbel", "one noise for all rows", "rows with equal logits draw the same token"),
    ("Gumbel", "noise of 8 bits", "the tail of the noise is missing, so that rare tokens are too rare"),
    ("Gumbel", "seed of 4 bits", "one call in 16 draws the same tokens"),
    ("inverse", "last number never drawn", "the last of the vocabulary is left out"),
    ("inverse", "float16 cumulative sum", "a sum of many small numbers stops below 1, and the rest goes to the last"),
    ("top-k", "ties kept", "all that are equal to the last one are kept"),
    ("top-p", "cut one too early", "the number that crosses the limit is left out"),
    ("top-p", "cut one too late", "one number more is kept"),
    ("speculative", "rest not subtracted", "a rejected token is drawn again from the target's own probabilities"),
    ("speculative", "one number for both", "the number that rejects also draws the other token"),
):
    _FAMILY.add(_bug, "sampling", "forward", _note, killed_by=(LAW,), kind=_kind)
MUTANTS = tuple(_FAMILY.mutants)
