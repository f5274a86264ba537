"""Answers questions about PyTorch's operators: writes, composition of other operators, dependence on values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

_aten = torch.ops.aten
_COMPILER_OFF = _disable_dynamo(lambda: None).__code__  # the code of every function that this decorator wraps
RANDOM = frozenset(
    "bernoulli rand randn rand_like randn_like randint randint_like randperm uniform normal normal_functional "
    "multinomial native_dropout exponential geometric log_normal cauchy random poisson _fused_dropout "
    "rrelu_with_noise".split()
)
# operators inside of which PyTorch keeps numbers in the 16 bits of the operands, as measured on CPUs: functions of the
# steps that it keeps; (): all, with the constants. Of products, scattered sums and rsqrt it keeps each partial result.
_NARROW: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mse_loss", "mse_loss_backward", "logsumexp"), ()),
    **dict.fromkeys(("huber_loss_backward", "binary_cross_entropy_backward", "logit", "glu_backward"), ()),
    **dict.fromkeys(("avg_pool2d_backward", "avg_pool3d_backward", "prod", "rsqrt", "pow"), ()),
    "_log_softmax": ("sum", "log"),
    "_softmax": ("exp",),
}


@cache
def arguments_of(func: Any) -> frozenset[str]:
    """Returns the names of an operator's arguments."""
    return frozenset(each.name for each in func._schema.arguments)


@cache
def base_name(func: Any) -> str:
    """Returns an operator's name without namespace and overload, such as "add" of aten::add.Tensor."""
    return str(func._schema.name.split("::")[1])


@cache
def is_composite(func: Any) -> bool:
    """True if PyTorch implements an operator by other operators, and differentiates it through them."""
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


@cache
def decomposition_of(func: Any) -> Callable[..., Any] | None:
    """Returns PyTorch's formula of a composite operator that returns new tensors; None for any other operator."""
    from torch._export.utils import _is_preservable_cia_op
    from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS

    return func.decompose if _is_preservable_cia_op(func) and func not in PRESERVED_ATEN_CIA_OPS else None


@cache
def is_data_dependent(func: Any) -> bool:
    """True if an operator's non-tensor results or its output shapes depend on the values of tensors."""
    tags = func.tags
    known = (_aten.index.Tensor, _aten.repeat_interleave.Tensor)
    return func not in known and (torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags)


@dataclass(frozen=True)
class Writing:
    """The arguments that an operator writes to, and the operator that computes the same without writing."""

    to: tuple[tuple[int, str], ...]  # position and name of each argument that it writes to
    into: frozenset[str]  # names of the out= arguments
    without: Any  # None: PyTorch has no such operator


@cache
def writing_of(func: Any) -> Writing:
    """Returns the writes of an operator, from its schema."""
    arguments = func._schema.arguments
    to = [(place, each.name) for place, each in enumerate(arguments) if each.alias_info and each.alias_info.is_write]
    into = frozenset(each.name for each in arguments if each.is_out)
    taken = [(each.name, str(each.type)) for each in arguments if not each.is_out]
    packet = getattr(getattr(torch.ops, func.namespace), base_name(func).removesuffix("_"), None)
    for other in [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []:
        schema = other._schema
        same = [(each.name, str(each.type)) for each in schema.arguments] == taken
        if same and not schema.is_mutable and [str(each.type) for each in schema.returns] == ["Tensor"] * len(to):
            return Writing(tuple(to), into, other)
    return Writing(tuple(to), into, None)


@cache
def _unwrapped(formula: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Removes the wrappers of a formula; also returns True if one of them converts integers to a common dtype too."""
    whole, made = False, formula
    while hasattr(made, "__wrapped__"):
        whole = whole or getattr(made, "__code__", None) is _COMPILER_OFF
        made = made.__wrapped__
    return made, whole


def formula_of(formula: Callable[..., Any], args: Any) -> Callable[..., Any]:
    """Returns PyTorch's decomposition without its wrappers if all operands are float64, else with them.

    The wrappers convert operands to one dtype. They import PyTorch's compiler and sympy, which takes long.
    """
    bare, whole = _unwrapped(formula)
    kinds = {each.dtype for each in args if isinstance(each, Tensor) and (whole or each.is_floating_point())}
    return bare if kinds <= {torch.float64} else formula


def kept_narrow(func: Any, given: Any) -> tuple[str, ...] | None:
    """Returns the steps that PyTorch keeps in 16 bits inside an operator: () for all of them, None for none."""
    if base_name(func) == "_softmax" and given[1] % max(given[0].ndim, 1) == given[0].ndim - 1:
        return None  # over the last dimension it keeps them in float32
    return _NARROW.get(base_name(func))
