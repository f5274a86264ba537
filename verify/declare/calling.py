"""Describes how a kernel by `like=` receives its operands, and makes the op of its definition.

Operands arrive one by one, in one order. A kernel may take some of them by keyword alone, or several as one list. It
may not take the operands from which others are derived. `Calling` puts them in their places.

Kernels that write into operands or buffers become functions that return their results (`functional`). An in-place
optimiser has writes={"p": "p_"}: the new content of the operand p is its result p_. A kernel with an `out=` argument
has into=["y"]: the argument y is a buffer, and its new content is the result y.
"""

import functools
import inspect
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from verify.declare import promises
from verify.errors import KernelError, UsageError, closest
from verify.ops.op import Op
from verify.truth.ulp import same_bits

Arguments = Sequence[Tensor | None]
_Given = ParamSpec("_Given")
_Declare = TypeVar("_Declare", bound=Callable[..., Any])
# By module that is imported as a target, then by name: the declarations that were refused.
refused: dict[str, dict[str, UsageError]] = {}
_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass
class Writing:
    """Describes how to call a kernel that writes. It returns the results that are neither in `writes` nor in `into`."""

    function: Callable[..., Any]
    order: tuple[str, ...]  # the arguments that come by position
    writes: Mapping[str, str]  # operand -> result
    into: tuple[str, ...]  # names of arguments that are also results
    outputs: tuple[str, ...]
    hidden: tuple[str, ...] = ()  # operands that it does not take: others are derived from them
    kernel: Any = None  # the declaration, once it is made

    @property
    def operands(self) -> tuple[str, ...]:
        """Returns the names of the arguments that are no buffers, then the hidden operands."""
        return (*(name for name in self.order if name not in self.into), *self.hidden)

    def buffers(self, arguments: Arguments) -> dict[str, Tensor]:
        """Copies the written operands, and makes buffers of the results' shapes, full of NaN (integers: of 99)."""
        given = dict(zip(self.operands, arguments, strict=True))
        found = {name: _copied(value) for name in self.writes if (value := given[name]) is not None}
        if self.into:
            present = {name: value for name, value in given.items() if value is not None}
            device = next(iter(present.values())).device
            for name, (shape, dtype) in self._results(present).items():
                found[name] = torch.full(shape, math.nan if dtype.is_floating_point else 99, dtype=dtype, device=device)
        return found

    def _results(self, present: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Returns the shape of each buffer, and its declared dtype, or else the dtype that the definition returns."""

        def fits(dtype: str) -> bool:
            kinds = self.kernel.captured_dtypes(dtype).items()
            return all(name not in present or present[name].dtype == kind for name, kind in kinds)

        of_case = next((dtype for dtype in self.kernel.dtypes if fits(dtype)), "")
        found = self.kernel.op.meaning.outputs_of(present)
        for name in self.into:
            if name in self.kernel.draws:
                found[name] = found[name][0][:-1], torch.int64
            elif of_case and name not in self.kernel.op.integers:
                found[name] = found[name][0], self.kernel.torch_dtype(of_case, name) or found[name][1]
        return {name: found[name] for name in self.into}

    def call(self, buffers: Mapping[str, Tensor], arguments: Arguments, **keywords: Any) -> tuple[Any, ...]:
        """Calls the kernel on these buffers and returns its results in order."""
        given = {**dict(zip(self.operands, arguments, strict=True)), **buffers}
        by_name = {name: given[name] for name in self.into if name not in self.order}
        with torch.no_grad():
            returned = self.function(*(given[name] for name in self.order), **by_name, **keywords)
        written = {result: buffers[name] for name, result in self.writes.items()}
        written |= {name: buffers[name] for name in self.into}
        rest = [name for name in self.outputs if name not in written]
        items = list(returned) if isinstance(returned, tuple | list) else [returned]
        if rest and len(items) != len(rest):
            raise TypeError(f"it returns {', '.join(rest)} beside what it writes; received {len(items)} value(s)")
        return tuple((written | dict(zip(rest, items, strict=False)))[name] for name in self.outputs)


def functional(
    about: str,
    function: Callable[..., Any],
    writes: Mapping[str, str] | None,
    into: Iterable[str] | None,
    outputs: Iterable[str] | None,
    gradients: Any,
    derive: Mapping[str, Any] | None,
) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Returns a function that writes nowhere, and the names of its results in the order in which like= returns them.

    It also takes the operands that only `derive` names, after all others.
    """
    if gradients not in ("auto", False):
        raise UsageError(f"{about}: a kernel that writes has no gradients", hint="gradients=False, or neither")
    written, buffers = dict(writes or {}), (into,) if isinstance(into, str) else tuple(into or ())
    signature = inspect.signature(function)
    parameters = signature.parameters.items()
    order = tuple(name for name, each in parameters if each.default is each.empty and each.kind in _PLAIN)
    results = tuple(outputs) if outputs is not None else (*written.values(), *buffers)
    for what, names, allowed in (
        ("writes names operands of the kernel", written, tuple(name for name in order if name not in buffers)),
        ("into names arguments of the kernel", buffers, tuple(signature.parameters)),
        ("outputs names what is written", (*written.values(), *buffers), results),
    ):
        for name in names:
            if name not in allowed:
                raise UsageError(
                    f"{about}: {what}, {', '.join(allowed)}; received {name!r}",
                    hint='writes={"p": "p_"}: like= returns the new p under the name p_; into=["y"] for an argument y',
                )
    hidden = sources_of_derived(derive, signature.parameters)
    writing = Writing(function, order, written, buffers, results, hidden)

    @functools.wraps(function)
    def call(*arguments: Tensor | None, **keywords: Any) -> Any:
        found = writing.call(writing.buffers(arguments), arguments, **keywords)
        return found[0] if len(found) == 1 else found

    call.writing = writing  # type: ignore[attr-defined]
    own = [each for name, each in parameters if name not in buffers]
    count = sum(each.kind in _PLAIN and each.default is each.empty for each in own)
    own[count:count] = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in hidden]
    call.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return call, results


