"""Defines the shipped operations: `get(name)` finds an op, `names()` lists all names, `register` adds an op."""

from verify.ops.geglu import GEGLU, GEGLU_SPLIT
from verify.ops.gelu import GELU
from verify.ops.geometry import Params
from verify.ops.layer_norm import LAYER_NORM, LAYER_NORM_RESIDUAL, LAYER_NORM_RESIDUAL_BIAS
from verify.ops.linear import LINEAR
from verify.ops.op import Fast, Op, Operand, Point, Problem, Regime
from verify.ops.registry import get, names, register
from verify.ops.rms_norm import RMS_NORM, RMS_NORM_RESIDUAL
from verify.ops.silu import SILU
from verify.ops.softmax import SOFTMAX
from verify.ops.swiglu import SWIGLU, SWIGLU_SPLIT

for _op in (
    GELU,
    GEGLU,
    GEGLU_SPLIT,
    SILU,
    SWIGLU,
    SWIGLU_SPLIT,
    LINEAR,
    LAYER_NORM,
    LAYER_NORM_RESIDUAL,
    LAYER_NORM_RESIDUAL_BIAS,
    RMS_NORM,
    RMS_NORM_RESIDUAL,
    SOFTMAX,
):
    register(_op)

__all__ = [
    "Fast",
    "Op",
    "Operand",
    "Params",
    "Point",
    "Problem",
    "Regime",
    "get",
    "names",
    "register",
]
