"""Rewrites recorded operators to the steps of a program, by one rule for each operator that remains after tracing."""

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from verify.errors import UsageError
from verify.ops.graph.elementwise import LOGIC, Map, holds_integers
from verify.ops.graph.inference import base_name, broadcast_shape
from verify.ops.graph.recorder import Node, mapped
from verify.ops.graph.steps import Leaf, Move, Plain, Step

_aten = torch.ops.aten
_FILL = _aten.full.default, _aten.zeros.default, _aten.ones.default
Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the rule for operators of these names.

    A rule takes the rewriter and the operator's arguments, with steps in place of tensors. It returns the step of the
    result, or a list of steps.
    """

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


class Rewriter:
    """Builds the steps of recorded nodes.

    `known` maps the nodes of the operands to their steps. `stored` are those whose numbers PyTorch keeps in 16 bits. No
    other node shares their steps: x - mean inside of `var` is not the number that its backward stores.
    """

    def __init__(self, known: dict[Node, Step], stored: Collection[Node] = ()) -> None:
        self.known: dict[Node, Any] = known
        self.stored = set(stored)
        self.made: dict[Any, Any] = {}  # steps by kind, inputs and parameters, so that equal steps are one step
        self.node: Node  # the node that is rewritten now

    def steps(self, nodes: Sequence[Node], wanted: Sequence[Node]) -> list[Step]:
        """Returns the steps of the wanted nodes. `nodes` are all nodes, in the order of recording."""
        needed = set(wanted)
        for node in reversed(nodes):
            if node in needed:
                needed.update(node.inputs)
        for node in nodes:
            if node not in needed or node in self.known:
                continue
            self.node = node
            if node.target == "constant":
                self.known[node] = self._constant(node.args[0])
            elif node.target is operator.getitem:
                self.known[node] = self.known[node.args[0]][node.args[1]]
            else:
                self.known[node] = self._once(node)
                for step in steps_in([self.known[node]]):
                    if not isinstance(step, Leaf):
                        step.origin = step.origin or f"{node.target}{node.place}"
        return [self.known[node] for node in wanted]

    def _once(self, node: Node) -> Any:
        """Rewrites a call. For an equal earlier call, returns the steps made then."""
        found = node.value
        kind = (tuple(found.shape), found.dtype) if isinstance(found, Tensor) else ()
        args, kwargs = mapped((node.args, node.kwargs), self.known.__getitem__)  # the steps of its nodes
        try:
            key = node.target, kind, node in self.stored, _key(args), _key(kwargs)
            hash(key)
        except TypeError:
            return self._call(node, args, kwargs)
        if key not in self.made:
            self.made[key] = self._call(node, args, kwargs)
        return self.made[key]

    def _constant(self, value: Tensor) -> Step:
        """Returns the step of a constant; the same step for equal scalars."""
        if value.numel() != 1:
            return constant(value)
        key = "constant", tuple(value.shape), value.is_floating_point(), repr(value.item())
        if key not in self.made:
            self.made[key] = constant(value)
        return self.made[key]  # type: ignore[no-any-return]

    def _call(self, node: Node, args: Any, kwargs: Any) -> Any:
        """Rewrites one call: to a `Plain` step if nothing is rounded, else by the operator's rule."""
        target: Any = node.target
        name = base_name(target)
        found = node.value
        if isinstance(found, Tensor) and found.is_complex():
            raise UsageError(
                f"like= supports real numbers only; {target} returns complex numbers{node.place}",
                hint="keep the real and the imaginary part in two tensors",
            )
        if isinstance(found, Tensor) and self._is_plain(args, kwargs, found):
            return self._plain(target, args, kwargs, found)
        if name == "sort" and self._is_plain(args, kwargs, found[1]) and not found[0].is_floating_point():
            target, kwargs = _aten.sort.stable, {**kwargs, "stable": True}  # a stable sort is the same on every device
            args, kwargs = args[:1], {**dict(zip(("dim", "descending"), args[1:], strict=False)), **kwargs}
            return [self._plain(lambda *a, n=n, **k: target(*a, **k)[n], args, kwargs, found[n]) for n in (0, 1)]
        name = name if name in RULES else name.removesuffix("_copy")
        if name not in RULES:
            raise UsageError(
                f"like= does not support the operator {target}{node.place}",
                hint="write it with other operators, such as a sum of its series (docs/like.md)",
            )
        return self._typed(RULES[name](self, *args, **kwargs), found)

    def _typed(self, made: Any, found: Any) -> Any:
        """Converts computed numbers to the dtype of PyTorch's result: integers wrap around, booleans are 0 or 1."""
        if isinstance(made, list):
            return [self._typed(each, like) for each, like in zip(made, found, strict=True)]
        if not made.real or found.is_floating_point():
            return made
        if found.dtype == torch.bool:
            return self.map("ne", made, 0.0, real=False)
        return self.map("wrap", made, within=range_of(found.dtype))

    def dtype(self, place: int) -> torch.dtype:
        """Returns the dtype of an argument of the current operator, by its position."""
        given: Any = self.node.args[place]
        return given.value.dtype if isinstance(given, Node) else torch.tensor(given).dtype

    def alike(self, *given: Step) -> tuple[Step, ...]:
        """Returns steps of one kind, for a step that joins them: real numbers, unless none is real."""
        return tuple(map(self.real, given)) if any(each.real for each in given) else given

    def _is_plain(self, args: Any, kwargs: Any, found: Tensor) -> bool:
        """True if PyTorch computes the result without rounding: integers from integers, or a result without inputs."""
        steps = steps_in([args, list(kwargs.values())])
        if not all(is_integer(each) for each in steps):
            return False
        return not found.is_floating_point() if steps else True

    def _plain(self, target: Any, args: Any, kwargs: Any, found: Tensor) -> Step:
        """Returns a step that calls PyTorch's operator on the integers of its inputs."""
        steps = steps_in([args, list(kwargs.values())])
        kwargs = {key: value for key, value in kwargs.items() if key not in ("layout", "pin_memory")}

        def compute(given: list[Tensor]) -> Tensor:
            values = iter(given)
            used = filled(args, values)
            options = {key: filled(value, values) for key, value in kwargs.items()}
            if given and "device" in options:
                options["device"] = given[0].device
            if (kind := options.get("dtype")) is not None and kind.is_floating_point:
                options["dtype"] = torch.float64
            if target in _FILL:  # one number, which takes no memory for each element
                used = [[1] * found.ndim, *used[1:]]
            result: Tensor = target(*used, **options)
            return result.expand(found.shape)

        return Plain(tuple(found.shape), (), found.is_floating_point(), of=tuple(steps), compute=compute)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the current operator's result."""
        return tuple(self.node.value.shape)

    def real(self, value: Any) -> Step:
        """Returns a step of real numbers for a Python number, or a step of any kind."""
        if isinstance(value, int) and 2**53 < abs(value) < 2**63:  # more digits than float64 has
            value = self._constant(torch.tensor(value))
        if not isinstance(value, Step):
            return self._constant(torch.tensor(float(value), dtype=torch.float64))
        return value if value.real else self.map("number", value)

    def map(self, function: str, *given: Any, real: bool = True, **options: Any) -> Step:
        """Returns an elementwise step. Scalars become constants. `options` are fields of `Map`."""
        # number of leading operands that are booleans or integers
        whole = 2 if function in LOGIC else 1 if function in ("where", "number", "not") else 0
        steps = tuple(each if place < whole else self.real(each) for place, each in enumerate(given))
        shape = broadcast_shape([each.shape for each in steps])
        step = Map(shape, steps, real, f"{self.node.target}{self.node.place}", function=function, **options)
        kept = step.rounds and self.node in self.stored  # decisions are one step, wherever they are taken
        key = function, real, kept, tuple(map(id, steps)), tuple(sorted(options.items()))
        return self.made.setdefault(key, step)  # type: ignore[no-any-return]


