"""Corrects Triton's interpreter, so that kernels on the CPU compute what a GPU would.

`install()` replaces the operations of Triton's interpreter that are not faithful; `uninstall()` restores them. The list
is for Triton 3.6.0. Triton 3.9 ships some of these corrections; the others apply to 3.7 to 3.9 too:

| shipped | here |
|---|---|
| float32 to bfloat16 truncates; float8 is rounded without ties or saturation | `casts` |
| bfloat16 arithmetic, comparison, min/max works on the uint16 patterns | `operators` |
| a * b + c for tl.fma; fmod for %; NaN and signed zeros in min and max as numpy has them | `operators` |
| bfloat16 scalars (`x * 2.0`) fail; float to int out of range is undefined | `operators`, `casts` |
| tl.dot multiplies bfloat16 patterns, has no tf32, sums in an order that depends on the machine | `dot` |
| no libdevice: `libdevice.erf(x)` is None or an error; no inline assembly | `libdevice`, `assembly` |
| functions differ with the processor on which numpy runs | `functions` |
| NaN padding of bfloat16 blocks is 0; no atomic addition of bfloat16 | `operators` |
| sum over bfloat16 adds patterns; other reductions take one Python call per element | `reduce` |
| `for i in range(0, n)` with a run-time n fails with numpy 2.4 | `_index` |
| a float argument stays a Python float: no `eps.to(tl.float32)`, and float64 arithmetic | `arguments` |
| an int argument of 1 is a tensor, in a compiled kernel it is a constant; a bool argument fails | `arguments` |
| annotated arguments (`n: tl.int64`) keep the type of the number; `n += 1` and `return 1` keep numbers | `arguments` |
| `and`, `or`, `not` of tensors are Python's, for which a block is true; `a < b < c` runs | `logic` |
| an autotuned kernel with several configurations needs a GPU driver | `_replace` |
| programs run one after the other | `programs` |
| each int32 sum is computed again in int64 for an assertion that only `debug` makes | `install` |
| names imported from triton.language (`from triton.language import exp`) are not interpreted | `_bind_globals` |

`operators` lists the remaining differences from a GPU.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import metadata
from operator import attrgetter
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest import mock

from verify.backends.interpreter.rounding import silent
from verify.errors import UsageError


def _set(patches: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replaces an attribute until the stack closes."""
    patches.enter_context(mock.patch.object(owner, name, value, create=True))


_active: ExitStack | None = None


def installed() -> bool:
    """True if the faithful operations are installed."""
    return _active is not None


# Attributes of Triton's interpreter that the replacements need later. `install` meets all others itself.
_NEEDED_LATER = ("ReduceOps.generic_reduce", "ReduceOps.apply_impl", "ScanOps.generic_scan", "ScanOps.apply_impl")


def install() -> None:
    """Installs the faithful operations; a second call does nothing. Raises UsageError if Triton is another one."""
    global _active
    if _active is not None:
        return
    patches = ExitStack()
    try:
        _replace(patches)
    except BaseException as error:
        patches.close()
        if not isinstance(error, ImportError | AttributeError):
            raise
        raise UsageError(
            f"interpreter backend: it corrects the interpreter of Triton 3.6 to 3.9; Triton "
            f"{metadata.version('triton')} is another: {error}",
            hint="pip install 'triton>=3.6,<3.10', or run on a machine with a GPU",
        ) from error
    _active = patches


