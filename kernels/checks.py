"""Rules for arguments that several families share, and the messages of their errors."""

from __future__ import annotations

from typing import Literal

import torch

Contract = Literal["once", "model"]
MODEL = "model "  # the prefix of a form or activation that an operator computes by contract="model"
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check_contract(op: str, contract: str) -> None:
    """Raises ValueError if `contract` is neither "once" nor "model"."""
    if contract not in ("once", "model"):
        raise ValueError(
            f'{op}: contract must be "once", one rounding at the end, or "model", the roundings of the layer that it '
            f"replaces; got {contract!r}"
        )


def under(contract: str, op: str, form: str) -> str:
    """Returns the argument of an operator for `form` under a contract. Raises ValueError for others."""
    if contract == "once":
        return form
    check_contract(op, contract)
    return MODEL + form


def rounds_as_model(form: str, dtype: torch.dtype) -> bool:
    """True if a form rounds as eager PyTorch does. float32 and float64 have one contract, "once"."""
    return form.startswith(MODEL) and dtype.itemsize == 2


def check_approximate(op: str, approximate: str) -> None:
    """Raises ValueError if `approximate` is neither "none" nor "tanh"."""
    approximate = approximate.removeprefix(MODEL)
    if approximate not in ("none", "tanh"):
        raise ValueError(f'{op}: approximate must be "none" or "tanh", got {approximate!r}')


def check_dtype(op: str, name: str, t: torch.Tensor) -> None:
    """Raises TypeError if a tensor has a dtype that the kernels do not compute."""
    if t.dtype not in DTYPES:
        raise TypeError(
            f"{op}: {name} must be float64, float32, float16 or bfloat16, got {t.dtype}; "
            f"convert it first, for example {name}.to(torch.float32)"
        )


def check_like(op: str, name: str, t: torch.Tensor, like_name: str, like: torch.Tensor) -> None:
    """Raises ValueError if a tensor differs from `like` in shape, dtype or device."""
    if t.shape != like.shape or t.dtype != like.dtype or t.device != like.device:
        raise ValueError(
            f"{op}: {name} must have {like_name}'s shape, dtype and device "
            f"({tuple(like.shape)}, {like.dtype}, {like.device}), "
            f"got ({tuple(t.shape)}, {t.dtype}, {t.device})"
        )