def constant(value: Tensor) -> Step:
    """Returns the step of a constant tensor."""
    held = value.detach()
    if value.is_floating_point() and value.dtype != torch.float32:  # weights of float32 take half the memory
        held = held.to(torch.float64)
    return Plain(tuple(held.shape), (), held.is_floating_point(), compute=lambda given: held)


def _key(value: Any) -> Any:
    """Returns a hashable key of a call's arguments: steps by identity, numbers by type and digits."""
    if isinstance(value, Step):
        return id(value)
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in sorted(value.items()))
    return (type(value), repr(value)) if isinstance(value, int | float) else value


def steps_in(value: Any) -> list[Step]:
    """Returns the steps in nested lists and tuples."""
    if isinstance(value, Step):
        return [value]
    return [step for each in value for step in steps_in(each)] if isinstance(value, list | tuple) else []


def filled(value: Any, values: Iterator[Tensor]) -> Any:
    """Returns nested lists with their steps replaced by the next values."""
    if isinstance(value, Step):
        return next(values)
    return [filled(each, values) for each in value] if isinstance(value, list) else value


def moved(a: Step, change: Callable[[Tensor], Tensor], *, view: bool = True) -> Step:
    """Returns a step that moves the elements of `a` as `change` does; `a` itself if no element moves.

    `view` is true if `change` returns a view.
    """
    before = torch.empty(a.shape, device="meta")
    after = change(before)
    shape = tuple(after.shape)
    if view and shape == a.shape and lies_as(after, before):
        return a
    return Move(shape, (a,), a.real, move=lambda tensors, fixed, fill: change(tensors[0]), view=view)


def lies_as(tensor: Tensor, other: Tensor) -> bool:
    """True if two views of one memory have the same element at each place."""
    strides = [
        tuple(stride for stride, size in zip(each.stride(), each.shape, strict=True) if size != 1)
        for each in (tensor, other)
    ]
    return (
        tensor.shape == other.shape
        and strides[0] == strides[1]
        and tensor.storage_offset() == other.storage_offset()
        and tensor.untyped_storage()._cdata == other.untyped_storage()._cdata
    )


def is_integer(step: Step) -> bool:
    """True if a step holds integers or booleans that do not depend on real numbers of an operand."""
    return not step.real and (isinstance(step, Plain | Leaf) or not step.on_operands)


def through_moves(step: Step) -> Step:
    """Returns the step behind all views: the first one before `step` that is no view."""
    while isinstance(step, Move) and len(step.inputs) == 1 and step.view:
        step = step.inputs[0]
    return step


def viewed(step: Step, base: Step, tensor: Tensor) -> Tensor:
    """Applies to a tensor the views that lead from `base` to `step`."""
    return tensor if step is base else step.move([viewed(step.inputs[0], base, tensor)], [], 0.0)  # type: ignore[attr-defined]


def range_of(dtype: torch.dtype) -> tuple[int, int]:
    """Returns the least and the greatest number of an integer dtype."""
    if dtype == torch.bool:
        return 0, 1
    limits = torch.iinfo(dtype)
    return int(limits.min), int(limits.max)


def name_of(r: Rewriter) -> str:
    """Returns the name of the current operator, without its overload."""
    return base_name(r.node.target)


def condition_of(r: Rewriter, a: Any) -> Step:
    """Returns a step of booleans: true where `a` is not 0."""
    if not isinstance(a, Step):
        return constant(torch.tensor(bool(a)))
    return r.map("ne", a, 0.0, real=False) if a.real or holds_integers(a) else a
