"""Which operands a softmax over products is made of, read from programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from verify.ops.graph.like import Definition

HEADS = {"q": "h t d", "k": "h s d", "v": "h s d"}


def windowed(q, k, v):
    """A window of four keys, a cap of 50, and the logarithms of the sums."""
    scores = 50 * torch.tanh(q @ k.transpose(-1, -2) * 0.25 / 50)
    query, key = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None]
    scores = scores.masked_fill((key > query) | (key < query - 3), -math.inf)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def rotated(q, k, v, c, s):
    def turn(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * c - b * s, a * s + b * c], -1)

    return functional.scaled_dot_product_attention(turn(q), turn(k), v)


def normed(q, k, v):
    q, k = (functional.rms_norm(x, x.shape[-1:]) for x in (q, k))
    return functional.scaled_dot_product_attention(q, k, v)


def tokens_first(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def sinks(q, k, v, sink):
    scores = torch.cat([q @ k.transpose(-1, -2), sink[:, None, None].expand(-1, q.shape[1], 1)], -1)
    return torch.softmax(scores, -1)[..., :-1] @ v


def of_sequences(q, k, v, lengths):
    """Each token attends to the keys of its sequence."""
    own = (torch.arange(q.shape[0])[:, None] >= lengths.cumsum(0)).sum(1)
    return (q[:, None] @ k[own].mT).softmax(-1) @ v[own]


IN_THREE = {"q": ("query", 1, 2), "k": ("key", 1, 2), "v": ("value", 1, -1)}
IN_FOUR = {"q": ("query", 2, 3), "k": ("key", 2, 3), "v": ("value", 2, -1)}
CASES: dict[str, tuple[Callable[..., Any], dict[str, str], dict[str, Any], dict[str, tuple[str, int, int]]]] = {
    "causal": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        dict.fromkeys("qkv", "b h t d"),
        {},
        IN_FOUR,
    ),
    "grouped": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        {"q": "b h t d", "k": "b g s d", "v": "b g s e"},
        {"where": "h % g == 0"},
        IN_FOUR,
    ),
    "windowed": (windowed, dict.fromkeys("qkv", "h t d"), {}, IN_THREE),
    "rotated": (rotated, {**dict.fromkeys("qkv", "b h t d"), "c": "t e", "s": "t e"}, {"where": "d == 2*e"}, IN_FOUR),
    "normed": (normed, HEADS, {}, IN_THREE),
    "tokens first": (
        tokens_first,
        {"q": "b t h d", "k": "b s h d", "v": "b s h d"},
        {},
        {"q": ("query", 1, 3), "k": ("key", 1, 3), "v": ("value", 1, -1)},
    ),
    "sinks": (sinks, {**HEADS, "sink": "h"}, {}, IN_THREE),
    "sequences, by integers that zeros would break": (
        of_sequences,
        {"q": "t d", "k": "b s d", "v": "b s d", "lengths": "b"},
        {"integers": {"lengths": "1 <= lengths <= t, sum t"}},
        {"q": ("query", 0, 1), "k": ("key", 1, 2), "v": ("value", 1, -1)},
    ),
    "linear cross entropy": (
        lambda x, w, label: functional.cross_entropy(x @ w, label),
        {"x": "n d", "w": "d v", "label": "n"},
        {"integers": {"label": "0 <= label < v"}},
        {"x": ("query", 0, 1), "w": ("key", 1, 0)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operands_of_scores_are_found_with_their_axes(name: str) -> None:
    function, shapes, said, wanted = CASES[name]
    found = Definition(function, tuple(shapes), shapes=shapes, **said).op().scores
    assert found is not None
    assert {operand: (part.role, part.tokens, part.features) for operand, part in found.items()} == wanted


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x: torch.softmax(x, -1), {"x": "n d"}),
        (lambda a, b: torch.exp(a @ b), {"a": "m k", "b": "k n"}),
        (lambda q, k, v: torch.relu(q) @ (torch.relu(k).transpose(-1, -2) @ v), HEADS),
        (lambda x: torch.softmax(x @ x.T, -1) @ x, {"x": "n d"}),  # one operand is both: no direction suits it
        (lambda x, w, k: torch.softmax((x @ w) @ k.T, -1), {"x": "n e", "w": "e d", "k": "m d"}),  # a projection
    ],
    ids=["softmax", "exponential", "linear attention", "one operand", "projection"],
)
def test_other_programs_have_no_scores(function: Callable[..., Any], shapes: dict[str, str]) -> None:
    assert Definition(function, tuple(shapes), shapes=shapes).op().scores is None
