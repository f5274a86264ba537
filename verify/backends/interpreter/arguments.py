"""Launch arguments as a compiled kernel gets them: an int of 1 is a constant, a bool is one bit, `n: tl.int64` is wide.

The rules come from Triton 3.6.0 to 3.9.0, where they agree (`JITFunction.run`, `KernelParam`,
`native_specialize_impl`):

- An int argument of 1 is compiled in as `tl.constexpr(1)`, unless `do_not_specialize` lists the parameter or it has a
  type annotation. An int inside a tuple always follows the first half of this rule.
- `do_not_specialize_on_alignment` affects only divisibility by 16. Bools and floats are never constants; None always
  is.
- An attribute of a constant is looked up on the Python number, so `n.to(tl.int64)` compiles for every n except 1.
- An assignment (`m = n`) makes a tensor again. In Triton 3.6, a device function's return does too. From 3.7 a returned
  constant stays one, so `tl.cdiv(n, 4).to(tl.int64)` compiles for n = 1 only in 3.6.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch


class Constant(int):
    """An int argument of 1, or a value computed from it and other constants. It has no attributes of a tensor."""

    parameter: str

    def __new__(cls, value: int, parameter: str) -> Constant:
        self = super().__new__(cls, value)
        self.parameter = parameter
        return self

    @property
    def value(self) -> int:
        """Returns the number; tl.constexpr has this attribute too."""
        return int(self)

    def __getattr__(self, attribute: str) -> Any:
        name = self.parameter
        raise AttributeError(
            f".{attribute} of {name} = 1: Triton compiles an int argument of 1 as a constant, which has no "
            f".{attribute}: on a GPU this launch does not compile, with other values of {name} it does. Next: "
            f"tl.cast({name}, ...), an assignment ({name}_ = {name}), or @triton.jit(do_not_specialize=[{name!r}])"
        )


def _operator(name: str, of_int: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that computes with the ints and wraps an int result as a Constant."""

    def method(self: Constant, *others: Any) -> Any:
        out = of_int(int(self), *others)
        return Constant(out, self.parameter) if type(out) is int else out  # NotImplemented: tensor next

    method.__name__ = name
    return method


for _name in "add sub mul floordiv mod pow lshift rshift and or xor".split():
    for _side in ("", "r"):
        _dunder = f"__{_side}{_name}__"
        setattr(Constant, _dunder, _operator(_dunder, getattr(int, _dunder)))
for _name in "neg pos invert".split():
    setattr(Constant, f"__{_name}__", _operator(f"__{_name}__", getattr(operator, _name)))


class Arguments:
    """The conversion of the arguments of one kernel."""

    def __init__(self, fn: Any, options: dict[str, Any]) -> None:
        from triton.runtime.jit import KernelParam

        listed = options.get("do_not_specialize") or ()
        self.parameters = {
            name: KernelParam(i, parameter, i in listed or name in listed, False)
            for i, (name, parameter) in enumerate(inspect.signature(fn).parameters.items())
        }

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the converted arguments of a launch; a default that needs conversion becomes a keyword."""
        names = list(self.parameters)
        positional = (*(self._converted(n, a) for n, a in zip(names, args, strict=False)), *args[len(names) :])
        named = {n: self._converted(n, a) if n in self.parameters else a for n, a in kwargs.items()}
        for name in names[len(args) :]:
            parameter = self.parameters[name]
            if name not in kwargs and parameter.has_default:
                named[name] = self._converted(name, parameter.default)
        return positional, named

    def _converted(self, name: str, argument: Any) -> Any:
        parameter = self.parameters[name]
        if parameter.is_constexpr:
            return argument
        if isinstance(argument, tuple):
            return _constants(argument, name)
        if parameter.annotation_type and isinstance(argument, (int, float)):
            import triton.language as tl

            # a scalar of the annotated type, as the launcher packs the number
            dtype = tl.str_to_ty(parameter.annotation_type, None)
            return _scalar(argument, dtype) if dtype.is_int() or dtype in (tl.float32, tl.float64) else argument
        return argument if parameter.do_not_specialize else _constants(argument, name)


def _constants(argument: Any, name: str) -> Any:
    """Returns an argument with each int of 1 as a Constant, also inside tuples."""
    if isinstance(argument, tuple):
        items = [_constants(a, name) for a in argument]
        return type(argument)(*items) if hasattr(argument, "_fields") else type(argument)(items)
    if type(argument) is int and argument == 1:
        return Constant(1, name)
    return argument


def _scalar(argument: bool | int | float, dtype: Any) -> Any:
    from triton.language import core
    from triton.runtime.interpreter import TensorHandle

    from verify.backends.interpreter.programs import np_dtype

    return core.tensor(TensorHandle(np.array([argument]).astype(np_dtype(dtype)), dtype), dtype)


def converting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces Triton's conversion: a float becomes a float32 scalar, a bool one bit; a Constant stays."""

    pointers: dict[Any, Any] = {}  # element type -> pointer type

    def convert(argument: Any) -> Any:
        from triton.language import core
        from triton.runtime.interpreter import TensorHandle

        if type(argument) is torch.Tensor:
            kind = pointers.get(argument.dtype)
            if kind is None:
                kind = pointers[argument.dtype] = original(argument).type
            return core.tensor(TensorHandle(np.array([argument.data_ptr()], dtype=np.uint64), kind), kind)
        if isinstance(argument, Constant):
            return argument
        if isinstance(argument, bool):
            return _scalar(argument, core.int1)
        if isinstance(argument, float):
            return _scalar(argument, core.float32)
        return original(argument)

    return convert


_known: WeakKeyDictionary[Any, Arguments] = WeakKeyDictionary()


def launching(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces InterpretedFunction.run: converts the arguments as for a compiled kernel, and notes its warps."""
    from triton.runtime.interpreter import interpreter_builder

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if self not in _known:
            _known[self] = Arguments(self.fn, self.kwargs)
        interpreter_builder.options.num_warps = kwargs.get("num_warps") or 4
        args, kwargs = _known[self].bind(args, kwargs)
        return original(self, *args, grid=grid, warmup=warmup, **kwargs)

    return run


def augmented(self: Any, node: ast.AugAssign) -> Any:
    """Replaces ASTTransformer.visit_AugAssign: `n += 1` is the assignment `n = n + 1`, after which n is a tensor."""
    if not isinstance(node.target, ast.Name):
        return self.generic_visit(node)
    sum_ = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
    return self.visit(ast.copy_location(ast.Assign([node.target], ast.copy_location(sum_, node)), node))


def returning(original: Callable[..., Any], semantic: Any) -> Callable[..., Any]:
    """Replaces InterpretedFunction.__call__: a device function's returned numbers become tensors, as compiled."""
    from triton.compiler.code_generator import CodeGenerator
    from triton.language import core

    if hasattr(CodeGenerator, "decide_return_type"):  # from Triton 3.7
        return original

    def decayed(value: Any) -> Any:
        if isinstance(value, (int, float, core.constexpr)):
            return semantic.to_tensor(value)
        if type(value) is tuple:
            return tuple(decayed(v) for v in value)
        return value

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return decayed(original(self, *args, **kwargs))

    return call
