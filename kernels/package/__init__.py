"""Norms, gates, GELU, fused linear layers and rotary embedding in Triton. Each result is rounded once.

>>> from verify_kernels_triton import patch, rms_norm
>>> y = rms_norm(x, weight, eps=1e-6)
>>> print(patch(model))  # a model of transformers computes with these kernels; unpatch(model) takes it back

`modules` has the kernels as PyTorch modules, `layers` in the form of the kernel hub.
"""

from .kernels import layers, modules
from .kernels.geglu import geglu, geglu_split
from .kernels.gelu import gelu, gelu_backward
from .kernels.layer_norm import layer_norm, layer_norm_residual, layer_norm_residual_bias
from .kernels.linear_act import linear_act, linear_data_grad
from .kernels.linear_geglu import linear_geglu
from .kernels.patch import Patched, from_layer, patch, unpatch
from .kernels.rms_norm import rms_norm, rms_norm_fp8, rms_norm_gated, rms_norm_residual
from .kernels.rope import rope
from .kernels.swiglu import swiglu, swiglu_split

__all__ = [
    "Patched", "from_layer", "geglu", "geglu_split", "gelu", "gelu_backward", "layer_norm", "layer_norm_residual",
    "layer_norm_residual_bias", "layers", "linear_act", "linear_data_grad", "linear_geglu", "modules", "patch",
    "rms_norm", "rms_norm_fp8", "rms_norm_gated", "rms_norm_residual", "rope", "swiglu", "swiglu_split", "unpatch",
]  # fmt: skip