def sources_of_derived(derive: Mapping[str, Any] | None, taken: Collection[str]) -> tuple[str, ...]:
    """Returns the names that the functions of `derive` take and the kernel does not."""
    found = [name for each in (derive or {}).values() if callable(each) for name in inspect.signature(each).parameters]
    return tuple(dict.fromkeys(name for name in found if name not in taken))


def _copied(value: Tensor) -> Tensor:
    """Copies a tensor into memory of its own, with the same strides unless elements share memory."""
    if any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)):
        return value.detach().clone(memory_format=torch.contiguous_format)
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value.detach())


Raw = Mapping[str, Callable[[Any], Any]]  # by operand: what the kernel receives, from what cases hold


@dataclass(frozen=True)
class Calling:
    """Holds the places of operands among the arguments of a function. `lists` has the operands of each list."""

    function: Callable[..., Any]
    operands: tuple[str, ...]  # all operands, in their order
    taken: tuple[str, ...]  # the arguments of the function that hold operands
    by_keyword: tuple[str, ...]
    lists: Mapping[str, tuple[str, ...]]
    raw: Raw = field(default_factory=dict)

    def received(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the operands as the function receives them, some of them in bytes."""
        return {name: self.raw[name](value) if name in self.raw else value for name, value in given.items()}

    def placed(self, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments by position and by keyword. `given` has the value of each operand."""
        held = {name: [given[each] for each in names] for name, names in self.lists.items()}
        values = {name: held[name] if name in held else given[name] for name in self.taken}
        return [v for n, v in values.items() if n not in self.by_keyword], {n: values[n] for n in self.by_keyword}

    def words(self, given: Mapping[str, str]) -> list[str]:
        """Returns the arguments as Python source."""
        arguments, keywords = self.placed(given)
        text = [f"[{', '.join(each)}]" if isinstance(each, list) else each for each in (*arguments, *keywords.values())]
        names = ["" for _ in arguments] + [f"{name}=" for name in keywords]
        return [name + each for name, each in zip(names, text, strict=True)]

    def adapted(self) -> Callable[..., Any]:
        """Returns a function that takes all operands by position."""

        @functools.wraps(self.function)
        def call(*operands: Any, **keywords: Any) -> Any:
            given = self.received(dict(zip(self.operands, operands, strict=True)))
            # cases hold these in another form, and do not see any write into them
            watched = () if torch.compiler.is_compiling() else self.raw
            before = {name: given[name].clone() for name in watched}
            arguments, others = self.placed(given)
            returned = self.function(*arguments, **others, **keywords)
            for name, value in before.items():
                if not same_bits([value], [given[name]]):
                    raise KernelError(f"{self.function.__name__} must not change its inputs; {name} differs")
            return returned

        kept = [each for each in _parameters(self.function) if each.name not in self.taken]
        first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in self.operands]
        call.__signature__ = inspect.Signature([*first, *kept])  # type: ignore[attr-defined]
        call.calling = self  # type: ignore[attr-defined]
        return call


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


