"""The declaration of a kernel under test, and how declarations are found.

    @verify.kernel(op="gelu", params={"approximate": "tanh"}, dtypes=["bfloat16", "float32"])
    def my_gelu(x):
        return fast_gelu(x)

A declaration says which operation the kernel computes and what it promises. The decorated name stays
callable. Tensors arrive positionally in the op's order; parameters arrive by keyword where the function
accepts them, else they are taken to be baked in.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from verify import ops
from verify.errors import UsageError
from verify.formats import FORMATS, named
from verify.ops.op import Op, Operand, Params, Shape
from verify.ulp import Policy

LAYOUTS = ("any", "contiguous")
BACKENDS = ("cuda", "interpreter")
DEFAULT_DTYPES = ("float32", "bfloat16", "float16")
DEFAULT_LIMIT = 4.0


@dataclass(frozen=True)
class Kernel:
    """One implementation under test. Made by `verify.kernel`; calling it calls the function."""

    name: str
    function: Callable[..., Any]
    op: Op
    params: Mapping[str, Any]
    dtypes: tuple[str, ...]
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    layouts: Literal["any", "contiguous"]
    gradients: tuple[str, ...] | Literal["auto"]
    max_ulp: Mapping[str, float]
    backends: tuple[str, ...]
    peer: bool
    policy: Policy
    module: str
    file: str
    summary: str = ""
    accepted: frozenset[str] = field(default_factory=frozenset)
    requires: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def absent(self) -> tuple[str, ...]:
        """Optional operands that this kernel does not take."""
        return tuple(o.name for o in self.op.operands if o.name not in self.operands)

    @property
    def differentiable(self) -> tuple[Operand, ...]:
        """Operands of this kernel for which the op defines a gradient and the kernel may have one."""
        return tuple(
            operand
            for operand in self.op.operands
            if operand.differentiable
            and operand.name in self.operands
            and (self.gradients == "auto" or operand.name in self.gradients)
        )

    def limit(self, dtype: str) -> float:
        """The error beyond which a result in a dtype is wrong by this kernel's own word."""
        return self.max_ulp[dtype]

    @property
    def lacking(self) -> tuple[str, ...]:
        """Modules that this kernel requires and that are not installed: it is skipped, and not imported."""
        return tuple(name for name in self.requires if importlib.util.find_spec(name) is None)

    @property
    def promise(self) -> str:
        """One line on what is promised."""
        parts = [" ".join(self.dtypes), f"layouts: {self.layouts}"]
        unit = " scaled" if self.op.gate == "scaled" else ""
        if self.gradients == "auto":
            parts.append("gradients: where autograd gives one")
        else:
            parts.append("gradients: " + (" ".join("d" + name for name in self.gradients) or "none"))
        limits = sorted(set(self.max_ulp.values()))
        if len(limits) == 1:
            parts.append(f"max {limits[0]:g} ULP{unit}")
        else:
            each = ", ".join(f"{limit:g} in {dtype}" for dtype, limit in self.max_ulp.items())
            parts.append(f"max ULP{unit}: {each}")
        return "; ".join(parts)


