"""Tensors that one process sends to another: a form in JSON, and the elements in order as plain bytes of the host."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from verify.measure.requests import Form

KINDS = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def form_of(name: str, tensor: Tensor) -> Form:
    """Returns the announcement of a tensor."""
    return Form(name, str(tensor.dtype), tuple(tensor.shape))


def view_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of a tensor, without a copy if they lie so."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy() if flat.numel() else b"")  # type: ignore[arg-type]


def bytes_of(tensor: Tensor) -> bytes:
    """Returns a copy of the bytes of a tensor."""
    return view_of(tensor).tobytes()


def bytes_in(form: Form) -> int:
    """Returns the size of the tensor of a form. Raises ValueError if there is no such tensor."""
    if min(form.shape, default=0) < 0 or form.dtype not in KINDS:
        raise ValueError(f"no tensor is {form.dtype} of shape {form.shape}")
    return math.prod(form.shape) * KINDS[form.dtype].itemsize


def tensor_of(form: Form, data: bytes | bytearray) -> Tensor:
    """Returns the tensor of a form, which shares a bytearray. Raises ValueError unless the bytes have its size."""
    if bytes_in(form) != len(data):
        raise ValueError(f"{form.name} has {len(data)} bytes")
    own = data if isinstance(data, bytearray) else bytearray(data)
    flat = torch.frombuffer(own, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(KINDS[form.dtype]).reshape(form.shape)
