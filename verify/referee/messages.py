"""Requests to the process of a solution and their replies; the bytes of their tensors follow them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from verify.measure.requests import Form
from verify.measure.tensors import KINDS
from verify.workers.requests import Request

Tensors = Mapping[str, Tensor]
Template = dict[str, Any]  # a value in JSON, with names in the places of its tensors


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describes how to call a solution.

    The solution is the first of `names` that its file defines. With `init` that is a class; the solution is an instance
    made with these arguments after torch.manual_seed(seed). `arguments` is the template of the call; with
    `named` its last argument has arguments by name. `into` are buffers that the call fills, after the others.
    """

    names: tuple[str, ...]
    arguments: Template
    init: Template | None = None
    seed: int = 0
    into: tuple[Form, ...] = ()
    named: bool = False


class Built(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reports the parameters and buffers of the solution's module.

    `prepared`: other tensors that its constructor made.
    """

    state: tuple[Form, ...] = ()
    prepared: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """Announces the results of a call, with observations of it."""

    number: int
    tensors: tuple[Form, ...] = ()
    changed: tuple[str, ...] = ()  # arguments that the solution wrote into
    late: bool = False  # True: the solution wrote into an earlier answer
    lazy: str = ""  # describes a result that is no plain tensor
    functions: tuple[str, ...] = ()  # of PyTorch, in a watched call
    replaced: tuple[str, ...] = ()  # attributes of torch, verify and others
    modes: tuple[str, ...] = ()  # changed settings of PyTorch's arithmetic
    seconds: float = 0.0  # of one call of a chain, by the clock of its own process
    answered: int = 1  # calls of a chain
    raised: str = ""  # by the next call of the chain


class Lend(Request[Answer], frozen=True, tag="lend"):
    """Asks a process that imported nothing yet for lent tensors, lent back: then large ones can stay on the GPU."""

    number: int
    device: str
    tensors: tuple[Form, ...]


class Build(Request[Built], frozen=True, tag="build"):
    """Asks for the import of the solution in `file` of its folder."""

    file: str
    entry: Entry
    device: str
    tensors: tuple[Form, ...] = ()  # of the arguments of `init`


class Call(Request[Answer], frozen=True, tag="call"):
    """Asks for a call of the solution.

    `state` are names in the module's state; their values come first, then the arguments. `again` reuses the addresses
    of an earlier call of the same form. `watched` also asks for the functions of PyTorch in the call, and for changes
    of the process. If an argument is lent, large results are too, until the next request.
    """

    number: int  # random; the answer repeats it
    tensors: tuple[Form, ...]
    state: tuple[str, ...] = ()
    again: bool = False
    watched: bool = False


class Chained(Request[Answer], frozen=True, tag="chained"):
    """Asks for a chain of calls.

    The tensors of the state come first, then the sealed bytes of the tensors that the inputs of every call are made of,
    which have the forms `sealed`. When everything is ready, the process asks for the secret that opens these bytes and
    for the first key, in place of a call of a kernel. It reports the last key as progress, and then answers. The first
    call that raises an error ends the chain.
    """

    number: int
    tensors: tuple[Form, ...]
    state: tuple[str, ...]
    sealed: tuple[Form, ...]
    varied: dict[str, tuple[str, ...]]  # the structures of inputs that differ in each call
    count: int


Asked = Lend | Build | Call | Chained


# -- values that hold tensors --------------------------------------------------------------------------------


def template_of(value: Any, names: Iterator[str]) -> tuple[Template, dict[str, Tensor]]:
    """Returns a value as JSON with the next name in the place of each tensor, and these tensors by name.

    Raises TypeError unless it is a tensor, number, text, None, dtype, or a list, tuple or dict of these.
    """
    found: dict[str, Tensor] = {}

    def written(item: Any) -> Template:
        if isinstance(item, Tensor):
            name = next(names)
            found[name] = item.detach()
            return {"tensor": name}
        if isinstance(item, torch.dtype):
            return {"dtype": str(item)}
        if item is None or isinstance(item, bool | int | float | str):
            return {"value": item}
        if isinstance(item, Mapping):
            return {"keys": [str(key) for key in item], "items": [written(each) for each in item.values()]}
        if isinstance(item, list | tuple):
            return {"list" if isinstance(item, list) else "tuple": [written(each) for each in item]}
        raise TypeError(f"{type(item).__name__} is no tensor, number or text")

    return written(value), found


def value_of(template: Template, tensors: Mapping[str, Any]) -> Any:
    """Returns the value of a template with these tensors."""
    if "tensor" in template:
        return tensors[template["tensor"]]
    if "dtype" in template:
        return KINDS[template["dtype"]]
    if "value" in template:
        return template["value"]
    if "keys" in template:
        held = [value_of(each, tensors) for each in template["items"]]
        return dict(zip(template["keys"], held, strict=True))
    values = [value_of(each, tensors) for each in template["list" if "list" in template else "tuple"]]
    return values if "list" in template else tuple(values)


def call_by(entry: Entry, function: Callable[..., Any], tensors: Mapping[str, Any], into: Sequence[Tensor] = ()) -> Any:
    """Calls a function as an entry says, with these tensors and buffers."""
    given = value_of(entry.arguments, tensors)
    return function(*given[:-1], *into, **given[-1]) if entry.named else function(*given, *into)


def results_in(value: Any) -> list[Any]:
    """Returns the results in a returned value, nested ones in their order. Anything but a container is one result."""
    if not isinstance(value, Mapping | list | tuple):
        return [value]
    return [each for item in (value.values() if isinstance(value, Mapping) else value) for each in results_in(item)]
