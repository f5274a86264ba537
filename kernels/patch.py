"""Replaces layers of a model by these kernels, in place, and takes them back.

>>> print(patch(model))     # any model whose layers have the forms below, such as those of transformers
>>> unpatch(model)          # the model computes what it computed before, bit for bit

`patch` gives a layer the `forward` of a class of layers.py or modules.py. Layers, parameters, names and hooks are the
same objects as before, so optimisers and checkpoints go on. It recognises a layer by what its class computes: it calls
the class's own `forward` on a few numbers, with small stand-ins for the weights and the inner layers, and compares.

    norms          torch.nn.LayerNorm, torch.nn.RMSNorm, and a class "...Norm" that computes the RMS norm of Llama, OLMo
                   or Gemma bit for bit on these numbers
    gated MLPs     down_proj(act(gate_proj(x)) up_proj(x)), where act is SiLU or a form of GELU
    activations    GELU, and with the torch.nn.Linear before it squared ReLU; the linear layer computes the activation
    attention      a class whose `forward` calls apply_rotary_pos_emb of Llama or OLMo: `rope` takes the place of this
                   function alone, in a copy of `forward` that sees the other names of its module as they are now

>>> norm = from_layer(model.norm)   # a new layer that shares the parameters of an existing one

Compile a model after `patch`.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from . import layers, modules
from .checks import Contract
from .modules import set_contract
from .rope import rope

__all__ = ["Patched", "from_layer", "patch", "unpatch"]


def _xhat(x: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


Layer = type[nn.Module]
_NORMS: dict[Layer, Callable[[Tensor, Tensor, float], Tensor]] = {
    layers.LlamaRMSNorm: lambda x, w, eps: w * _xhat(x, eps).to(x.dtype),
    layers.OlmoRMSNorm: lambda x, w, eps: (w * _xhat(x, eps)).to(x.dtype),
    layers.GemmaRMSNorm: lambda x, w, eps: (_xhat(x, eps) * (1.0 + w.float())).to(x.dtype),
}
_TORCH: dict[Any, Layer] = {nn.LayerNorm.forward: modules.LayerNorm, nn.RMSNorm.forward: modules.RMSNorm}


class _Activation(NamedTuple):
    """An activation: its function, and the layers that compute it as a gate, behind a linear layer, and alone."""

    name: str
    function: Callable[[Tensor], Tensor]
    gate: Layer | None = None
    linear: Layer | None = None
    alone: Layer | None = None


_ACTIVATIONS = (
    _Activation("SiLU", F.silu, layers.SwiGLUMLP),
    _Activation("GELU", F.gelu, layers.GEGLUMLP, layers.LinearGELU, layers.GELU),
    _Activation("tanh GELU", nn.GELU("tanh"), layers.GEGLUTanhMLP, layers.LinearGELUTanh, layers.GELUTanh),
    _Activation("squared ReLU", lambda x: F.relu(x).square(), None, layers.LinearSquaredReLU, None),
)
_BOUND: set[Any] = {vars(layer)["forward"] for layer in (*layers.ALL, *_TORCH.values())}


class _Left(Exception):
    """The reason why a layer is not replaced."""


@dataclass(frozen=True)
class Patched:
    """The report of `patch`.

    Attributes:
        replaced: path of a layer in the model -> class that computes it now
        left: path of a norm, MLP, activation or attention with a rotary embedding that stays -> the reason
        others: classes of the other layers without inner layers; no kernel here computes them
    """

    replaced: dict[str, str]
    left: dict[str, str]
    others: tuple[str, ...]

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {name}" for name, n in Counter(self.replaced.values()).items())
        left = "".join(f"left {path}: {reason}\n" for path, reason in self.left.items())
        return f"replaced {len(self.replaced)} layers: {counts}\n{left}no kernel here: {', '.join(self.others)}"


def _like(kind: Layer, module: nn.Module) -> nn.Module:
    """Returns a module of the class `kind` with the members of `module`; adding members to one leaves the other."""
    made = kind.__new__(kind)
    vars(made).update({n: dict(member) if isinstance(member, dict) else member for n, member in vars(module).items()})
    for name in ("forward", "contract"):  # of a patch
        vars(made).pop(name, None)
    return made


def _tried(module: nn.Module, x: Tensor, inner: dict[str, Any] | None = None, weight: Tensor | None = None) -> Tensor:
    """Returns what the class of `module` computes of x with this weight and these inner layers instead of its own."""
    clone: Any = _like(type(module), module)
    clone.training = False
    if weight is not None:
        clone._parameters["weight"] = weight
    for name, function in (inner or {}).items():
        clone._modules[name] = nn.Module()
        clone._modules[name].forward = function
    try:
        with torch.no_grad():
            return clone(x)
    except Exception as error:
        raise _Left(f"{type(module).__name__} cannot be tried: {type(error).__name__}: {error}") from None


def _numbers(n: int) -> Tensor:
    """Returns rows of n numbers between -3 and 3. The second row is so small that a norm's epsilon decides it."""
    return torch.linspace(-3, 3, 3 * n, device="cpu").view(3, n) * torch.tensor([[1.0], [1e-3], [0.5]], device="cpu")