def _replace(patches: ExitStack) -> None:
    from triton.runtime import interpreter as shipped
    from triton.runtime.autotuner import Autotuner

    from verify.backends.interpreter import arguments, logic, operators, programs, reduce

    attrgetter(*_NEEDED_LATER, *(f"InterpreterBuilder.{name}" for name in operators.METHODS))(shipped)
    for name, method in {**operators.METHODS, **operators.NEW_METHODS}.items():
        _set(patches, shipped.InterpreterBuilder, name, method)
    _set(patches, shipped.ReduceOps, "apply_impl", reduce.reduce)
    _set(patches, shipped.ScanOps, "apply_impl", reduce.scan)
    runs: list[set[int]] = []
    _set(patches, shipped.GridExecutor, "__call__", _run(programs.launching(shipped.GridExecutor.__call__), runs))
    _set(patches, shipped, "_patch_lang_tensor", _tensor_patcher(shipped._patch_lang_tensor, reduce.truth))
    _set(patches, shipped, "_patch_lang_core", _core_patcher(shipped._patch_lang_core))
    patch_lang = shipped._patch_lang
    _set(patches, shipped, "_patch_lang", _binding(patches, shipped, runs))
    _set(patches, shipped, "_implicit_cvt", arguments.converting(shipped._implicit_cvt))
    function, transformer = shipped.InterpretedFunction, shipped.ASTTransformer
    _set(patches, function, "run", arguments.launching(function.run))
    _set(patches, function, "__call__", arguments.returning(function.__call__, shipped.interpreter_semantic))
    _set(patches, transformer, "visit_AugAssign", arguments.augmented)
    _set(patches, transformer, "visit_Assign", logic.assigning(transformer.visit_Assign))
    for name, visit in logic.METHODS.items():
        _set(patches, transformer, name, visit)
    for name, called in logic.FUNCTIONS.items():
        _set(patches, shipped, name, called)
    # nothing is timed, so the first configuration that is not pruned wins
    _set(patches, Autotuner, "_bench", lambda self, *args, config, **meta: [0.0, 0.0, 0.0])
    _bind_libdevice(patches, shipped)
    core, semantic = shipped.tl.core, type(shipped.interpreter_semantic)  # of which the frontend makes others
    _set(patches, core.tensor, "__init__", programs.checking(core.tensor.__init__))
    _set(patches, core.block_type, "__init__", programs.of_block_type(core.block_type.__init__))
    _set(patches, semantic, "broadcast_impl_value", programs.of_broadcast(semantic.broadcast_impl_value))
    checked = programs.of_operands(semantic.binary_op_type_checking_impl)
    _set(patches, semantic, "binary_op_type_checking_impl", checked)
    _set(patches, shipped, "_get_np_dtype", programs.np_dtype)
    own = shipped.interpreter_builder.options
    options = SimpleNamespace(**{**vars(own), "sanitize_overflow": own.debug and own.sanitize_overflow})
    _set(patches, shipped.interpreter_builder, "options", options)
    # it replaces what the modules in the globals of a function need
    patches.callback(patch_lang(SimpleNamespace(__globals__={"tl": shipped.tl, "core": core})).restore)


def uninstall() -> None:
    """Restores Triton's own operations."""
    global _active
    if _active is not None:
        _active.close()
        _active = None


@contextmanager
def untraced() -> Iterator[None]:
    """Makes `torch.compile` run what the interpreter launches, instead of tracing the interpreter's numpy code.

    A `triton_op` stays one call too: its launches are nodes of a graph only if they are compiled. This is a context,
    not permanent, because `torch.compiler.disable` imports the compiler, which takes seconds.
    """
    import torch
    from torch.export import _trace
    from triton.runtime.interpreter import InterpretedFunction

    whole = getattr(_trace, "_disable_custom_triton_op_functional_decomposition", nullcontext)
    run = torch.compiler.disable(InterpretedFunction.run)  # type: ignore[no-untyped-call]
    with mock.patch.object(InterpretedFunction, "run", run), whole():
        yield


# -- the pieces -----------------------------------------------------------------------------------


def _run(call: Callable[..., Any], runs: list[set[int]]) -> Callable[..., Any]:
    """Returns GridExecutor.__call__ without numpy's warnings: NaN, infinity and underflow are results.

    Masked lanes may divide by zero. A launch on fake tensors, as a `triton_op` makes for its fake result, does nothing,
    like a compiled one.

    Args:
        runs: one set per active launch: the namespaces whose names are bound
    """
    from torch._subclasses.fake_tensor import FakeTensor

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(each, FakeTensor) for each in (*args, *kwargs.values())):
            return None
        runs.append(set())
        try:
            with silent():
                return call(self, *args, **kwargs)
        finally:
            runs.pop()

    return run


