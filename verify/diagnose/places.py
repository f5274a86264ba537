"""Traces a PyTorch function to the places where its numbers may be rounded, and evaluates it with some of them rounded.

    program = trace(layer, (x, w))
    program.stored                                  # what PyTorch rounds: place -> format
    program.outputs(Rounded(program, (x, w), program.stored))

A place is a node of the graph that computes numbers, or that casts them for some of their uses. Other casts leave the
graph; they say in which format PyTorch stores a place. Every node is evaluated in float64 and rounded to float32, as in
a kernel that computes in float32. A place may have another format: a narrower one if the number is stored in it, or
`EXACT` if a product is not rounded before it is added.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from verify.errors import UsageError, said_by

EXACT, WIDE, NEAREST, VECTORS = "exact", "float32", "nearest", "vectors"
FORMATS = {
    name: getattr(torch, name) for name in (WIDE, "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
}  # formats that a place may have, beside EXACT
_NARROW = ("bfloat16", "float16")
EACH = " at each addition"  # follows the format of an accumulator, to which each partial sum is rounded
_TERMS = 1 << 10  # most terms of a sum whose accumulator is searched for: they are added one after the other
Contract = Mapping[str, str]  # the name of a place -> its format; other places have float32

_aten = torch.ops.aten
# operators that PyTorch computes in one kernel, and that consist of several steps
_TAKEN_APART = (
    "silu gelu gelu_backward mish softplus hardswish rms_norm _fused_rms_norm _softmax _log_softmax std addmm addcmul "
    "addcdiv lerp log_sigmoid_forward logit nll_loss_forward mse_loss native_layer_norm_backward"
)
# operators that move, select or compare numbers
_MOVES = set(
    "view reshape _unsafe_view expand permute transpose t unsqueeze squeeze slice select split split_with_sizes "
    "unbind cat stack clone alias detach neg abs relu maximum minimum amax amin max min where gather index embedding "
    "index_select full full_like ones zeros ones_like zeros_like arange scalar_tensor masked_fill clamp clamp_min flip "
    "clamp_max eq ne gt ge lt le logical_not logical_and sort topk argmax new_zeros new_ones lift_fresh_copy sign "
    "constant_pad_nd repeat narrow as_strided tril triu roll round floor ceil trunc isnan isinf copy empty_like "
    "broadcast_in_dim".split()
)
# functions of which libraries give other float32 numbers
_FUNCTIONS = set(
    "exp exp2 expm1 log log1p log2 log10 sigmoid tanh erf erfc sin cos sinh cosh asinh atanh atan lgamma".split()
)
_LAYOUTS = "view reshape _unsafe_view expand permute transpose t unsqueeze squeeze clone alias detach".split()
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rsub": "-", "pow": "**"}


def trace(layer: Callable[..., Any], inputs: Sequence[Tensor], names: Sequence[str] = ()) -> Program:
    """Traces a layer at the dtypes of the inputs, and names them. Raises UsageError if PyTorch cannot trace it."""
    table = get_decompositions([getattr(_aten, name) for name in _TAKEN_APART.split() if hasattr(_aten, name)])
    table |= {_aten.native_layer_norm.default: _layer_norm, _aten.var.correction: _variance}
    # PyTorch stores the square of a third power; a first one rounds nothing
    table |= {_aten.pow.Tensor_Scalar: lambda x, n: x if n == 1 else x * x * x if n == 3 else NotImplemented}
    try:
        with torch.no_grad():
            graph = make_fx(layer, decomposition_table=table, tracing_mode="fake")(*inputs)
    except Exception as error:
        raise UsageError(
            f"a contract is that of a PyTorch function on tensors; this one cannot be traced: {said_by(error)}",
            hint="the layer without control flow on numbers, and inputs= as it takes them",
        ) from error
    for node in graph.graph.find_nodes(op="call_function", target=_aten.detach.default):
        node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    _drop_casts(graph.graph)
    for name, node in zip(names, graph.graph.find_nodes(op="placeholder"), strict=False):
        node._rename(name)
    return Program(graph)


def _drop_casts(graph: fx.Graph) -> None:
    """Removes casts, but for those to a narrower format of numbers with other uses, and casts of results."""
    for node in graph.nodes:
        if _is_place(node):
            node.meta["stored"] = _format(node)
        if not _is_cast(node):
            continue
        source, wider = node.args[0], not _is_place(node)
        if any(user.op == "output" for user in node.users) if wider else not _is_place(source) or len(source.users) > 1:
            continue
        if not wider:
            source.meta["stored"] = _format(node)
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    """Takes a variance apart, in float32."""
    wide = x.float()
    dims = list(range(x.ndim)) if dim is None else dim
    apart = wide - wide.mean(dims, keepdim=True)
    count = math.prod(x.shape[each] for each in dims) - (1 if correction is None else correction)
    return ((apart * apart).sum(dims, keepdim=keepdim) / count).to(x.dtype)


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Takes a layer norm apart, in float32."""
    dims, wide = list(range(-len(shape), 0)), x.float()
    mean = wide.mean(dims, keepdim=True)
    apart = wide - mean
    scale = torch.rsqrt((apart * apart).mean(dims, keepdim=True) + eps)
    y = apart * scale
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype), mean, scale