@dataclass(frozen=True)
class Declared:
    """Holds a kernel by `like=` as functions of operands. It does not take the `hidden` ones."""

    function: Callable[..., Any]
    like: Callable[..., Any]
    shapes: Mapping[str, str] | None
    hidden: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()  # the operands that may be None


def by_operand(
    about: str,
    function: Callable[..., Any],
    like: Callable[..., Any],
    shapes: Mapping[str, Any] | None,
    derive: Mapping[str, Any] | None,
    raw: Raw | None = None,
) -> Declared:
    """Returns a kernel and its definition as functions of operands by position.

    They stay unchanged if there is no list, no operand by keyword alone, and no hidden operand. `raw` says how the
    kernel receives single operands.
    """
    lists = {name: each for name, each in (shapes or {}).items() if not isinstance(each, str)}
    own = [each for each in _parameters(function) if each.default is each.empty or each.name in (shapes or ())]
    taken = [each.name for each in own if each.kind in (*_PLAIN, inspect.Parameter.KEYWORD_ONLY)]
    taken = taken or list(shapes or ())  # for a function with variable arguments
    by_keyword = tuple(each.name for each in own if each.kind is each.KEYWORD_ONLY or each.default is not each.empty)
    members: dict[str, tuple[str, ...]] = {}
    for name, each in lists.items():
        if name not in taken or not isinstance(each, list | tuple) or not all(isinstance(one, str) for one in each):
            raise UsageError(
                f"{about}: shapes= has the shape of an operand, or a list of shapes for an argument that is a list of "
                f"tensors; received {name}={each!r}",
                hint="shapes={'x': 'n d', 'weights': ['d e', 'e f']}",
            )
        members[name] = tuple(f"{name}_{place}" for place in range(len(each)))
    operands = [one for name in taken for one in members.get(name, (name,))]
    writing = getattr(function, "writing", None)
    hidden = sources_of_derived(derive, (*operands, *lists)) if writing is None else writing.hidden
    if not (members or by_keyword) and (writing is not None or not hidden):
        return Declared(function, like, shapes, hidden)
    if writing is not None:
        text = f"{about}: a kernel that writes takes each operand by its place"
        raise UsageError(text, hint="a function that calls the kernel, with the operands as its arguments")
    calling = Calling(function, (*operands, *hidden), tuple(taken), by_keyword, members, raw or {})
    flat = {
        one: text
        for name, each in (shapes or {}).items()
        for one, text in ([(name, each)] if isinstance(each, str) else zip(members[name], each, strict=True))
    }
    # an operand may be None if it is None by default in the kernel and in the definition
    without = {each.name for each in _parameters(like) if each.default is None}
    optional = () if derive else tuple(each.name for each in own if each.default is None and each.name in without)
    return Declared(calling.adapted(), _of_flat(like, members), flat if shapes is not None else None, hidden, optional)


