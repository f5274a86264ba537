"""Layers without constructor and state, as the kernel hub has them: each computes with an existing layer's weights.

A class has `forward` alone, with the arguments of the layer that it replaces, and reads the names that the layers of
transformers use. The hub's library binds such a class to the layers of a model; patch.py does the same.

    LlamaRMSNorm   weight xhat        result: the wider dtype of x and weight
    OlmoRMSNorm    weight xhat        result: x's dtype
    GemmaRMSNorm   (1 + weight) xhat  result: x's dtype
    SwiGLUMLP, GEGLUMLP, GEGLUTanhMLP              down_proj(act(gate_proj(x)) up_proj(x))
    LinearGELU, LinearGELUTanh, LinearSquaredReLU  a linear layer with the activation behind it, in one kernel
    GELU, GELUTanh                                 the activation alone
    Applied                                        x: an activation that the layer before it computes

xhat = x / sqrt(mean(x^2) + eps). A layer with an attribute `contract` passes it to its function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .geglu import geglu_split
from .gelu import gelu
from .linear_act import linear_act
from .modules import contract_of
from .rms_norm import rms_norm
from .swiglu import swiglu_split


def _eps(layer: nn.Module) -> float:
    own: dict[str, Any] = vars(layer)
    return own["variance_epsilon"] if "variance_epsilon" in own else own["eps"]


class _Layer(nn.Module):
    can_torch_compile = True  # else the hub's library does not compile a layer


class LlamaRMSNorm(_Layer):
    """RMS norm of Llama, Mistral and Qwen3."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        weight: Any = self.weight
        if hidden_states.dtype != weight.dtype:
            hidden_states = hidden_states.to(torch.promote_types(hidden_states.dtype, weight.dtype))
        return rms_norm(hidden_states, weight, eps=_eps(self), **contract_of(self))


class OlmoRMSNorm(_Layer):
    """RMS norm of OLMo 2."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        weight: Any = self.weight
        return rms_norm(hidden_states, weight, eps=_eps(self), **contract_of(self, convention="olmo"))


class GemmaRMSNorm(_Layer):
    """RMS norm of Gemma. 1 + weight is rounded to float32, as in the original."""

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = self.weight
        given = contract_of(self, convention="gemma")  # which adds 1 itself
        return rms_norm(x, weight if given else 1.0 + weight.float(), eps=_eps(self), **given)


def _mlp(gated: Callable[..., Tensor], *form: str) -> Any:
    """Returns the forward pass of an MLP with this gate."""

    def forward(self: Any, x: Tensor) -> Any:
        return self.down_proj(gated(self.up_proj(x), self.gate_proj(x), *form, **contract_of(self)))

    return forward


class SwiGLUMLP(_Layer):
    """MLP of Llama, Mistral, Qwen3 and OLMo 2."""

    forward = _mlp(swiglu_split)


class GEGLUMLP(_Layer):
    """MLP with a gate of GELU."""

    forward = _mlp(geglu_split)


class GEGLUTanhMLP(_Layer):
    """MLP of Gemma."""

    forward = _mlp(geglu_split, "tanh")


def _linear(activation: str) -> Any:
    """Returns the forward pass of a linear layer with this activation."""

    def forward(self: Any, input: Tensor) -> Any:
        return linear_act(input, self.weight, self.bias, activation=activation, **contract_of(self))

    return forward


class LinearGELU(_Layer):
    """torch.nn.Linear, then GELU."""

    forward = _linear("gelu")


class LinearGELUTanh(_Layer):
    """torch.nn.Linear, then GELU of the tanh form."""

    forward = _linear("gelu_tanh")


class LinearSquaredReLU(_Layer):
    """torch.nn.Linear, then relu(x)^2."""

    forward = _linear("squared_relu")


class GELU(_Layer):
    """GELU."""

    def forward(self, input: Tensor) -> Tensor:
        return gelu(input, **contract_of(self))


class GELUTanh(_Layer):
    """GELU of the tanh form."""

    def forward(self, input: Tensor) -> Tensor:
        return gelu(input, "tanh", **contract_of(self))


class Applied(_Layer):
    """The place of an activation that a fused linear layer computes."""

    def forward(self, input: Tensor) -> Tensor:
        return input


ALL: tuple[type[nn.Module], ...] = (*_Layer.__subclasses__(),)