@dataclass(frozen=True)
class Program:
    """Holds a traced function."""

    graph: fx.GraphModule
    library: str = ""  # that has exp, erf and such: PyTorch's in float32, NEAREST (correctly rounded) or VECTORS
    usual: str = WIDE  # the format of places that a contract does not name; EXACT: all is computed in float64
    lean: float = 0.0  # each sum is moved by this share of the sum of its terms' sizes: their order is free

    @cached_property
    def nodes(self) -> list[fx.Node]:
        """The nodes in order."""
        return list(self.graph.graph.nodes)

    @cached_property
    def operands(self) -> list[fx.Node]:
        """The nodes of the inputs."""
        return [node for node in self.nodes if node.op == "placeholder"]

    @cached_property
    def returned(self) -> list[fx.Node]:
        """The nodes of the outputs."""
        [end] = self.nodes[-1].args
        return [each for each in (end if isinstance(end, list | tuple) else [end]) if isinstance(each, fx.Node)]

    @cached_property
    def places(self) -> list[str]:
        """The names of the places, in order. Of numbers that are returned, sums alone may be rounded before the end."""
        return [n.name for n in self.nodes if _is_place(n) and (n not in self.ends or _is_sum(n))]

    @cached_property
    def ends(self) -> set[fx.Node]:
        """The places whose numbers are returned, and what moves or casts these, if nothing else takes them."""
        found: set[fx.Node] = set()
        for node in self.returned:
            while len(node.users) == 1:
                found.add(node)
                if len(node.all_input_nodes) != 1 or _is_place(node) != _is_cast(node):  # computed, or stored before
                    break
                node = node.all_input_nodes[0]
        return found

    @cached_property
    def stored(self) -> dict[str, str]:
        """Maps a place to the format narrower than float32 that PyTorch stores it in."""
        found = {name: self.by_name[name].meta.get("stored", WIDE) for name in self.places}
        return {name: kind for name, kind in found.items() if kind in FORMATS and kind != WIDE}

    @cached_property
    def differs_by_library(self) -> bool:
        """True if a place is a function whose float32 results differ by library."""
        return any(named(node) in _FUNCTIONS for node in self.nodes)

    @cached_property
    def narrow(self) -> str:
        """The narrow format of the operands; bfloat16 if there is none."""
        kinds = map(_format, self.operands)
        return next((kind for kind in kinds if kind in FORMATS and kind != WIDE), "bfloat16")

    @cached_property
    def contracted(self) -> set[str]:
        """The products that only sums and differences take, which a kernel may leave unrounded."""
        products = [node for node in map(self.by_name.__getitem__, self.places) if named(node) == "mul"]
        return {node.name for node in products if all(named(user) in ("add", "sub") for user in node.users)}

    @cached_property
    def added(self) -> set[str]:
        """The sums over one dimension, which a kernel may round at each addition."""
        return {node.name for node in map(self.by_name.__getitem__, self.places) if _is_sum(node)}

    def formats(self, wide: bool) -> dict[str, tuple[str, ...]]:
        """Maps each place to the formats that it may have; `wide`: a result is float32, which shows contraction."""
        kinds = tuple(dict.fromkeys((self.usual, self.narrow, *_NARROW, "float8_e4m3fn", *self.stored.values())))
        each = tuple(kind + EACH for kind in dict.fromkeys((self.narrow, *_NARROW)))
        return {
            place: kinds[: 1 if self.by_name[place] in self.ends else None]
            + (EXACT,) * (wide and place in self.contracted)
            + each * (place in self.added)
            for place in self.places
        }

    @cached_property
    def by_name(self) -> dict[str, fx.Node]:
        """The nodes by their names."""
        return {node.name: node for node in self.nodes}

    def text(self, contract: Contract, name: str = "contract") -> str:
        """Returns the program as Python, for `like=`, with `verify.rounds` at each place that is narrower."""
        short = {node: node.name.removesuffix("_1") for node in self.operands}
        lines = [f"def {name}({', '.join(short.values())}):"]
        for node in self.nodes:
            if node.op != "call_function":
                continue
            text, kind = _text(node, short.__getitem__), contract.get(node.name, WIDE)
            if not _is_place(node) or (_is_cast(node) and node.name not in contract):
                short[node] = text  # part of the next line
                continue
            short[node] = f"t{len(lines)}"
            if kind.endswith(EACH):
                lines.append(_added_text(node, short, kind.removesuffix(EACH)))
                continue
            rounds = kind not in (WIDE, EXACT)
            lines.append(f"    {short[node]} = " + (f'verify.rounds({text}, "{kind}")' if rounds else text))
        return "\n".join([*lines, f"    return {', '.join(short[node] for node in self.returned)}"])

    def words(self, name: str) -> str:
        """Returns a place as a short expression, such as `x * rsqrt(...)`."""

        def of(node: fx.Node, depth: int) -> str:
            if node.op == "placeholder":
                return str(node.name).removesuffix("_1")
            if depth and (named(node) in _LAYOUTS or _is_cast(node)):
                return of(node.args[0], depth)
            return _text(node, lambda each: of(each, depth - 1), 1).removeprefix("torch.") if depth else "..."

        node = self.by_name[name]
        return of(node, 3) + (" as it is cast" if _is_cast(node) else "")