def _of_flat(like: Callable[..., Any], members: Mapping[str, tuple[str, ...]]) -> Callable[..., Any]:
    """Returns a definition that takes the tensors of each list as separate operands, by name."""
    names = [each.name for each in _parameters(like) if each.default is each.empty]
    inside = {name: members[name] for name in names if name in members}
    if not inside:
        return like
    operands = tuple(one for name in names for one in inside.get(name, (name,)))
    calling = Calling(like, operands, tuple(names), tuple(names), inside)

    @functools.wraps(like)
    def call(**given: Any) -> Any:
        arguments, keywords = calling.placed(given)
        return like(*arguments, **keywords)

    kind = inspect.Parameter.KEYWORD_ONLY
    call.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in operands])  # type: ignore[attr-defined]
    return call


def op_of(
    label: str,
    declared: Declared,
    operands: Iterable[str] | None,
    outputs: Iterable[str] | None,
    said: Mapping[str, Any],
    draws: Any = None,
) -> Op:
    """Returns the op of a PyTorch function. Its operands have the names of the kernel's arguments."""
    from verify.ops.graph.drawn import drawn
    from verify.ops.graph.like import Definition

    about = f"kernel {label!r}"
    names = tuple(operands or ())
    if not names:
        own = _parameters(declared.function)
        names = tuple(each.name for each in own if each.kind in _PLAIN and each.default is each.empty)
        names = names or tuple(declared.shapes or ())
        if not names:
            text = f"{about}: its operands are the arguments of the function, which has none with a name"
            raise UsageError(text, hint='operands=["x"] names them in their order')
    labels = None if outputs is None else promises.strings(about, "outputs", outputs)
    try:
        made = Definition(
            declared.like,
            names,
            outputs=labels,
            name=label,
            shapes=declared.shapes,
            hidden=declared.hidden,
            optional=declared.optional,
            **said,
        ).op()
    except UsageError as error:
        text = error.message if error.message.startswith(about) else f"{about}: {error.message}"
        raise UsageError(text, hint=error.hint) from error
    return made if draws is None else drawn(about, made, promises.draws(about, draws, made))


def accepted(function: Callable[..., Any], op: Op) -> frozenset[str]:
    """Returns the parameters of an op that a function takes by keyword."""
    if isinstance(getattr(function, "__self__", None), type):
        return frozenset()  # Function.apply: its signature has **kwargs, its forward has none
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        names |= set(op.params)
    return frozenset(names & set(op.params))


def recorded(make: Callable[_Given, _Declare]) -> Callable[_Given, _Declare]:
    """Puts a refused declaration of a target into `refused`, so that the other kernels of its file remain."""
    known_options = inspect.signature(make).parameters

    def demand(options: Mapping[str, object]) -> None:
        if unknown := next((name for name in options if name not in known_options), None):
            text = f"verify.kernel has no option {unknown!r}{closest(unknown, known_options)}"
            raise UsageError(text, hint="python -c 'import verify; help(verify.kernel)' lists the options")

    @functools.wraps(make)
    def kernel(*received: _Given.args, **options: _Given.kwargs) -> _Declare:
        found = refused.get(sys._getframe(1).f_globals.get("__name__", ""))
        if found is None:
            demand(options)
            return make(*received, **options)

        def declare(function: Any) -> Any:
            try:
                demand(options)
                return make(*received, **options)(function)
            except UsageError as error:
                found[str(options.get("name") or getattr(function, "__name__", "kernel"))] = error
                return function

        return declare(received[0]) if received and callable(received[0]) else cast(_Declare, declare)

    return kernel