def _norm(module: nn.Module) -> Layer:
    """Returns the layer for a norm. Raises _Left if there is none."""
    kind, eps = type(module), vars(module).get("variance_epsilon", vars(module).get("eps"))
    if kind.forward in _TORCH:
        return _TORCH[kind.forward]
    if module._modules or [*module._parameters] != ["weight"] or not isinstance(eps, float):
        raise _Left(f"{kind.__name__} is no RMS norm with a weight and variance_epsilon or eps")
    weight = torch.linspace(-1.5, 2, 16, device="cpu")
    tries = [_numbers(16), _numbers(16).bfloat16()]  # 16 bits show where the class rounds, and to which dtype
    found = [_tried(module, x, weight=weight) for x in tries]
    for layer, formula in _NORMS.items():
        wanted = [formula(x, weight, eps) for x in tries]
        if all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, wanted, strict=True)):
            return layer
    raise _Left(f"{kind.__name__} computes no RMS norm of Llama, OLMo or Gemma")


def _plain(module: nn.Module) -> bool:
    """True if nothing has replaced the `forward` of this module's class."""
    return getattr(module.forward, "__func__", None) is type(module).forward


def _is_activation(module: nn.Module | None) -> bool:
    """True if a module without members has the name of an activation; _activation finds its function."""
    bare = module and not (module._modules or module._parameters or module._buffers) and _plain(module)
    return bool(bare and re.search("gelu|silu|swish|activation", type(module).__name__, re.IGNORECASE))


def _activation(module: nn.Module, contract: Contract) -> _Activation:
    """Returns the activation that a module computes. Raises _Left if there is none."""
    x, kind = _numbers(32), type(module).__name__
    for each in _ACTIVATIONS:
        if torch.allclose(_tried(module, x), each.function(x), rtol=1e-5, atol=1e-6):
            if contract == "model" and not torch.equal(_tried(module, x.bfloat16()), each.function(x.bfloat16())):
                raise _Left(f"{kind} has other bits than torch's {each.name}, whose bits contract='model' gives")
            return each
    raise _Left(f"{kind} is none of {', '.join(each.name for each in _ACTIVATIONS)}")


def _gated(module: nn.Module, name: str, activation: _Activation) -> Layer:
    """Returns the layer for an MLP with an activation of this name. Raises _Left if there is none."""
    x = _numbers(8)
    inner = {"gate_proj": lambda t: t - 0.5, "up_proj": lambda t: 1.5 * t + 1, "down_proj": lambda t: 2 - t}
    found = _tried(module, x, inner | {name: torch.square})
    if activation.gate is None or not torch.equal(found, 2 - (x - 0.5).square() * (1.5 * x + 1)):
        raise _Left(f"{type(module).__name__} is no down_proj(act(gate_proj(x)) up_proj(x)) with SiLU or GELU")
    return activation.gate


def _linear_before(parent: nn.Module, act: str) -> str | None:
    """Returns the name of the linear layer of `parent` whose result goes to the activation `act` and nowhere else."""
    inner: dict[str, Any] = {name: lambda t, k=k: t * (0.5 + k) + 0.25 for k, name in enumerate(parent._modules)}
    inner[act], x = torch.square, _numbers(8)
    for name, module in parent._modules.items():
        if type(module) is nn.Linear and _plain(module) and not module._forward_hooks:  # they would see the activation
            calls: list[Tensor] = []
            fused = lambda t, f=inner[name], calls=calls: calls.append(t) or f(t).square()  # noqa: E731
            found = _tried(parent, x, inner | {name: fused, act: lambda t: t})
            if torch.equal(found, _tried(parent, x, inner)) and len(calls) == 1:
                return name
    return None


_ROPE = "apply_rotary_pos_emb"


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns what Llama's function computes of queries or keys; numbers without an angle stay."""
    turned, others = x.tensor_split([cos.shape[-1]], -1)
    first, second = turned.chunk(2, -1)
    y = turned * cos.unsqueeze(1) + torch.cat((-second, first), -1) * sin.unsqueeze(1)
    return torch.cat((y, others), -1)


def _rotary(function: Callable[..., Any], contract: Contract) -> Callable[..., Any]:
    """Returns what replaces a model's function of q, k, cos and sin. Raises _Left if it computes something else."""
    shapes = ((2, 2, 3, 8), (2, 1, 3, 8), (2, 3, 8), (1, 3, 8))
    wide = [torch.arange(1.0, 1 + math.prod(shape), device="cpu").sin().view(shape) for shape in shapes]
    narrow = [t.bfloat16() for t in wide]
    part = [*wide[:2], *(t[..., :4] for t in wide[2:])]
    keeps = True  # OLMo's results have the dtype of q; Llama's have the wider dtype of q and cos
    for operands in (narrow[:2] + wide[2:], wide, narrow, part):
        try:
            with torch.no_grad():
                q, k = function(*operands)
                found = [q.detach(), k.detach()]
        except Exception as error:
            if operands is part:  # then no model of this function has fewer angles than numbers
                continue
            raise _Left(f"{_ROPE} cannot be tried: {type(error).__name__}: {error}") from None
        wanted = [_turned(x, *operands[2:]) for x in operands[:2]]
        keeps = keeps and found[0].dtype == operands[0].dtype
        wanted = [t.to(x.dtype) if keeps else t for x, t in zip(operands, wanted, strict=False)]
        if not all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, wanted, strict=True)):
            raise _Left(f"{_ROPE} is neither Llama's nor OLMo's")

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *others: Any, **options: Any) -> Any:
        if others or options:  # heads in another dimension
            return function(q, k, cos, sin, *others, **options)
        if q.dtype != cos.dtype and not keeps:
            q, k, cos, sin = (t.to(torch.promote_types(q.dtype, cos.dtype)) for t in (q, k, cos, sin))
        return rope(q, k, cos, sin, contract=contract)

    return rotate