class Rounded:
    """Holds the values of all nodes on some inputs under one contract. `changed` evaluates again what depends on it.

    The inputs may have one dimension more than those that were traced: a stack of several sets of inputs.
    """

    def __init__(self, program: Program, inputs: Sequence[Tensor], contract: Contract) -> None:
        self.program, self.contract = program, dict(contract)
        self.values: dict[fx.Node, Any] = {}
        self.exact: dict[fx.Node, Any] = {}  # of places: before they are rounded
        self.stacked: set[fx.Node] = set()  # nodes whose values are stacks
        given = dict(zip(program.operands, inputs, strict=True))
        for node in program.nodes:
            if node.op in ("placeholder", "get_attr"):
                value = given[node] if node in given else getattr(program.graph, str(node.target))
                self.values[node] = value.double() if value.is_floating_point() else value
            several = node in given and value.ndim > node.meta["val"].ndim
            if several or not self.stacked.isdisjoint(node.all_input_nodes):
                self.stacked.add(node)
        self._update({})

    def changed(self, flips: Contract) -> Rounded:
        """Returns the values under a contract with other formats at some places."""
        made = copy.copy(self)
        made.contract, made.values, made.exact = {**self.contract, **flips}, dict(self.values), dict(self.exact)
        made._update(flips)
        return made

    def _update(self, flips: Contract) -> None:
        """Evaluates nodes without a value, those whose formats changed, and all that depend on other values."""
        moved: set[fx.Node] = set()
        for node in self.program.nodes:
            before = self.values.get(node)
            if node.op != "call_function":
                continue
            if before is None or not moved.isdisjoint(node.all_input_nodes):
                self._evaluate(node)
            elif node.name in flips:
                self.values[node] = self._stored(node)
            else:
                continue
            now = self.values[node]
            if not (isinstance(now, Tensor) and isinstance(before, Tensor) and torch.equal(now, before)):
                moved.add(node)

    def _evaluate(self, node: fx.Node) -> None:
        name, library = named(node), self.program.library
        if library == VECTORS and name in _OF_VECTORS:
            value = _OF_VECTORS[name](self.values[node.args[0]].float()).double()
        else:
            wide = torch.float32 if library != NEAREST and name in _FUNCTIONS else torch.float64
            value = _computed(node, self.values, self.stacked, wide)
            if self.program.lean and name in ("sum", "mean"):
                sizes = {each: self.values[each].abs() for each in node.all_input_nodes}
                value = value + self.program.lean * _computed(node, sizes, self.stacked, wide)
        if _is_place(node):
            self.exact[node] = value
            value = self._stored(node)
        self.values[node] = value

    def _stored(self, node: fx.Node) -> Any:
        """Returns the numbers of a place in the format that it has in the contract."""
        kind = self.contract.get(node.name, self.program.usual)
        if not kind.endswith(EACH):
            return rounded(self.exact[node], kind)
        [axis], total = _axes(node), torch.tensor(0.0)
        for each in self.values[node.args[0]].unbind(axis):
            total = rounded(total + each, kind.removesuffix(EACH))
        total = rounded(total / _terms(node), WIDE) if named(node) == "mean" else total
        return total.unsqueeze(axis) if node.args[2:3] == (True,) else total

    def outputs(self) -> list[Tensor]:
        """Returns the results in float64, not rounded."""
        return [self.values[node] for node in self.program.returned]