def _index(tensor: Any) -> int:
    """Returns a scalar tensor as a Python integer. The interpreter stores scalars as arrays of one element."""
    from verify.backends.interpreter import programs

    return int(programs.agreed(tensor.handle.data))


def _tensor_patcher(original: Callable[..., Any], truth: Callable[[Any], bool]) -> Callable[..., Any]:
    """Returns _patch_lang_tensor that also sets __index__, __bool__ (to `truth`) and T."""

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", _index)
        scope.set_attr(tensor, "__bool__", truth)
        scope.set_attr(tensor, "T", property(_transposed))

    return patch


def _transposed(tensor: Any) -> Any:
    """Returns a matrix with its last two dimensions exchanged."""
    handle, (*lead, rows, columns) = tensor.handle, tensor.type.shape
    data = type(handle)(handle.data.swapaxes(-1, -2), handle.dtype)
    return type(tensor)(data, type(tensor.type)(tensor.dtype, [*lead, columns, rows]))


def _core_patcher(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns _patch_lang_core that also sets tl.range."""
    from verify.backends.interpreter import programs

    def patch(lang: Any, scope: Any) -> None:
        original(lang, scope)
        scope.set_attr(lang, "range", programs.ranging(lang.range))

    return patch


def _bound(function: Callable[..., Any], semantic: Any) -> Callable[..., Any]:
    """Returns a builtin of triton.language that passes the interpreter's semantic."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, "_semantic": semantic})

    call.__name__, call.__doc__ = function.__name__, function.__doc__  # without the mark of a builtin: bound once
    return call


def _bind_libdevice(patches: ExitStack, shipped: Any) -> None:
    """Makes both spellings of libdevice, and tl.extra.cuda, call the interpreter; the portable one has no functions."""
    import triton.language.extra.libdevice as portable
    from triton.language import core
    from triton.language.extra import cuda as extra

    cuda = extra.libdevice
    for module in (extra, cuda):
        for name, function in inspect.getmembers(module, core.is_builtin):
            _set(patches, module, name, _bound(function, shipped.interpreter_semantic))
    for name, function in inspect.getmembers(portable, inspect.isfunction):
        if function.__module__ == portable.__name__:
            _set(patches, portable, name, getattr(cuda, name, None) or _not_on_cuda(name))


def _not_on_cuda(name: str) -> Callable[..., Any]:
    """Returns a replacement for a libdevice function that Triton has not for CUDA: a call raises UsageError."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise UsageError(f"libdevice.{name}: Triton has no CUDA version of it", hint="call another function")

    return call


def _binding(patches: ExitStack, shipped: Any, runs: list[set[int]]) -> Callable[..., Any]:
    """Returns _patch_lang that binds the names which a kernel's module imported from triton.language.

    The shipped function replaces 184 attributes of triton.language for each call of a function and restores them
    afterwards. `install` replaces them once. So this one changes only the module of a kernel, after it has new names.
    """
    bound: dict[int, tuple[int, ...]] = {}  # the contents of each namespace when its names were last bound
    nothing = shipped._LangPatchScope()

    def patch_lang(fn: Any) -> Any:
        namespace, seen = fn.__globals__, runs[-1] if runs else set()
        if id(namespace) not in seen:
            if bound.get(id(namespace)) != tuple(map(id, namespace.values())):
                _bind_globals(namespace, patches, shipped)
                bound[id(namespace)] = tuple(map(id, namespace.values()))
            seen.add(id(namespace))
        return nothing

    return patch_lang


def _bind_globals(namespace: dict[str, Any], patches: ExitStack, shipped: Any) -> None:
    """Binds builtins and libdevice functions in the namespace of a kernel to the interpreter."""
    import triton.language as tl

    portable = sys.modules["triton.language.extra.libdevice"]
    for name, value in list(namespace.items()):
        if not isinstance(value, FunctionType):
            continue
        if tl.core.is_builtin(value):
            bound = _bound(value, shipped.interpreter_semantic)
        elif value.__module__ == portable.__name__ and value.__name__ in vars(portable):
            bound = getattr(portable, value.__name__)
        else:
            continue
        patches.callback(namespace.__setitem__, name, value)
        namespace[name] = bound
