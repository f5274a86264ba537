"""Kernels whose operands have a domain: of each kind the right one, and one with a bug inside its domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import verify

ALL: dict[str, verify.Kernel] = {}


def declared(kind: str, like: Callable[..., Any], domain: Mapping[str, str] | None, **said: Any) -> Any:
    """Declares a function as the kernel of a kind; those called `..._right` a second time without the domain."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        label = function.__name__
        ALL[label] = verify.kernel(like=like, domain=domain, dtypes=["float32"], name=label, **said)(function)
        if label == f"{kind}_right":
            ALL[f"{kind}_open"] = verify.kernel(like=like, dtypes=["float32"], name=f"{kind}_open", **said)(function)
        return function

    return declare


# -- AdamW: the mean of squares is not negative -----------------------------------------------------------


def adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (v.sqrt() + 1e-8)


optimiser = declared("adamw", adamw, {"v": "0 <= v"}, shapes=dict.fromkeys("pgmv", "n"), gradients=False)


@optimiser
def adamw_right(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
    return p.addcdiv(m.lerp(g, 0.1), v.lerp(g * g, 0.001).sqrt() + 1e-8, value=-1e-3)


@optimiser
def adamw_eps_in_root(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
    return p.addcdiv(m.lerp(g, 0.1), (v.lerp(g * g, 0.001) + 1e-8).sqrt(), value=-1e-3)


# -- rotary embedding: cosines and sines ------------------------------------------------------------------


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


circle = {"cos": "-1 <= cos <= 1", "sin": "-1 <= sin <= 1"}
halves = {"shapes": {"x": "s d", "cos": "s h", "sin": "s h"}, "where": "d == 2 * h"}
rotary = declared("rope", rope, circle, gradients=False, **halves)


@rotary
def rope_right(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = torch.view_as_complex(torch.stack(x.chunk(2, -1), -1)) * torch.complex(cos, sin)
    return torch.cat([turned.real, turned.imag], -1)


@rotary
def rope_half_sine(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rope(x, cos, sin.half().float())


# -- gated decay: logarithms of a decay -------------------------------------------------------------------


def decay(x: Tensor, g: Tensor) -> Tensor:
    state, found = torch.zeros_like(x[0]), []
    for step in range(4):
        state = state * g[step].exp() + x[step]
        found.append(state)
    return torch.stack(found)


gated = declared(
    "decay", decay, {"g": "-8 <= g <= 0"}, shapes={"x": "4 n", "g": "4 n"}, gradients=False, max_noise=16.0
)


def chunked(x: Tensor, g: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    total = g.cumsum(0)
    weights = (total[:, None] - total[None]).exp().to(dtype).float()
    return (weights.where(weights.new_ones(4, 4).tril()[..., None] > 0, 0.0) * x).sum(1)


@gated
def decay_right(x: Tensor, g: Tensor) -> Tensor:
    return chunked(x, g)


@gated
def decay_half_weights(x: Tensor, g: Tensor) -> Tensor:
    return chunked(x, g, torch.bfloat16)


# -- divergence: a probability and a logarithm of one -----------------------------------------------------


def divergence(q: Tensor, logp: Tensor) -> Tensor:
    return q * (q.log() - logp)


kl = declared("kl", divergence, {"q": "0 < q <= 1", "logp": "-50 <= logp <= 0"}, gradients=False)


@kl
def kl_right(q: Tensor, logp: Tensor) -> Tensor:
    return q * q.log() - q * logp


@kl
def kl_eps(q: Tensor, logp: Tensor) -> Tensor:
    return q * ((q + 1e-8).log() - logp)


# -- batch norm: a variance -------------------------------------------------------------------------------


def norm(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return (x - mean) / (var + 1e-5).sqrt()


batch = declared("norm", norm, {"var": "0 <= var <= 1e4"}, shapes={"x": "n c", "mean": "c", "var": "c"})


@batch
def norm_right(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return (x - mean) * (var + 1e-5).rsqrt()


@batch
def norm_eps_outside(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return (x - mean) / (var.sqrt() + 1e-5)


# -- all inputs, and an end of the domain -----------------------------------------------------------------


@verify.kernel(like=torch.log, dtypes=["bfloat16"], domain={"x": "0 < x <= 4"}, gradients=False)
def log_inside(x: Tensor) -> Tensor:
    """Right inside of its domain alone: beyond 4 it gives 0."""
    return torch.where(x <= 4, x.log(), 0)


@verify.kernel(
    like=lambda x, w: x / w,
    shapes={"x": "n d", "w": "d"},
    dtypes=["float32"],
    domain={"w": "1 <= w <= 2"},
    gradients=False,
)
def wrong_at_the_end(x: Tensor, w: Tensor) -> Tensor:
    """Wrong where w is exactly 2."""
    return torch.where(w == 2, 0, x / w)


@verify.kernel(like=torch.sqrt, dtypes=["float32", "float64"], domain={"x": "0.01 <= x"})
def root(x: Tensor) -> Tensor:
    """Refuses numbers outside of its domain."""
    if x.numel() and not float(x.detach().min()) >= math.nextafter(0.01, 0):
        raise RuntimeError(f"outside of the domain: {float(x.detach().min())}")
    return x.sqrt()


globals().update(ALL)
