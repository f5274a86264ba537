"""Records the operators that a PyTorch function and its gradient call, as a list of nodes, by running it.

    recorder = Recorder(table())
    x = recorder.operand((2, 3), torch.float64)
    with recorder:
        y = (x.exp() + 1)[:, 0]
    recorder.node(y)

The function runs on tensors without numbers (`Traced`): they have a shape, the dtype of the case and the node that
makes them. So PyTorch itself answers every question about dtypes. The nodes compute in float64, which means the
real numbers. A write in place makes a new node for the memory (`Memory`). Other tensors in the same memory then read it
again. So a node has no effect but its result.
"""

from __future__ import annotations

import hashlib
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch

from verify.errors import UsageError
from verify.ops.autograd import DispatchMode
from verify.ops.graph import inference
from verify.ops.graph.rounded import GRIDS

_aten = torch.ops.aten
_OURS = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, f"{__file__}/../.."))
_LIFTS = (_aten.lift_fresh.default, _aten.lift.default, _aten.lift_fresh_copy.default)


@dataclass(eq=False, slots=True)
class Node:
    """One call of an operator, an operand or a constant."""

    target: Any  # an operator; operator.getitem; "operand"; "constant", whose argument is its tensor
    args: Any
    kwargs: dict[str, Any]
    value: Any  # the result, as tensors on the meta device
    place: str  # the source line of the call
    at: int  # its index among the nodes
    fixed: bool  # True: it depends on constants alone
    inputs: list[Node]  # the nodes in its arguments


@dataclass(eq=False, slots=True)
class Memory:
    """The present contents of one storage: a node whose result fills it."""

    node: Node
    layout: tuple[tuple[int, ...], tuple[int, ...]]  # sizes and strides of the node's result in the storage
    numel: int
    version: int = 0  # number of writes


