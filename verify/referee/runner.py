"""Runs a solution in a separate process: it has the arguments of one call and nothing else of the judge.

A solution that changes this process changes only its own answers. This module also reports observations, such as a
write into the arguments. They are evidence for people; the judge decides by the numbers.
"""

import math
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.overrides import TorchFunctionMode, resolve_name

from verify.errors import KernelError, said_by
from verify.measure.requests import Form
from verify.measure.state import ProcessState
from verify.measure.tensors import KINDS, announced, bytes_in, bytes_of, form_of, lent, tensors_in
from verify.referee import chain
from verify.referee.formats import imported
from verify.referee.messages import Answer, Asked, Build, Built, Call, Chained, Lend, call_by, results_in, value_of
from verify.referee.weights import constructed
from verify.truth.ulp import same_bits
from verify.workers.calls import WithBytes, receive, send, serve
from verify.workers.channel import Channel
from verify.workers.requests import KernelWanted, OnProgress
from verify.workers.sandbox.confine import NEVER_WRITTEN

SMALL_BYTES, SMALL_PIECES = 1 << 10, 8  # pieces that the C library keeps for its next callers as they are
HELD_BYTES = 1 << 26  # arguments of earlier calls that stay in memory, so no address repeats by chance


def run(channel: Channel) -> None:
    """Answers the host until it hangs up."""
    serve(channel, Runner(channel).respond, lambda: True)


