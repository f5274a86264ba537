"""An optimiser's step that writes into its operands, and a function that fills a buffer of its caller.

    verify run examples/in_place.py

like= says what the new values are and writes nothing. writes= names the operands that hold them afterwards, into= the
buffers.
"""

from __future__ import annotations

import torch

import verify


def adamw(p, g, m, v):
    """The new parameters and the new means of the gradient and of its square."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v


STEP = {
    "shapes": dict.fromkeys("pgmv", "n"),
    "writes": {"p": "p_", "m": "m_", "v": "v_"},
    "domain": {"v": "0 <= v"},
    "dtypes": ["float32"],
}


@verify.kernel(like=adamw, **STEP)
def adamw_in_place(p, g, m, v):
    """A step of AdamW without bias correction and weight decay: p, m and v are updated in place."""
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


@verify.kernel(like=torch.exp, dtypes=["float32"], into=["y"])
def exp_into(x, y):
    """exp, with the result in a buffer that the caller gives."""
    torch.exp(x, out=y)
