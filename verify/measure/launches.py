"""Records the launches of Triton kernels in a call, and compiles them for a GPU that need not be here.

The interpreter's launches are compiled in a process of its own, whose Triton interprets nothing. A launch may also be
recorded without being made, so that its tensors need no memory.
"""

import atexit
import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from verify import start
from verify.backends import Backend
from verify.declare.discovery import imported
from verify.declare.target import Target
from verify.measure.ttgir import NotUnderstood, refuse

_TARGET = ("cuda", 90, 32)
_COMPARED = "3.6."  # Triton whose PTX adds as `ttgir.py` says: tests/diagnose/test_compiled.py
_ODD, _WIDE = 3, (1 << 33) + 1  # integers of 32 and of 64 bits that Triton specialises for nothing else


class Launch(NamedTuple):
    """Holds a launch, and its compiled program."""

    function: str
    values: dict[str, Any]  # of its operands, by name
    grid: list[int]
    ttgir: str
    ptx: str
    target: str


class Recorded(NamedTuple):
    """Holds a launch as the call made it."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    values: dict[str, Any]  # of its operands, by name
    grid: list[int]
    found: Any  # what Triton returned

    @property
    def program(self) -> str:
        """Returns what its program in Triton's first form depends on: the function, types, and constants."""
        names, constants = list[str](), set[str]()
        for name, each in inspect.signature(self.function.fn).parameters.items():
            names.append(name)
            constants |= {name} if "constexpr" in str(each.annotation) else set()
        args = [value if name in constants else _typical(value) for name, value in zip(names, self.args, strict=False)]
        kwargs = {
            name: value if name in constants or name not in names else _typical(value)
            for name, value in self.kwargs.items()
        }
        return json.dumps([_named(self.function, alike=True), *_plain((args, kwargs))])


def _typical(value: Any) -> Any:
    """Returns integers as others for which Triton compiles the same program, if it does not know their divisors."""
    if isinstance(value, tuple | list):
        return [_typical(each) for each in value]
    if isinstance(value, torch.Tensor):
        return {"tensor": str(value.dtype).removeprefix("torch."), "address": value.element_size()}
    if not isinstance(value, int) or isinstance(value, bool) or value == 1:
        return value
    return _ODD if -(1 << 31) <= value < 1 << 31 else _WIDE


@contextmanager
def recording(backend: Backend, *, launched: bool = True) -> Iterator[list[Recorded]]:
    """Records the launches made meanwhile. Without `launched` none is made, and an autotuner takes its first choice."""
    from triton.runtime import Autotuner, JITFunction, interpreter

    owner: Any = interpreter.InterpretedFunction if backend.triton == "interpreted" else JITFunction
    tuner: Any = Autotuner
    run, tune, seen = owner.run, tuner.run, list[Recorded]()

    def recorded(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        found = run(self, *args, grid=grid, warmup=warmup, **kwargs) if launched else None
        parameters = inspect.signature(self.fn).parameters
        values = {name: each.default for name, each in parameters.items()}
        values |= dict(zip(parameters, args, strict=False)) | kwargs
        sizes = [*(grid(values) if callable(grid) else grid), 1, 1][:3]
        seen.append(Recorded(self, args, kwargs, values, [int(each) for each in sizes], found))
        return found

    owner.run = recorded
    if not launched:
        tuner.run = lambda self, *args, **kwargs: self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())
    try:
        yield seen
    finally:
        owner.run, tuner.run = run, tune


def launches_of(
    calls: Sequence[Callable[[], Any]], backend: Backend, target: str, *, launched: bool = True
) -> list[list[Launch]]:
    """Returns the launches of each call, compiled. Without `launched` the interpreter makes none."""
    ends = [0]
    with recording(backend, launched=launched or backend.triton == "compiled") as seen:
        for call in calls:
            call()
            ends.append(len(seen))
    if backend.triton == "interpreted":
        request = [(_named(each.function), *_plain((each.args, each.kwargs))) for each in seen]
        compiled = [
            _texts(forms, SimpleNamespace(backend=_TARGET[0], arch=_TARGET[1]))
            for forms in _compiled_apart(target, request)
        ]
    else:
        compiled = [_texts(each.found.asm, each.found.metadata.target) for each in seen]
    pairs = zip(seen, compiled, strict=True)
    found = [Launch(each.function.fn.__name__, each.values, each.grid, *texts) for each, texts in pairs]
    return [found[begin:end] for begin, end in pairwise(ends)]


def first_forms(target: str, programs: Sequence[str]) -> list[str]:
    """Returns the TTIR of each `Recorded.program`; "" for one that does not compile."""
    return [made.get("ttir", "") for made in _compiled_apart(target, list(map(json.loads, programs)), "ttir")]