class Runner:
    """The solution, and observations of its behaviour."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._held: list[dict[str, Tensor]] = []  # arguments of the last calls
        self._given: list[tuple[Tensor, int]] = []  # results of the last call, and their fingerprints at its return
        self._lent: list[Tensor] = []  # results of the last call that the host reads on the GPU
        self._device = "cpu"
        self._state: tuple[bytes, ...] = ()
        self._module: Module | None = None
        self._watch: chain.Watch | None = None

    def respond(self, request: msgspec.Raw, progress: OnProgress) -> Any:
        """Returns the reply to one request. Raises KernelError with what the solution raised."""
        asked = msgspec.json.decode(request, type=Asked)
        parts = [self._channel.fill(bytes_in(form)) for form in asked.tensors if form.lent is None]
        self._device = getattr(asked, "device", self._device)
        self._lent.clear()
        try:
            tensors = tensors_in(asked.tensors, parts, self._device, lambda size: size)
            if isinstance(asked, Lend):
                forms, sent = self._announced(asked, tensors)
                return WithBytes(Answer(asked.number, forms), sent)
            return self._build(asked, tensors) if isinstance(asked, Build) else self._call(asked, tensors, progress)
        except Exception as error:
            raise KernelError(_described(error)) from None

    def _build(self, asked: Build, tensors: Sequence[Tensor]) -> Built:
        self._entry = asked.entry
        self._began = ProcessState.now()
        self._arguments_of_init = {form.name: tensor for form, tensor in zip(asked.tensors, tensors, strict=True)}
        module = imported(path := Path(asked.file).resolve(), path.stem)
        named = (getattr(module, name, None) for name in asked.entry.names)
        self._made: Any = next(filter(callable, named), None)
        if self._made is None:
            names = " or ".join(asked.entry.names)
            raise AttributeError(f"a solution defines {names}; this one defines neither of them")
        self._function = self._new()
        self._module = self._function if isinstance(self._function, Module) else None
        forms = tuple(form_of(name, value) for name, value in _state_of(self._module).items())
        return Built(forms, _prepared(self._module))

    def _new(self, seed: int | None = None) -> Any:
        """Returns the function, or a module made again after the same seed, or after another one."""
        if self._entry.init is None:
            return self._made
        arguments = value_of(self._entry.init, self._arguments_of_init)
        made = constructed(self._made, arguments, self._entry.seed if seed is None else seed)
        return made.to(self._device) if isinstance(made, Module) else made

    def _call(self, asked: Call | Chained, tensors: Sequence[Tensor], progress: OnProgress) -> WithBytes:
        """Calls the solution once, or in a chain: from the stack it sees the same functions."""
        late = any(chain.fingerprint(result) != before for result, before in self._given)
        timed, watched = isinstance(asked, Chained), isinstance(asked, Call) and asked.watched
        lazy, functions, given = set[str](), set[str](), list[Tensor]()
        self._load(asked.state, tensors[: len(asked.state)])
        watch = self._watch = self._watch or chain.Watch(self._device)
        watch.marks.clear()
        arguments = {} if isinstance(asked, Chained) else self._placed(asked, tensors)
        before = {name: value.clone() for name, value in arguments.items()}
        count = asked.count if isinstance(asked, Chained) else 1
        buffers = [[self._unwritten(form) for form in self._entry.into] for _ in range(count)]
        inputs, key = (lambda known: arguments), 0
        if isinstance(asked, Chained):
            inputs, key = self._opened(asked, [each.to(self._device) for each in tensors[len(asked.state) :]])
        else:
            self._fill_freed(tensors)

        def call(placed: chain.Inputs) -> list[Tensor]:
            into = buffers.pop()
            # only few calls are watched, because this changes how PyTorch compiles
            with _Recording(functions) if watched else nullcontext():
                returned = call_by(self._entry, self._function, placed, into)
            given[:] = map(_resolved, results_in(into if into else returned))
            if other := next((type(each).__name__ for each in given if not isinstance(each, Tensor)), ""):
                raise TypeError(f"a solution returns tensors; it returned {other}")
            if any(each.device.type != torch.device(self._device).type for each in given):
                raise TypeError(f"a solution returns tensors on the device of its arguments, {self._device}")
            lazy.update(filter(None, map(_lazy, given)))
            return [] if lazy else given

        raised = ""
        with torch.no_grad():
            try:
                found, last = chain.run(call, inputs, key, count, watch)
            except chain.Broken as broken:
                if not timed:
                    raise broken.__cause__ or broken from None
                found, last, raised, given[:] = broken.answers, 0, _described(broken.__cause__ or broken), []
        if timed:
            progress(f"{last}")
        results = [each for answer in found for each in answer]
        last_ones = results[len(results) - len(given) :]
        pairs = zip(given, last_ones, strict=bool(last_ones))
        self._given = [(each.detach(), chain.fingerprint(mine)) for each, mine in pairs]
        changed = tuple(name for name, value in arguments.items() if not same_bits([value], [before[name]]))
        forms, parts = self._announced(asked, results)
        left = self._began.left("call") if watched else []
        replaced, modes = (tuple(each.text for each in left if each.kind == kind) for kind in ("judge", "mode"))
        about = (changed, late, "; ".join(sorted(lazy)), tuple(sorted(functions)), replaced, modes)
        seconds = 0.0
        with suppress(Exception):  # a solution may have broken the clock of its process
            seconds = watch.seconds()
        return WithBytes(Answer(asked.number, forms, *about, seconds, len(found), raised), parts)

    def _announced(self, asked: Asked, tensors: list[Tensor]) -> tuple[tuple[Form, ...], list[memoryview]]:
        """Returns the forms of tensors and their bytes. Large ones are lent if the host lends its own."""
        lends = any(form.lent for form in asked.tensors)
        self._lent = tensors if lends else []
        return announced(((f"{place}", each) for place, each in enumerate(tensors)), lent if lends else None)

    def _opened(self, asked: Chained, raw: Sequence[Tensor]) -> tuple[Callable[[Tensor], chain.Inputs], int]:
        """Asks for the secret and the key of a chain. Returns a function that makes inputs of a key, and the key."""
        send(self._channel, KernelWanted(msgspec.Raw(b"null"), 0))
        event, _ = receive(self._channel)
        secret, key = msgspec.json.decode(event.reply, type=tuple[int, int])  # type: ignore[union-attr]
        stored = {
            form.name: chain.opened(each, KINDS[form.dtype], form.shape, secret)
            for form, each in zip(asked.sealed, raw, strict=True)
        }
        return chain.chain_inputs(stored, asked.varied), key

    def _load(self, names: Sequence[str], values: Sequence[Tensor]) -> None:
        """Makes the module again if its state differs from the last call. The state is tensors by name, or a seed."""
        data = tuple(map(bytes_of, values))
        if self._module is None or not names or data == self._state:
            return
        self._state = data
        self._function = self._module = self._new(None if names[0] else int(values[0]))
        known = _state_of(self._module)
        with torch.no_grad():
            for name, value in zip(names, values, strict=True) if names[0] else ():
                known[name].copy_(value)

    def _placed(self, asked: Call, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Returns the arguments, at new addresses or at those of an earlier call. PyTorch's version counters do not
        change.
        """
        count = len(asked.state)
        given = dict(zip((form.name for form in asked.tensors[count:]), tensors[count:], strict=True))
        old = next((each for each in reversed(self._held) if asked.again and _forms(each) == _forms(given)), None)
        if old is not None:
            for name, value in given.items():
                old[name].data.copy_(value)
            return old
        placed = {name: value.to(self._device, copy=True) for name, value in given.items()}
        self._held.append(placed)
        while len(self._held) > 1 and sum(each.nbytes for held in self._held for each in held.values()) > HELD_BYTES:
            del self._held[0]
        return placed

    def _fill_freed(self, arguments: Sequence[Tensor]) -> None:
        """Fills memory that the next tensors get. On the host, the C library fills all but small pieces."""
        sizes = {each.nbytes for each in (*arguments, *(result for result, _ in self._given))}
        if self._device == "cpu":
            sizes = {size for size in sizes if size <= SMALL_BYTES}
        new = {"dtype": torch.uint8, "device": self._device}
        pieces = [size for size in sizes for _ in range(SMALL_PIECES if size <= SMALL_BYTES else 1)]
        held = [torch.full((size,), NEVER_WRITTEN, **new) for size in pieces]  # type: ignore[call-overload]
        del held

    def _unwritten(self, form: Form) -> Tensor:
        kind = KINDS[form.dtype]
        size = math.prod(form.shape) * kind.itemsize
        raw = torch.full((size,), NEVER_WRITTEN, dtype=torch.uint8, device=self._device)
        return raw.view(kind).reshape(form.shape)


