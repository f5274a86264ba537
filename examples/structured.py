"""Operands with structure: sequences of several lengths in one batch, and a backward pass alone.

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