def _compiled_apart(target: str, programs: Sequence[Any], last: str = "ptx") -> list[dict[str, str]]:
    """Returns the forms of each program up to the last one by their names, or its "error"."""
    if not programs:
        return []
    process = _compiler(os.getpid())
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        print(json.dumps([target, programs, last]), file=process.stdin, flush=True)
    if not (reply := process.stdout.readline()):
        _compiler.cache_clear()
        refuse("its kernels are not compiled")
    return list(json.loads(reply))


@lru_cache(maxsize=1)
def _compiler(owner: int) -> subprocess.Popen[str]:
    """Starts a process that compiles for all kernels of the process `owner`: it takes seconds to import Triton."""
    kept = start.environment({name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"})
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(start.command("verify.measure.launches"), text=True, env=kept, **pipes)
    atexit.register(process.kill)
    return process


def _texts(forms: Mapping[str, str], target: Any) -> tuple[str, str, str]:
    from triton import __version__

    if "error" in forms:
        raise NotUnderstood(f"it does not compile: {forms['error']}")
    if not __version__.startswith(_COMPARED):
        text = f"only the reductions of Triton {_COMPARED}x were compared with its PTX; here is {__version__}"
        raise NotUnderstood(text)
    return forms["ttgir"], forms["ptx"], f"{target.backend}:{target.arch}, Triton {__version__}"


def _named(function: Any, *, alike: bool = False) -> tuple[str, str]:
    """Returns the module and the name by which another process finds a function, or with `alike` one of its source."""
    others = list[str]()
    for name, value in function.fn.__globals__.items():
        while value is not function and hasattr(value, "fn"):  # an autotuner has the function that it tunes
            others += [name] if value.fn is function.fn else []
            value = value.fn
        if value is function:
            return function.fn.__module__, name
    if alike and others:
        return function.fn.__module__, others[0]
    raise NotUnderstood(f"{function.fn.__name__} is no name of its module, so no other process finds it")


def _plain(value: Any) -> Any:
    """Returns arguments as JSON has them."""
    from triton import language

    value = value.value if isinstance(value, language.constexpr) else value
    if isinstance(value, torch.Tensor):
        return {"tensor": str(value.dtype).removeprefix("torch."), "address": value.data_ptr() % 16}
    if isinstance(value, language.dtype):
        return {"dtype": value.name}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if hasattr(value, "fn"):
        return {"function": _named(value)}
    if value is not None and not isinstance(value, bool | int | float | str):
        raise NotUnderstood(f"an argument of the type {type(value).__name__}")
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def main() -> None:
    """Compiles launches of a target for a GPU that is not here: for each line of JSON on stdin one on stdout."""
    import triton
    from triton.backends.compiler import GPUTarget

    out, sys.stdout = sys.stdout, sys.stderr  # the module may print
    driver = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 0)
    driver.get_current_target = lambda: GPUTarget(*_TARGET)
    for line in sys.stdin:
        target, launches, last = json.loads(line)
        if target:
            imported(Target.parse(target))
        triton.runtime.driver.set_active(driver)
        print(json.dumps([_forms(*each, last=last) for each in launches]), file=out, flush=True)


def _forms(named: Sequence[str], args: Any, kwargs: Any, *, last: str) -> dict[str, str]:
    """Returns the forms of a program up to the last one, after which Triton compiles no further, or its "error"."""
    import triton

    forms: dict[str, str] = {}

    def ending(backend: Any, stages: dict[str, Any], *others: Any) -> None:
        for name, stage in stages.items():
            stages[name] = partial(kept, name, stage)

    def kept(name: str, stage: Callable[..., Any], *given: Any) -> Any:
        made = stage(*given)
        forms[name] = str(made)
        if name == last:
            raise _Ended
        return made

    triton.knobs.runtime.add_stages_inspection_hook = ending
    try:
        function, options = _function(*named), {key: _given(each) for key, each in kwargs.items()}
        made = function.run(*map(_given, args), grid=(1,), warmup=True, **options)  # compiled before
        return {name: text for name, text in made.asm.items() if isinstance(text, str)}
    except _Ended:
        return forms
    except Exception as error:
        return {"error": (f"{type(error).__name__}: {error}".strip().splitlines() or [""])[-1]}


class _Ended(Exception):
    """Raised after the last form of a program that is wanted."""


def _function(module: str, name: str) -> Any:
    from triton.runtime import JITFunction

    value = getattr(importlib.import_module(module), name)
    while not isinstance(value, JITFunction):
        value = value.fn
    return value


def _given(value: Any) -> Any:
    """Returns an argument of a launch: for a tensor its dtype and where its memory begins."""
    from triton import language
    from triton.runtime.jit import MockTensor

    if isinstance(value, list):
        return tuple(map(_given, value))
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        pointer = MockTensor(getattr(torch, value["tensor"]))
        pointer.data_ptr = lambda: value["address"]
        return pointer
    return language.dtype(value["dtype"]) if "dtype" in value else _function(*value["function"])


if __name__ == "__main__":
    main()