def _forms(tensors: dict[str, Tensor]) -> list[tuple[Any, ...]]:
    return [(name, value.shape, value.dtype) for name, value in tensors.items()]


def _state_of(module: Module | None) -> dict[str, Tensor]:
    return {} if module is None else dict((*module.named_parameters(), *module.named_buffers()))


def _prepared(module: Module | None) -> tuple[str, ...]:
    """Returns the names of tensors that a module keeps beside its parameters and buffers."""
    found = []
    for place, part in () if module is None else module.named_modules():
        for name, value in vars(part).items():
            held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
            if name not in ("_parameters", "_buffers", "_modules") and any(isinstance(each, Tensor) for each in held):
                found.append(f"{place}.{name}".strip("."))
    return tuple(found)


def _resolved(item: Any) -> Any:
    """Returns a plain tensor with its values: PyTorch negates `x.conj().imag` when it is read."""
    return item.resolve_conj().resolve_neg() if type(item) in (Tensor, Parameter) else item


def _lazy(item: Any) -> str:
    """Returns a description of a result that is no plain tensor with values in memory; "" for a plain one."""
    if type(item) not in (Tensor, Parameter):
        return f"a {type(item).__qualname__} in the place of a tensor"
    if item.layout is not torch.strided or item._is_zerotensor():
        return "a view whose values are computed when it is read"
    if own := sorted(name for name in vars(item) if hasattr(Tensor, name)):  # other names are notes, as PyTorch's own
        return f"a tensor with {', '.join(own)} of its own"
    return ""


def _described(error: BaseException) -> str:
    """Returns the type and the first line of an error, and the line of the solution that raised it."""
    text = next((line.strip() for line in said_by(error).splitlines() if line.strip()), "no message")
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(os.getcwd())]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {text}{place}"


class _Recording(TorchFunctionMode):
    """Records the functions of PyTorch that are called."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(resolve_name(func) or getattr(func, "__name__", "unknown"))
        return func(*args, **(kwargs or {}))
