"""The kernels as modules that replace PyTorch's: the same constructors, parameters and state dicts.

    GELU, LayerNorm, RMSNorm    subclasses of torch.nn's classes of the same names
    GEGLU, SwiGLU               gates without parameters, on one packed tensor or on two
    LinearGELU, LinearGEGLU     torch.nn.Linear and its activation in one kernel

>>> block.norm = LayerNorm(4096, device="cuda", dtype=torch.bfloat16)
>>> block.norm.load_state_dict(torch.nn.LayerNorm(4096).state_dict())

The norms accept a residual too. `norm(x, residual)` returns (y, s): s = x + residual, and y is the norm of the
unrounded sum. Results have x's dtype, even if the parameters have another one.

All constructors take `contract`, "once" or "model", and the modules pass it to their functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .checks import Contract
from .geglu import geglu, geglu_split
from .gelu import gelu
from .layer_norm import layer_norm, layer_norm_residual
from .linear_act import linear_act
from .linear_geglu import linear_geglu
from .rms_norm import rms_norm, rms_norm_residual
from .swiglu import swiglu, swiglu_split

__all__ = ["GEGLU", "GELU", "LayerNorm", "LinearGEGLU", "LinearGELU", "RMSNorm", "SwiGLU"]


def contract_of(layer: nn.Module, **more: Any) -> dict[str, Any]:
    """Returns the argument `contract` of a layer's function with `more`, or nothing: without one it rounds once."""
    return {"contract": layer.contract, **more} if "contract" in vars(layer) else {}


def set_contract(layer: nn.Module, contract: Contract) -> None:
    """Gives a layer its contract. Raises ValueError if there is no such contract."""
    if contract not in ("once", "model"):
        raise ValueError(f'{type(layer).__name__}: contract must be "once" or "model", got {contract!r}')
    if contract != "once":
        vars(layer)["contract"] = contract


class _Contracted(nn.Module):
    """Takes `contract` out of a constructor's arguments. The other arguments are the next class's."""

    def __init__(self, *args: Any, contract: Contract = "once", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        set_contract(self, contract)


class GELU(_Contracted, nn.GELU):
    """torch.nn.GELU with this repository's kernel."""

    def forward(self, input: Tensor) -> Tensor:
        return gelu(input, self.approximate, **contract_of(self))


def _normalised(
    module: nn.Module,
    plain: Callable[..., Any],
    summed: Callable[..., Any],
    x: Tensor,
    residual: Tensor | None,
    *vectors: Tensor | None,
    eps: float,
    **more: Any,
) -> Any:
    """Calls `plain`, or `summed` if there is a residual, on x with its last dimensions (normalized_shape) as one.

    `more` are arguments under a contract.
    """
    shape: Any = module.normalized_shape
    given = {"eps": eps, **contract_of(module, **more)}
    if len(shape) == 1 and x.shape[-1:] == shape:
        return plain(x, *vectors, **given) if residual is None else summed(x, residual, *vectors, **given)
    if tuple(x.shape[-len(shape) :]) != shape:
        name = type(module).__name__
        raise ValueError(f"{name}: x's last dimensions must be normalized_shape {shape}; x has shape {tuple(x.shape)}")
    flat = [None if t is None else t.reshape(*t.shape[: t.dim() - len(shape)], math.prod(shape)) for t in (x, residual)]
    vectors = tuple(None if v is None else v.flatten() for v in vectors)
    if residual is None:
        return plain(flat[0], *vectors, **given).view(x.shape)
    return tuple(t.view(x.shape) for t in summed(*flat, *vectors, **given))


class LayerNorm(_Contracted, nn.LayerNorm):
    """torch.nn.LayerNorm with this repository's kernel and an optional residual."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Any:
        functions = layer_norm, layer_norm_residual
        return _normalised(self, *functions, input, residual, self.weight, self.bias, eps=self.eps)


class RMSNorm(_Contracted, nn.RMSNorm):
    """torch.nn.RMSNorm with this repository's kernel and an optional residual.

    eps=None means the epsilon of float32, or of float64 for float64, as in PyTorch, which computes 16 bits in float32.
    """

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        eps = self.eps
        if eps is None:
            eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
        functions = rms_norm, rms_norm_residual
        return _normalised(self, *functions, x, residual, self.weight, eps=eps, convention="olmo")  # torch rounds once


class GEGLU(_Contracted):
    """x1 gelu(x2) of two tensors, or of the halves of one tensor; gate_last=False: gelu(x1) x2 of the halves."""

    def __init__(self, approximate: str = "none", *, gate_last: bool = True, contract: Contract = "once") -> None:
        super().__init__(contract=contract)
        self.approximate, self.gate_last = approximate, gate_last

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        if gate is None:
            return geglu(x, self.approximate, gate_last=self.gate_last, **contract_of(self))
        return geglu_split(x, gate, self.approximate, **contract_of(self))

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}, gate_last={self.gate_last}"


class SwiGLU(_Contracted):
    """x1 silu(x2) of two tensors, or of the halves of one tensor; gate_last=False: silu(x1) x2 of the halves."""

    def __init__(self, *, gate_last: bool = True, contract: Contract = "once") -> None:
        super().__init__(contract=contract)
        self.gate_last = gate_last

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        if gate is None:
            return swiglu(x, gate_last=self.gate_last, **contract_of(self))
        return swiglu_split(x, gate, **contract_of(self))

    def extra_repr(self) -> str:
        return f"gate_last={self.gate_last}"


class _LinearAct(_Contracted, nn.Linear):
    """torch.nn.Linear with an activation of a form of GELU."""

    _parts = 1  # of the linear layer's features, equally long

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        approximate: str = "none",
        contract: Contract = "once",
    ) -> None:
        if out_features % self._parts:
            name = type(self).__name__
            raise ValueError(f"{name}: out_features must be even, it holds both halves; got {out_features}")
        super().__init__(in_features, out_features, bias, device, dtype, contract=contract)
        self.approximate = approximate

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, approximate={self.approximate!r}"


class LinearGELU(_LinearAct):
    """torch.nn.Linear followed by GELU, in one kernel."""

    def forward(self, input: Tensor) -> Tensor:
        activation = "gelu" if self.approximate == "none" else "gelu_tanh"
        y: Any = linear_act(input, self.weight, self.bias, activation=activation, **contract_of(self))
        return y


class LinearGEGLU(_LinearAct):
    """torch.nn.Linear followed by GEGLU, in one kernel. out_features counts the linear layer's: twice the result's."""

    _parts = 2

    def forward(self, input: Tensor) -> Tensor:
        return linear_geglu(input, self.weight, self.bias, approximate=self.approximate, **contract_of(self))
