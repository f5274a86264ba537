"""Rules that arguments of several families have to meet, and what is said where they do not."""

from __future__ import annotations

import torch

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check_approximate(op: str, approximate: str) -> None:
    if approximate not in ("none", "tanh"):
        raise ValueError(f'{op}: approximate must be "none" or "tanh", got {approximate!r}')


def check_dtype(op: str, name: str, t: torch.Tensor) -> None:
    if t.dtype not in DTYPES:
        raise TypeError(
            f"{op}: {name} must be float64, float32, float16 or bfloat16, got {t.dtype}; "
            f"convert it first, for example {name}.to(torch.float32)"
        )


def check_like(op: str, name: str, t: torch.Tensor, like_name: str, like: torch.Tensor) -> None:
    if t.shape != like.shape or t.dtype != like.dtype or t.device != like.device:
        raise ValueError(
            f"{op}: {name} must have {like_name}'s shape, dtype and device "
            f"({tuple(like.shape)}, {like.dtype}, {like.device}), "
            f"got ({tuple(t.shape)}, {t.dtype}, {t.device})"
        )