class Traced(Tensor):
    """A tensor that the traced function works with. It has a shape and the dtype of the case, but no numbers."""

    meta: Tensor  # the same tensor on the meta device, in float64 if it is floating-point
    kind: torch.dtype  # the dtype of the case
    node: Node  # the node of its contents when it was last read
    memory: Memory
    version: int  # the memory's version at that time
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Raises UsageError. PyTorch calls this without a recorder: the function kept the tensor after its call."""
        raise UsageError(
            f"like= keeps no tensor from one call to the next; {func} received a tensor of an earlier call",
            hint="compute the tensor anew in each call, or pass it as an operand",
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Traced({tuple(self.shape)}, {self.dtype})"


class Recorder(DispatchMode):
    """Records the operators that are called while it is entered.

    Args:
        table: Maps an operator to a formula of smaller operators, which are recorded in its place.
        kinds: The floating-point dtypes of the operands. A float64 tensor that the function holds itself has the first.
            A result in a dtype that is narrower than each of them is rounded to it.
    """

    def __init__(
        self, table: Mapping[Any, Callable[..., Any]], kinds: Sequence[torch.dtype] = (torch.float64,)
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table, self.kinds = table, kinds
        self.nodes: list[Node] = []
        self.whole = True  # False inside the formula of an operator of `table`
        self.given: tuple[Any, ...] = ()  # the arguments of that operator
        self.asked = False  # True once the function has called `verify.rounds`
        self.unrounded: dict[Node, Node] = {}  # a result that is rounded to a narrow dtype -> the same before that
        # results of the operators that the function itself calls: tensors in memory, and their dtypes in the case
        self.returned: list[tuple[Node, torch.dtype]] = []
        # nodes of operators that keep numbers in 16 bits, that dtype, and the functions of the steps that do; (): all
        self.narrow: list[tuple[Node, torch.dtype, tuple[str, ...]]] = []
        self.memories: dict[int, Memory] = {}  # by the address of the storage
        self.lifted: dict[int, tuple[Tensor, Traced]] = {}  # id(constant) -> (constant, its traced tensor)
        self.wholes: dict[Any, Tensor] = {}  # (storage, dtype) of a constant -> its whole storage on the meta device
        self.values: dict[Node, Tensor] = {}  # numbers of fixed nodes

    def operand(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Returns a traced tensor to pass to the function as an operand."""
        with no_dispatch():
            meta = torch.empty(tuple(shape), dtype=_widened(dtype), device="meta")
        return self._wrapped(meta, self._new_node("operand", (), {}, meta), dtype)

    def node(self, tensor: Tensor) -> Node:
        """Returns the node of a tensor's present contents. Records a read if its memory was written to."""
        traced = self._traced(tensor)
        memory = traced.memory
        if traced.version != memory.version:
            traced.node, traced.version = self._read(traced.meta, memory), memory.version
        return traced.node

    def stored(self) -> list[tuple[Node, torch.dtype]]:
        """Returns the results that eager PyTorch keeps in 16 bits, with their dtypes."""
        return [each for each in self.returned if each[1].itemsize == 2 and each[0] not in self.unrounded]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Records an operator. PyTorch calls this for every operator while the recorder is entered."""
        with torch._C.DisableTorchFunction():  # function modes see the operators called, not the parts of these
            call = self._declared if self.whole else self._dispatched
            return call(func, args, kwargs or {})

    def _declared(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Records an operator on the float64 forms of its operands. The results have their dtypes of the case."""
        if func in _LIFTS and not isinstance(args[0], Traced):
            return self._traced(args[0], args[0].dtype)
        if inference.has_no_tensors(func):
            return func(*args, **kwargs)
        if (
            inference.is_composite(func)
            and not func._schema.is_mutable
            and not (self.table.get(func) or inference.decomposition_of(func))
        ):
            with self:
                return func.decompose(*args, **kwargs)
        self.asked = self.asked or func is torch.ops.verify.rounds.default
        args, kwargs = mapped(args, self._traced), mapped(kwargs, self._traced)
        kind = inference.float_dtype_of(func, args, kwargs)
        if "dtype" in inference.arguments_of(func) and not any(isinstance(each, Tensor) for each in args):
            kwargs = (
                kwargs if kwargs.get("dtype") else {**kwargs, "dtype": inference.result_of(func, args, kwargs).dtype}
            )
        written = inference.writing_of(func).to if func._schema.is_mutable else ()
        targets = [args[place] if place < len(args) else kwargs[name] for place, name in written]
        # a constant that the function holds is written to as it is
        forms = {id(t): (t, t) for t in targets if isinstance(t, Traced) and t.kind == t.meta.dtype}
        given, options = (_widened(mapped(value, partial(self._wide, forms))) for value in (args, kwargs))
        before, known = torch.get_default_dtype(), len(self.nodes)
        torch.set_default_dtype(torch.float64)
        try:
            made = self._dispatched(func, given, options)
        finally:
            torch.set_default_dtype(before)
        wide = kind == torch.float32 and torch.float64 in self.kinds  # such an operator computes in its own dtype
        if (steps := () if wide else inference.kept_narrow(func, given)) is not None and (wide or kind.itemsize == 2):
            self.narrow += [(node, kind, steps) for node in self.nodes[known:]]
        memories = {wide.memory: wide for wide, _ in forms.values()}

        def declared(each: Tensor) -> Tensor:
            wide, own = forms.get(id(each), (each, None))
            assert isinstance(wide, Traced)
            if own is None:
                if (source := memories.get(wide.memory)) is None:
                    wide = self.rounded(wide, kind)
                elif (view := wide.node).args and view.args[0] is source.node and source.node in self.unrounded:
                    given = (self.unrounded[source.node], *view.args[1:])
                    self.unrounded[view] = self._new_node(view.target, given, view.kwargs, view.value)
                own = self._wrapped(wide.meta, wide.node, kind if wide.is_floating_point() else wide.dtype)
            elif own.meta is not wide.meta:  # an operator such as t_() has given it another shape
                with no_dispatch():
                    own.data = self._wrapped(wide.meta, self.node(wide), own.kind)
            own.meta, own.memory, own.node, own.version = wide.meta, wide.memory, wide.node, wide.version
            if own.is_floating_point():
                self.returned.append((self.node(own), own.kind))
            return own

        parts = mapped(made, declared)
        return tuple(parts) if isinstance(made, tuple) else parts

    def _wide(self, forms: dict[int, tuple[Traced, Traced]], tensor: Traced) -> Traced:
        """Returns the float64 form of a traced tensor, in the same memory. Adds both to `forms`, by the form's id."""
        if id(tensor) in forms or (tensor.kind == tensor.meta.dtype and not _is_narrow(tensor.kind)):
            wide = tensor
        elif tensor.kind == tensor.meta.dtype:  # a constant that the function holds
            return self._dispatched(_aten._to_copy.default, (tensor,), {"dtype": torch.float64})  # type: ignore[no-any-return]
        else:
            wide = self._wrapped(tensor.meta, self.node(tensor))
            wide.kind = tensor.kind
        forms[id(wide)] = wide, tensor
        return wide

    def as_declared(self, tensor: Tensor, kind: torch.dtype) -> Tensor:
        """Returns a constant that the function has made, with its dtype of the case."""
        with no_dispatch(), torch._C.DisableTorchFunction():
            made = self.rounded(self._traced(tensor), kind)
            return self._wrapped(made.meta, self.node(made), kind)

    def rounded(self, tensor: Traced, kind: torch.dtype) -> Traced:
        """Returns a float64 result, rounded to its dtype of the case if that is narrower than those of the operands."""
        if not (tensor.is_floating_point() and kind.is_floating_point and all(_loses(kind, of) for of in self.kinds)):
            return tensor
        name = str(kind).removeprefix("torch.")
        if name not in GRIDS:
            raise UsageError(
                f"like= rounds to {', '.join(GRIDS)}; received a cast to {kind}{at_line()}",
                hint="write the rounding as a computation, or declare quantise= (docs/low-precision.md)",
            )
        made: Traced = self._called(torch.ops.verify.rounds.default, (tensor, name), {})
        self.unrounded[made.node] = self.node(tensor)
        return made

    def _dispatched(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Records one operator, by its formula in `table`, by PyTorch's decomposition, or as one node."""
        if inference.base_name(func).removesuffix("_") in inference.RANDOM:
            raise UsageError(
                f"like= gives the same result in each call; {func} draws random numbers{at_line()}",
                hint="pass the random numbers as an operand; module.eval() switches dropout off",
            )
        if func in _LIFTS and not isinstance(args[0], Traced):  # made by a formula
            return self._traced(args[0], args[0].dtype)
        if func._schema.is_mutable and inference.writing_of(func).without is not None:
            return self._written(func, args, kwargs)
        count = _reciprocal_of(args[1]) if func is _aten.mul.Tensor and not self.whole else 0
        if count and args[1] not in self.given:
            return self._dispatched(_aten.div.Tensor, (args[0], count), kwargs)
        if formula := self.table.get(func) or inference.decomposition_of(func):
            before, self.whole = self.whole, False
            self.given = tuple(each for each in args if isinstance(each, float)) if before else self.given
            try:
                with self:  # an operator that writes keeps the wrapper of its formula, which does the write
                    made = (formula if func._schema.is_mutable else inference.formula_of(formula, args))(
                        *args, **kwargs
                    )
            finally:
                self.whole = before
            if made is not NotImplemented:
                return made
        if inference.is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if func._schema.is_mutable:
            raise UsageError(
                f"like= cannot be traced: {func} writes to its arguments{at_line()}",
                hint="use an operator that returns its result",
            )
        return self._called(func, args, kwargs)

    # -- calls ------------------------------------------------------------------------------------------------

    def _called(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Records an operator that does not write to its arguments, and returns its traced results."""
        if func is _aten.index.Tensor or (func is _aten.index_put.default and len(args) > 3 and args[3]):
            args = (args[0], self._without_masks(func, args[1]), *args[2:])
        inputs, options = mapped(args, self.node), mapped(kwargs, self.node)
        if inference.is_data_dependent(func):
            return self._evaluated(func, inputs, options)
        value = inference.result_of(func, mapped(args, self._meta), mapped(kwargs, self._meta))
        if isinstance(value, Tensor) and "dtype" in inference.arguments_of(func) and not nodes_in(inputs):
            options["dtype"] = value.dtype  # otherwise the default dtype at evaluation would decide
        node = self._new_node(func, inputs, options, value)
        if isinstance(value, Tensor):
            return self._wrapped(value, node)
        if not isinstance(value, list | tuple):
            return value
        parts = [
            self._wrapped(each, self._new_node(operator.getitem, (node, place), {}, each))
            if isinstance(each, Tensor)
            else each
            for place, each in enumerate(value)
        ]
        return parts if isinstance(value, list) else tuple(parts)

    def _evaluated(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Evaluates an operator whose result, or its shape, depends on the values of tensors.

        Raises UsageError unless all these tensors are constants.
        """
        fixed = all(node.fixed for node in nodes_in((args, kwargs)))
        found = func(*mapped(args, self.value), **mapped(kwargs, self.value)) if fixed else None
        if not fixed or (isinstance(found, Tensor) and found.is_floating_point()):
            raise UsageError(
                f"like= cannot be traced: {func} reads the values of a tensor{at_line()}",
                hint="replace branches on values by torch.where; docs/like.md lists what is refused",
            )
        return mapped(found, self._traced)

    def _without_masks(self, func: Any, indices: Sequence[Any]) -> list[Any]:
        """Returns indices with every mask replaced by its positions. Raises UsageError if a mask is no constant."""
        made: list[Any] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                made.append(index)
            elif self.node(index).fixed:
                made += map(self._traced, self.value(self.node(index)).nonzero(as_tuple=True))
            else:
                raise UsageError(
                    f"like= has shapes that do not depend on values; {func} received a mask{at_line()}",
                    hint="torch.where(mask, x, 0) keeps the shape; or pass the indices as an operand: integers={...}",
                )
        return made

    def value(self, node: Node) -> Tensor:
        """Computes the numbers of a fixed node, and of all nodes that it depends on."""
        needed, pending = {node}, [node]
        while pending:
            one = pending.pop()
            if one not in self.values and not isinstance(one.target, str):
                new = set(one.inputs) - needed
                needed |= new
                pending += new
        for each in sorted(needed - self.values.keys(), key=lambda each: each.at):
            self.values[each] = _evaluated(each, self.values)
        return self.values[node]

    # -- memory -----------------------------------------------------------------------------------------------

    def _written(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Records an operator that writes to its arguments: the computation, then the writes. Returns the arguments."""
        writing = inference.writing_of(func)
        targets = [args[place] if place < len(args) else kwargs[name] for place, name in writing.to]
        if func is _aten.copy_.default:
            values = [args[1]]
        else:
            with self:
                made = writing.without(
                    *args, **{key: value for key, value in kwargs.items() if key not in writing.into}
                )
            values = list(made) if isinstance(made, list | tuple) else [made]
        for target, value in zip(targets, values, strict=True):
            if torch.Tag.inplace_view in func.tags or (writing.into and target.shape != value.shape):
                self._move_to(target, value)
            else:
                self._write(target, value)
        return targets[0] if len(targets) == 1 else tuple(targets)

    def _write(self, tensor: Tensor, value: Tensor) -> None:
        """Records that `value` is written to a tensor, which may be a view of a larger memory."""
        traced = self._traced(tensor)
        meta, memory = traced.meta, traced.memory
        if not meta.numel():
            return
        if inference.overlaps(meta):
            raise UsageError(
                f"like= cannot be traced: it writes to a tensor whose elements share memory{at_line()}",
                hint="call clone() on the tensor first",
            )
        with self:
            value = value if value.dtype == meta.dtype else _aten._to_copy.default(value, dtype=meta.dtype)
            value = value if value.shape == meta.shape else _aten.expand.default(value, list(meta.shape))
        value = self.rounded(self._traced(value), traced.kind) if self.whole else value
        node = self.node(value)
        if meta.numel() == memory.numel:
            memory.node, memory.layout = node, (tuple(meta.shape), meta.stride())
        else:
            base = self._filling_node(memory)
            layout = [list(meta.shape), list(meta.stride()), meta.storage_offset()]
            memory.node = self._new_node(_aten.as_strided_scatter.default, (base, node, *layout), {}, base.value)
        memory.version += 1
        traced.node, traced.version = node, memory.version
        if self.whole and traced.kind.is_floating_point:
            self.returned.append((node, traced.kind))

    def _read(self, meta: Tensor, memory: Memory) -> Node:
        """Returns the node that reads one part of a memory; `meta` gives the part."""
        if memory.layout == (tuple(meta.shape), meta.stride()) and meta.numel() == memory.numel:
            return memory.node
        layout = [list(meta.shape), list(meta.stride()), meta.storage_offset()]
        return self._new_node(_aten.as_strided.default, (self._filling_node(memory), *layout), {}, meta)

    def _filling_node(self, memory: Memory) -> Node:
        """Returns the node that fills a memory, with its elements in memory order.

        Raises UsageError if the tensor leaves gaps in its memory.
        """
        sizes, strides = memory.layout
        if (
            inference.overlaps(shadow := torch.empty_strided(sizes, strides, device="meta"))
            or shadow.numel() != memory.numel
        ):
            raise UsageError(
                f"like= cannot be traced: it writes to a part of a tensor with gaps in its memory{at_line()}",
                hint="call clone() on the tensor first",
            )
        order = inference.in_order(strides, sizes)
        if order != list(range(len(sizes))):
            value = memory.node.value.permute(order)
            memory.node = self._new_node(_aten.permute.default, (memory.node, order), {}, value)
            memory.layout = tuple(value.shape), tuple(strides[dim] for dim in order)
        return memory.node

    def _move_to(self, tensor: Tensor, value: Tensor) -> None:
        """Gives a tensor the shape and the memory of another."""
        other = self._traced(value)
        with no_dispatch():
            tensor.data = self._wrapped(other.meta, self.node(other))
        traced = self._traced(tensor)
        traced.meta, traced.memory, traced.node, traced.version = other.meta, other.memory, other.node, other.version

    def _new_node(self, target: Any, args: Any, kwargs: dict[str, Any], value: Any) -> Node:
        """Appends a node and returns it."""
        inputs = nodes_in((args, kwargs))
        fixed = target == "constant" or (target != "operand" and all(each.fixed for each in inputs))
        place = "" if isinstance(target, str) else at_line()
        self.nodes.append(Node(target, args, kwargs, value, place, len(self.nodes), fixed, inputs))
        return self.nodes[-1]

    def _wrapped(self, meta: Tensor, node: Node, kind: torch.dtype | None = None) -> Traced:
        """Returns a traced tensor for a meta tensor, in the memory of the meta tensor's storage."""
        storage = meta.untyped_storage()
        memory = self.memories.get(storage._cdata)
        if memory is None:
            layout = tuple(meta.shape), meta.stride()
            memory = self.memories[storage._cdata] = Memory(node, layout, storage.nbytes() // meta.itemsize)
        traced: Traced = Tensor._make_wrapper_subclass(
            Traced,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=kind or meta.dtype,
            device=torch.device("cpu"),
        )
        traced.meta, traced.node, traced.memory, traced.version = meta, node, memory, memory.version
        traced.kind = kind or meta.dtype
        torch._C._set_throw_on_mutable_data_ptr(traced)  # otherwise a GPU kernel would get the address 0
        return traced

    def held(self, tensor: Tensor) -> Tensor:
        """Returns the tensor if it is traced, else its traced counterpart. Records nothing."""
        with no_dispatch(), torch._C.DisableTorchFunction():
            return self._traced(tensor)

    def _traced(self, tensor: Tensor, kind: torch.dtype | None = None) -> Traced:
        """Returns the tensor if it is traced. Any other tensor is a constant: returns its traced counterpart.

        A constant has the dtype `kind`. By default that is the first operand's if it is float64, else its own.
        """
        if isinstance(tensor, Traced):
            return tensor
        if id(tensor) not in self.lifted:
            storage = tensor.untyped_storage()
            key = storage._cdata, tensor.dtype
            if key not in self.wholes:
                flat = torch.empty(0, dtype=tensor.dtype).set_(storage)
                self.wholes[key] = flat.to("meta")
                self._wrapped(self.wholes[key], self._constant(flat, self.wholes[key]))
            meta = self.wholes[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            kind = kind or (self.kinds[0] if tensor.dtype == torch.float64 else tensor.dtype)
            traced = self._wrapped(meta, self._constant(tensor.detach(), meta), kind)
            if traced.version:  # the memory was written to through another constant
                traced.version = -1  # so that `node` reads it again
            self.lifted[id(tensor)] = tensor, traced
        return self.lifted[id(tensor)][1]

    def _meta(self, tensor: Tensor) -> Tensor:
        return self._traced(tensor).meta

    def _constant(self, value: Tensor, meta: Tensor) -> Node:
        return self._new_node("constant", (value,), {}, meta)


def _is_narrow(kind: torch.dtype) -> bool:
    return kind.is_floating_point and kind != torch.float64


def _loses(kind: torch.dtype, of: torch.dtype) -> bool:
    """True if a format does not hold all numbers of another."""
    target, whole = torch.finfo(kind), torch.finfo(of)
    return target.eps > whole.eps or target.max < whole.max


def _widened(value: Any) -> Any:
    """Replaces narrower floating-point formats by float64 in an argument, or in a list or dictionary of them."""
    if isinstance(value, list | tuple):
        return [_widened(each) for each in value]
    if isinstance(value, dict):
        return {key: _widened(each) for key, each in value.items()}
    return torch.float64 if isinstance(value, torch.dtype) and _is_narrow(value) else value


_HELD, _NESTED = (Tensor, Node), (list, tuple)  # a union would be made anew in each of many calls
_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))  # most arguments


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Applies `change` to each tensor and node in nested lists, tuples and dictionaries."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, _HELD):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(each, change) for key, each in value.items()}
    return [mapped(each, change) for each in value] if isinstance(value, _NESTED) else value


def nodes_in(value: Any) -> list[Node]:
    """Returns the nodes in nested lists, tuples and dictionaries."""
    if isinstance(value, Node):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [node for each in value for node in nodes_in(each)] if isinstance(value, _NESTED) else []


def _evaluated(node: Node, values: Mapping[Node, Any]) -> Any:
    """Computes the result of a node, in the layout of its meta tensor, from those of the nodes that it depends on."""
    if isinstance(node.target, str):
        return node.args[0]
    args, options = (mapped(value, values.__getitem__) for value in (node.args, dict(node.kwargs)))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        made = node.target(*args, **options)
    finally:
        torch.set_default_dtype(before)
    if isinstance(made, Tensor) and made.stride() != node.value.stride():
        made = torch.empty_strided(made.shape, node.value.stride(), dtype=made.dtype, device=made.device).copy_(made)
    return made


def _reciprocal_of(value: Any) -> int:
    """Returns n if a factor is the float64 number nearest to 1 / n, but not 1 / n itself; else 0.

    PyTorch's formulas multiply by the reciprocal of a count. The function that they define divides by the count: what
    cancels in it, as the gradient of a normalised mean does, must not leave the rounding of 1 / 9.
    """
    count = round(1.0 / value) if isinstance(value, float) and 2.0**-31 < abs(value) < 1.0 else 0
    return count if count & (count - 1) and 1.0 / count == value else 0


def at_line() -> str:
    """Returns the source line of the traced function: the innermost frame outside PyTorch and this package.

    Returns "" if all frames are inside.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is None:
        return ""
    return f' ("{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name})'


def digest_of(nodes: Sequence[Node], ends: Sequence[Node | None]) -> str:
    """Hashes the computation of `ends`: operators, constants, shapes, and which node feeds which.

    Returns 12 hex digits that are the same in every process. Source lines, and nodes that no end needs, do not count.
    """
    needed = {node for node in nodes if node.target == "operand"} | {end for end in ends if end is not None}
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.inputs)
    places: dict[Node, str] = {}
    total = hashlib.sha256()
    for node in sorted(nodes, key=lambda node: node.target != "operand"):
        if node in needed:
            shape = f"{node.value.dtype} {tuple(node.value.shape)}" if isinstance(node.value, Tensor) else ""
            given = _text((node.args, sorted(node.kwargs.items())), places)
            total.update(f"{node.target} {given} {shape}\n".encode())
            places[node] = f"%{len(places)}"
    total.update(_text([end and places[end] for end in ends], places).encode())
    return total.hexdigest()[:12]


def _text(value: Any, places: Mapping[Node, str]) -> str:
    """Writes an argument as text without addresses: a tensor as its dtype, its shape and a digest of its bits."""
    if isinstance(value, Node):
        return places[value]
    if isinstance(value, Tensor):
        bits = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(bits.numpy()).hexdigest()}"  # type: ignore[arg-type]
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(each, places) for each in value)}]"
    return repr(value)
