"""Defines the shipped operations: `get(name)` finds an op, `names()` lists all names, `register` adds an op."""

from verify.ops.elementwise import GEGLU, GEGLU_SPLIT, GELU, SILU, SWIGLU, SWIGLU_SPLIT
from verify.ops.geometry import Params
from verify.ops.linear import LINEAR
from verify.ops.normalize import NORMS, SOFTMAX
from verify.ops.op import Fast, Op, Operand, Point, Problem, Regime, get, names, register

for _op in (GELU, GEGLU, GEGLU_SPLIT, SILU, SWIGLU, SWIGLU_SPLIT, LINEAR, *NORMS, SOFTMAX):
    register(_op)

__all__ = ["Fast", "Op", "Operand", "Params", "Point", "Problem", "Regime", "get", "names", "register"]
