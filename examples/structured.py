"""Operands with structure: sequences of several lengths, a backward pass alone, tokens that go to experts.

    verify run examples/structured.py

integers= says which numbers an operand holds together. derive= computes operands from others: the offsets of sequences
from their lengths, and the tensors that a forward pass saves.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.nn import functional

import verify

# -- attention over sequences that lie one behind the other ------------------------------------------------


def attention_of_sequences(q, k, v, lengths):
    """Attention of t tokens, each to those of its own sequence."""
    token = torch.arange(q.shape[0], device=q.device)
    sequence = (token[:, None] >= lengths.cumsum(0)).sum(1)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(sequence[:, None] != sequence, -torch.inf).softmax(-1) @ v


VARLEN = {
    "like": attention_of_sequences,
    "shapes": {"q": "t d", "k": "t d", "v": "t d", "lengths": "b", "offsets": "b+1"},
    "integers": {"lengths": "1 <= lengths <= t, sum t"},
    "derive": {"offsets": lambda lengths: functional.pad(lengths.cumsum(0), (1, 0))},
    "dtypes": ["float32"],
}


@verify.kernel(**VARLEN)
def varlen_attention(q, k, v, offsets):
    """One call for each sequence. The kernel receives offsets, and no lengths."""
    parts = [tuple(x[None, a:b] for x in (q, k, v)) for a, b in pairwise(offsets.tolist())]
    return torch.cat([functional.scaled_dot_product_attention(*part)[0] for part in parts])


# -- the backward pass of attention, with what the forward pass saves --------------------------------------


def scores(q, k):
    """The scaled scores."""
    return q @ k.mT / q.shape[-1] ** 0.5


def gradients(q, k, v, o, lse, do):
    """The gradients of q, k and v by the formula that kernels use."""
    p = (scores(q, k) - lse[:, None]).exp()
    ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    return ds @ k, ds.mT @ q, p.mT @ do


BACKWARD = {
    "like": gradients,
    "shapes": {"q": "s d", "k": "t d", "v": "t d", "o": "s d", "lse": "s", "do": "s d"},
    "derive": {"o": lambda q, k, v: scores(q, k).softmax(-1) @ v, "lse": lambda q, k: scores(q, k).logsumexp(-1)},
    "outputs": ["dq", "dk", "dv"],
    "dtypes": ["bfloat16"],
    "operand_dtypes": {"lse": "float32"},
    "output_dtypes": {"dq": "bfloat16", "dk": "bfloat16", "dv": "bfloat16"},
    "largest": 8.0,
    "gradients": False,
}


@verify.kernel(**BACKWARD)
def attention_backward(q, k, v, o, lse, do):
    """The backward pass in float32, with results in bfloat16."""
    found = gradients(*(x.float() for x in (q, k, v, o, lse, do)))
    return tuple(x.bfloat16() for x in found)


# -- probabilities in bfloat16 -----------------------------------------------------------------------------


def rounded_attention(q, k, v):
    """Attention whose probabilities are rounded to bfloat16 before the product with v."""
    return verify.rounds(scores(q, k).softmax(-1), "bfloat16") @ v


ROUNDED = {
    "like": rounded_attention,
    "shapes": {"q": "s d", "k": "t d", "v": "t d"},
    "dtypes": ["float32"],
    "gradients": False,
}


@verify.kernel(**ROUNDED)
def attention_in_two_formats(q, k, v):
    """float32 with one product in bfloat16."""
    return scores(q, k).softmax(-1).bfloat16().float() @ v


# -- tokens that go to experts -----------------------------------------------------------------------------


def gated(s, b):
    """The weights of the two experts with the best biased scores, which themselves have no bias."""
    p = torch.sigmoid(s)
    chosen = p.gather(-1, (p + b).topk(2, -1).indices)
    return chosen / chosen.sum(-1, keepdim=True)


GATED = {
    "like": gated,
    "shapes": {"s": "n e", "b": "e"},
    "where": "e >= 2",
    "domain": {"s": "-16 <= s <= 16", "b": "-1 <= b <= 1"},
    "dtypes": ["float32"],
}


@verify.kernel(**GATED)
def gating(s, b):
    """The same by a sort: experts with equal scores may come in any order."""
    p = torch.sigmoid(s)
    chosen = torch.take_along_dim(p, (p + b).sort(-1, descending=True).indices[:, :2], -1)
    return chosen / chosen.sum(-1, keepdim=True)


def permuted(x, expert):
    """The tokens of expert 0, then those of expert 1, and so on, in their order."""
    return x[expert.argsort(stable=True)]


PERMUTED = {
    "like": permuted,
    "shapes": {"x": "n d", "expert": "n"},
    "integers": {"expert": "0 <= expert < 4"},
    "dtypes": ["bfloat16"],
}


@verify.kernel(**PERMUTED)
def permute_tokens(x, expert):
    """One selection for each expert."""
    return torch.cat([x[expert == each] for each in range(4)])


BACK = {
    "like": lambda x, p: x.clone(),
    "shapes": {"x": "n d", "p": "n", "back": "n"},
    "integers": {"p": "permutation n"},
    "derive": {"back": lambda p: p.argsort()},
    "dtypes": ["bfloat16"],
}


@verify.kernel(**BACK)
def there_and_back(x, p, back):
    """A permutation and its inverse give every token its place."""
    return x[p][back]