@functools.cache
def _with_rope(kind: Any, function: Callable[..., Any], contract: Contract) -> Layer:
    """Returns a class of attention like `kind`, whose `forward` calls `rope` in the place of the model's function."""
    own = kind.forward
    names = own.__globals__ | {_ROPE: _rotary(function, contract)}
    del names["__name__"]  # or Dynamo would look the other names up in the module
    forward = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
    forward.__kwdefaults__ = own.__kwdefaults__
    functools.update_wrapper(forward, own)
    _BOUND.add(forward)
    return type(f"{kind.__name__} with rope", (kind,), {"forward": forward})


def _layers_of(model: nn.Module, contract: Contract) -> dict[str, tuple[nn.Module, Layer | str | None]]:
    """Returns path -> (module, layer) for each norm, gated MLP, activation and attention with a rotary embedding.

    A reason takes the place of a layer that cannot be replaced, and None of one that is computed by its parent.
    """
    places = Counter(id(child) for module in model.modules() for child in module._modules.values())
    found: dict[str, tuple[nn.Module, Layer | str | None]] = {}
    for path, module in model.named_modules():
        inner = {name: f"{path}.{name}".removeprefix(".") for name in module._modules}
        acts = [name for name in inner if _is_activation(module._modules[name])]
        gated = {"gate_proj", "up_proj", "down_proj"} <= inner.keys() and len(acts) == 1
        kind: Any = type(module)
        forward = kind.forward
        try:
            if "Norm" in kind.__name__:
                found[path] = module, _norm(module)
            elif _is_activation(module) and path not in found:
                activation = _activation(module, contract)
                found[path] = module, activation.alone or f"{activation.name} alone has no kernel here"
            elif _ROPE in getattr(inspect.unwrap(forward), "__code__", _rotary.__code__).co_names:
                if forward is not inspect.unwrap(forward):
                    raise _Left(f"{kind.__name__} has a decorated forward")
                found[path] = module, _with_rope(kind, forward.__globals__[_ROPE], contract)
            for name in acts:
                child: Any = module._modules[name]
                activation = _activation(child, contract)
                if gated:
                    found[path] = module, _gated(module, name, activation)
                    found[inner[name]] = child, None
                elif not (activation.linear and places[id(child)] == 1 and _plain(module)):
                    continue
                elif linear := _linear_before(module, name):
                    found[inner[linear]] = module._modules[linear], activation.linear
                    found[inner[name]] = child, layers.Applied
        except _Left as reason:
            if gated or not acts:  # an activation comes again by itself
                found[path] = module, str(reason)
    return found


def patch(model: nn.Module, *, contract: Contract = "once") -> Patched:
    """Lets these kernels compute the layers of a model that they can compute. Returns the replaced layers.

    Args:
        contract: "once" rounds each result once, at the end; "model" rounds where the replaced layer does
    """
    unpatch(model)
    found = _layers_of(model, contract)
    replaced, left = {}, {}
    for path, (module, layer) in found.items():
        if isinstance(layer, str):
            left[path] = layer
        elif layer is not None and not _plain(module):
            left[path] = "something else has replaced its forward"
        elif layer is not None:
            set_contract(module, contract)
            module.forward = MethodType(layer.forward, module)
            replaced[path] = layer.__name__
    known = {id(module) for module, _ in found.values()}
    others = {type(module).__name__ for module in model.modules() if not module._modules and id(module) not in known}
    return Patched(replaced, left, tuple(sorted(others)))


def unpatch(model: nn.Module) -> None:
    """Takes back what `patch` did."""
    for module in model.modules():
        if getattr(vars(module).get("forward"), "__func__", None) in _BOUND:
            del module.forward
            vars(module).pop("contract", None)


def from_layer(layer: nn.Module, *, contract: Contract = "once") -> nn.Module:
    """Returns a new layer with these kernels that shares the parameters and inner layers of a norm, gated MLP or GELU.

    Raises TypeError if no kernel computes the layer. modules.LinearGELU loads the state of a linear layer.
    """
    _, found = _layers_of(layer, contract).get("", (layer, "it is no norm, gated MLP or activation"))
    if found is None or isinstance(found, str):
        raise TypeError(f"from_layer: {type(layer).__name__} cannot be replaced: {found}")
    made = _like(found, layer)
    set_contract(made, contract)
    return made