def _erf(x: Tensor) -> Tensor:
    """Returns erf by the polynomial 7.1.26 of Abramowitz and Stegun, which loses the digits of 1 + erf(-4)."""
    size, total = x.abs().double(), torch.tensor(1.061405429)
    t = (1 / (1 + 0.3275911 * size).float()).double()
    for each in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        total = (total.double() * t + each).float()
    return x.sign() * (1 - (t.float() * (-x * x).exp()).double() * total.double()).float()


# what PyTorch and Inductor compute in vectors of a CPU, but for torch.erf and torch.tanh of float32 numbers
_OF_VECTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "erf": _erf,
    "tanh": lambda x: torch.where(x.abs() > 8.664339742, x.sign(), x.tanh()),  # Sleef's is 1 from there on
}


def rounded(value: Any, kind: str) -> Any:
    """Rounds float64 numbers to float32, and then to a narrower format; leaves them for EXACT."""
    if kind == EXACT or not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    wide = value.float()
    return (wide if kind == WIDE else wide.to(FORMATS[kind])).double()


def _computed(node: fx.Node, values: Mapping[fx.Node, Any], stacked: set[fx.Node], wide: torch.dtype) -> Any:
    """Evaluates one node in float32 or float64, for each set of a stack; returns float64 numbers."""
    if _is_cast(node):
        return values[node.args[0]]
    nodes = node.all_input_nodes
    tensors = [values[each] for each in nodes]
    if wide == torch.float32:
        tensors[0] = tensors[0].float()

    def called(*given: Any) -> Any:
        known = dict(zip(nodes, given, strict=True))

        def argument(each: Any) -> Any:
            if isinstance(each, float):  # a kernel has the constants of float32
                return float(torch.tensor(each, dtype=torch.float32))
            return torch.float64 if each in _FLOATS else known.get(each, each)

        args, keywords = fx.node.map_aggregate((node.args, node.kwargs), argument)
        return node.target(*args, **keywords)

    if node in stacked and torch.Tag.pointwise in getattr(node.target, "tags", ()):
        rank = 1 + node.meta["val"].ndim
        tensors = [
            value.reshape(len(value), *[1] * (rank - value.ndim), *value.shape[1:]) if each in stacked else value
            for each, value in zip(nodes, tensors, strict=True)
        ]
    elif node in stacked and node.target is not operator.getitem:
        called = torch.vmap(called, in_dims=tuple(0 if each in stacked else None for each in nodes))
    value = called(*tensors)
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def named(node: Any) -> str:
    """Returns the name of the operator that a node calls, such as "mul"; "" if it calls none."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return ""
    return str(getattr(node.target, "overloadpacket", node.target).__name__)


def _axes(node: fx.Node) -> list[int]:
    """Returns the dimensions that a sum or mean is over, counted from the last one."""
    rank = node.args[0].meta["val"].ndim
    axes = node.args[1] if len(node.args) > 1 else None
    return [axis if axis < 0 else axis - rank for axis in axes] if isinstance(axes, list | tuple) else []


def _is_sum(node: fx.Node) -> bool:
    """True for a sum over one dimension of few terms."""
    return named(node) in ("sum", "mean") and len(_axes(node)) == 1 and _terms(node) <= _TERMS


def _terms(node: fx.Node) -> int:
    return math.prod(node.args[0].meta["val"].shape[axis] for axis in _axes(node))


def _added_text(node: fx.Node, short: Mapping[fx.Node, str], kind: str) -> str:
    """Returns a sum that is rounded at each addition as Python."""
    [axis], name, given = _axes(node), short[node], short[node.args[0]]
    end = f"{name} / {_terms(node)}" if named(node) == "mean" else name
    end = f"({end}).unsqueeze({axis})" if node.args[2:3] == (True,) else end
    lines = [f"{name} = 0.0", f"for each in ({given}).unbind({axis}):"]
    lines += [f'    {name} = verify.rounds({name} + each, "{kind}")', *([f"{name} = {end}"] if end != name else [])]
    return "\n".join(f"    {line}" for line in lines)


def _is_cast(node: fx.Node) -> bool:
    return named(node) in ("_to_copy", "convert_element_type") and _is_float(node)


def _format(node: fx.Node) -> str:
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_place(node: fx.Node) -> bool:
    """True if a node computes numbers, or casts them to a narrower format."""
    if node.op != "call_function" or not _is_float(node) or named(node) in _MOVES or node.target is operator.getitem:
        return False
    return not _is_cast(node) or node.meta["val"].dtype.itemsize < 4


def _text(node: fx.Node, of: Callable[[fx.Node], str], most: int | None = None) -> str:
    """Returns a node as Python, from the texts of its inputs; of a function, with so many arguments."""

    def part(each: Any) -> str:
        if isinstance(each, list | tuple):
            return f"[{', '.join(map(part, each))}]"
        return of(each) if isinstance(each, fx.Node) else f"{each!r}"

    name, args = named(node), list(map(part, node.args))
    if node.target is operator.getitem:
        return f"{args[0]}[{args[1]}]"
    if _is_cast(node):
        return args[0]
    if name in _SIGNS and len(args) == 2 and not node.kwargs:
        return f" {_SIGNS[name]} ".join(args[::-1] if name == "rsub" else args)
    left_out = "layout", "pin_memory", "device"
    args += [f"{key}={part(value)}" for key, value in node.kwargs.items() if key not in left_out]
    owners = {"torch": torch, "torch.Tensor": Tensor, "torch.ops.aten": _aten}
    owner = next(text for text, each in owners.items() if hasattr(each, name))
    return f"{owner}.{name}({', '.join(args[:most])})"