def kernel(
    *,
    op: str | Op,
    params: Mapping[str, Any] | None = None,
    dtypes: Iterable[str] | None = None,
    operands: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    layouts: Literal["any", "contiguous"] = "any",
    gradients: bool | Iterable[str] | Literal["auto"] = "auto",
    max_ulp: float | Mapping[str, float] = DEFAULT_LIMIT,
    backends: Iterable[str] = BACKENDS,
    peer: bool = False,
    policy: Policy | None = None,
    name: str | None = None,
    requires: str | Iterable[str] = (),
) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare the function below as a kernel.

    op: the operation it computes, by name (`verify list --ops`) or as an `Op` from `verify.op(...)`.
    params: values of the op's parameters that this kernel implements.
    dtypes: the dtypes it promises, default float32, bfloat16, float16.
    operands: the operands it takes, default all of the op's; leave out optional ones such as "bias".
    outputs: the outputs it returns, default the op's without the optional ones.
    layouts: "any", or "contiguous" when it refuses other layouts with an error.
    gradients: "auto" (test those that autograd provides), True (all must exist), False, or operand names.
    max_ulp: the error beyond which a result is wrong by this kernel's own word; one number, or one per dtype.
    backends: where it can run; elsewhere it is skipped and the reason reported.
    peer: measured and shown for comparison, never judged (PyTorch's own kernel, a competitor).
    policy: what counts as an error where IEEE leaves room, see `verify.Policy`.
    requires: packages that the function imports; where one is not installed the kernel is skipped and says so.
    """

    # the declaring module, not the function's: a library function may be declared as it is
    caller = sys._getframe(1).f_globals
    module, file = caller.get("__name__", ""), caller.get("__file__", "")

    def declare(function: Callable[..., Any]) -> Kernel:
        label = name or getattr(function, "__name__", None) or "kernel"
        where = f"kernel {label!r}"
        if not callable(function):
            raise UsageError(f"{where}: @verify.kernel decorates a function; received {function!r}")
        definition = op if isinstance(op, Op) else ops.get(op)
        definition.resolve(params or {})
        taken = _operands(where, definition, operands)
        promised = _dtypes(where, dtypes)
        return Kernel(
            name=label,
            function=function,
            op=definition,
            params=dict(params or {}),
            dtypes=promised,
            operands=taken,
            outputs=_outputs(where, definition, outputs),
            layouts=_choice(where, "layouts", layouts, LAYOUTS),
            gradients=_gradients(where, definition, gradients, taken),
            max_ulp=_limits(where, max_ulp, promised),
            backends=tuple(
                _choice(where, "backends", item, BACKENDS) for item in _strings(where, "backends", backends)
            ),
            peer=bool(peer),
            policy=policy or Policy(),
            module=module,
            file=file,
            summary=(inspect.getdoc(function) or "").split("\n", 1)[0],
            accepted=_accepted(function, definition),
            requires=_requires(where, requires),
        )

    return declare


# -- checks: each states the rule and what was received -------------------------------------------------


def _strings(where: str, what: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = (value,)
    items = tuple(str(item) for item in value)
    if not items:
        raise UsageError(f"{where}: {what} must name at least one; received an empty list")
    if len(set(items)) != len(items):
        raise UsageError(f"{where}: {what} must not repeat; received {', '.join(items)}")
    return items


def _requires(where: str, requires: str | Iterable[str]) -> tuple[str, ...]:
    if not requires:
        return ()
    names = _strings(where, "requires", requires)
    for item in names:
        if not item.isidentifier():
            raise UsageError(f"{where}: requires names importable top-level packages; received {item!r}")
    return names


def _choice(where: str, what: str, value: str, allowed: Sequence[str]) -> Any:
    if value not in allowed:
        raise UsageError(f"{where}: {what} is one of {', '.join(allowed)}; received {value!r}")
    return value


def _dtypes(where: str, dtypes: Iterable[str] | None) -> tuple[str, ...]:
    if dtypes is None:
        return DEFAULT_DTYPES
    names = []
    for item in _strings(where, "dtypes", dtypes):
        try:
            names.append(named(item).name)
        except UsageError:
            raise UsageError(f"{where}: unknown dtype {item!r}; verify knows: {', '.join(FORMATS)}") from None
    return tuple(names)


def _operands(where: str, op: Op, operands: Iterable[str] | None) -> tuple[str, ...]:
    known = [operand.name for operand in op.operands]
    if operands is None:
        return tuple(known)
    chosen = _strings(where, "operands", operands)
    for item in chosen:
        if item not in known:
            raise UsageError(f"{where}: op {op.name!r} has operands {', '.join(known)}; received {item!r}")
    for operand in op.operands:
        if not operand.optional and operand.name not in chosen:
            raise UsageError(f"{where}: op {op.name!r} requires operand {operand.name!r}; operands omits it")
    return tuple(item for item in known if item in chosen)


def _outputs(where: str, op: Op, outputs: Iterable[str] | None) -> tuple[str, ...]:
    known = op.all_outputs
    if outputs is None:
        return op.required_outputs
    chosen = _strings(where, "outputs", outputs)
    for item in chosen:
        if item not in known:
            raise UsageError(f"{where}: op {op.name!r} has outputs {', '.join(known)}; received {item!r}")
    return chosen


def _gradients(where: str, op: Op, gradients: Any, taken: Sequence[str]) -> tuple[str, ...] | Literal["auto"]:
    if gradients == "auto":
        return "auto"
    differentiable = tuple(operand.name for operand in op.operands if operand.differentiable and operand.name in taken)
    if gradients is True:
        return differentiable
    if gradients is False:
        return ()
    chosen = []
    for item in _strings(where, "gradients", gradients):
        operand = item if item in differentiable else item.removeprefix("d")
        if operand not in differentiable:
            raise UsageError(
                f"{where}: op {op.name!r} has gradients for {', '.join(differentiable)}; received {item!r}"
            )
        chosen.append(operand)
    return _strings(where, "gradients", chosen)


def _limits(where: str, limit: Any, dtypes: tuple[str, ...]) -> dict[str, float]:
    if not isinstance(limit, Mapping):
        return dict.fromkeys(dtypes, _limit(where, limit))
    if set(limit) != set(dtypes):
        raise UsageError(
            f"{where}: max_ulp names one limit per dtype, {', '.join(dtypes)}; received {', '.join(map(str, limit))}"
        )
    return {dtype: _limit(where, limit[dtype]) for dtype in dtypes}


def _limit(where: str, limit: Any) -> float:
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0.5 or math.isinf(limit):
        raise UsageError(f"{where}: max_ulp is a finite number of at least 0.5; received {limit!r}")
    return float(limit)


def _accepted(function: Callable[..., Any], op: Op) -> frozenset[str]:
    if isinstance(getattr(function, "__self__", None), type):
        return frozenset()  # Function.apply: its signature says **kwargs, its forward takes none
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        names |= set(op.params)
    return frozenset(names & set(op.params))


def expected_shape(op: Op, dims: Shape, params: Params, output: str) -> Shape:
    """The shape of an output: the dims themselves, except for contractions, whose dims are (M, K, N)."""
    if op.kind != "contraction":
        return tuple(dims)
    if output == "y":
        return (dims[0], dims[2])
    return (dims[0], op.shapes(dims, params)["weight"][0])


# -- discovery ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What the user named: a file or module, and optionally one kernel in it."""

    source: str
    kernel: str | None = None

    @staticmethod
    def parse(text: str) -> Target:
        """FILE, FILE::KERNEL, MODULE or MODULE::KERNEL; KERNEL may end in @eager or @compile (`verify.standin`)."""
        source, separator, label = text.partition("::")
        if not source or (separator and not label):
            raise UsageError(f"a target is FILE, MODULE, FILE::KERNEL or MODULE::KERNEL; received {text!r}")
        return Target(source, label or None)

    @property
    def is_file(self) -> bool:
        return self.source.endswith(".py") or os.sep in self.source


def load(target: Target) -> list[Kernel]:
    """The kernels of a target, in the order of their definition."""
    module = _import(target)
    found = [value for value in vars(module).values() if isinstance(value, Kernel) and value.module == module.__name__]
    unique = list({id(item): item for item in found}.values())
    names = [item.name for item in unique]
    for label in names:
        if names.count(label) > 1:
            raise UsageError(f"{target.source} declares two kernels named {label!r}; names must differ")
    if not unique:
        raise UsageError(
            f"{target.source} declares no kernel",
            hint="decorate a function with @verify.kernel(op=...); `verify list --ops` names the ops",
        )
    if target.kernel is None:
        return unique
    chosen = [item for item in unique if item.name == target.kernel]
    label, separator, form = target.kernel.rpartition("@")
    if separator and not chosen:
        from verify.standin import stand_in  # it imports this module

        chosen = [stand_in(item, form) for item in unique if item.name == label]
    if not chosen:
        raise UsageError(
            f"{target.source} has no kernel {target.kernel!r}; it declares: {', '.join(names)}",
            hint=f"verify list {target.source}",
        )
    return chosen


def _import(target: Target) -> ModuleType:
    if target.is_file:
        path = Path(target.source).resolve()
        if not path.is_file():
            raise UsageError(f"no such file: {target.source}", hint="verify list  (everything configured)")
        return _import_file(path, target.source)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(target.source)
    except ModuleNotFoundError as error:
        if error.name and (target.source == error.name or target.source.startswith(error.name + ".")):
            raise UsageError(
                f"no module named {target.source!r}",
                hint="a file is named with its ending: verify run accuracy.py",
            ) from error
        raise UsageError(_import_failure(target.source, error)) from error
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(_import_failure(target.source, error)) from error


def _import_file(path: Path, shown: str) -> ModuleType:
    project = next((p for p in path.parents if (p / "pyproject.toml").exists()), path.parent)
    for folder in (str(project), str(path.parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    # a name of its own: two accuracy.py in two folders are two modules
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    label = f"verify_target_{path.stem.replace('.', '_')}_{digest}"
    if label in sys.modules:
        return sys.modules[label]
    spec = importlib.util.spec_from_file_location(label, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{shown} cannot be imported as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module
    try:
        spec.loader.exec_module(module)
    except UsageError:
        del sys.modules[label]
        raise
    except Exception as error:
        del sys.modules[label]
        raise UsageError(_import_failure(shown, error)) from error
    return module


def _import_failure(shown: str, error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}:{error.lineno})"
    text = " ".join(str(error).split()) or "no message"
    return f"{shown} fails on import: {type(error).__name__}: {text}{place}"
