"""The declaration of a kernel under test.

    @verify.kernel(op="gelu", params={"approximate": "tanh"}, dtypes=["bfloat16", "float32"])
    def my_gelu(x):
        return fast_gelu(x)

A declaration says which operation the kernel computes and what it promises. The decorated name stays
callable. Tensors arrive positionally in the op's order; parameters arrive by keyword where the function
accepts them, else they are taken to be baked in.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

import msgspec

from verify import ops
from verify.backends import known
from verify.declare import promises
from verify.declare.calling import by_operand, op_of
from verify.declare.quantiser import quantiser
from verify.declare.writing import functional
from verify.errors import UsageError
from verify.ops.geometry import Params, Shape
from verify.ops.graph.shapes import check, holds
from verify.ops.op import Largest, Op, Operand, largest_words, up_to
from verify.records.record import ORDINARY
from verify.truth.formats import FORMATS, named, torch_dtype
from verify.truth.quantised.encoding import Encoding
from verify.truth.ulp import Policy

LAYOUTS = ("any", "contiguous")
DEFAULT_DTYPES = ("float32", "bfloat16", "float16")

# by module and function, the lines where a kernel of that name is declared: of two the module has only the second left
declared_lines: dict[str, dict[str, set[int]]] = {}


def _elsewhere(*arguments: Any, **keywords: Any) -> Any:
    raise RuntimeError("this process judges the kernel, another one calls it")


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
    backends: tuple[str, ...]  # where it can run; everywhere if empty
    peer: bool
    policy: Policy
    module: str
    file: str
    summary: str = ""
    accepted: frozenset[str] = field(default_factory=frozenset)
    requires: tuple[str, ...] = ()
    largest: Mapping[str, Largest] = field(default_factory=dict)  # by dtype: see `Largest`
    class_limits: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # by dtype, then by class
    where: str = ""  # a condition on sizes, of an op that verify names: see `Geometry.sizes`
    refuses: bool = True
    # by the dtype of a case, then by name: what has another one
    operand_dtypes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    output_dtypes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    max_noise: Mapping[str, float] = field(default_factory=dict)  # by result
    max_bias: Mapping[str, float] = field(default_factory=dict)  # by result
    vacuous: Mapping[str, str] = field(default_factory=dict)  # by result, why a vacuous verdict on it is accepted
    encoding: Encoding | None = None  # of what a quantiser returns

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calling = getattr(self.function, "calling", None)
        return (calling.function if calling else self.function)(*args, **kwargs)

    def described(self) -> dict[str, Any]:
        """The declaration without the function, as JSON: for a process that does not import the kernel's module."""
        names = [item.name for item in dataclasses.fields(self) if item.name not in ("function", "encoding")]
        fields = {name: getattr(self, name) for name in names}
        return dict(msgspec.to_builtins({**fields, "op": self.op.name}))

    @staticmethod
    def of_description(description: Mapping[str, Any]) -> Kernel:
        """The kernel of a description, which nobody can call here; its op is one of verify's own."""
        types = get_type_hints(Kernel)
        fields = {name: msgspec.convert(description[name], types[name]) for name in description if name != "op"}
        return Kernel(function=_elsewhere, op=ops.get(description["op"]), **fields)

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

    def operand_dtype(self, dtype: str, operand: str) -> str:
        """The dtype of an operand, and of its gradient, in the cases of a dtype."""
        return self.operand_dtypes.get(dtype, {}).get(operand, dtype)

    def result_dtype(self, dtype: str, result: str) -> str | None:
        """The dtype of a result in the cases of a dtype; None: a statistic, which may have any if none is declared."""
        if result not in self.outputs:
            return self.operand_dtype(dtype, result.removeprefix("d"))
        if result in self.op.integers:
            return "float64"  # compared as such
        return self.output_dtypes.get(dtype, {}).get(result, dtype if result == "y" else None)

    def torch_dtype(self, dtype: str, result: str) -> Any:
        """The same as PyTorch has it."""
        name = self.result_dtype(dtype, result)
        return None if name is None else torch_dtype(named(name))

    def mixed(self, dtype: str) -> dict[str, str]:
        """Operands and outputs that are declared with another dtype than that of the case."""
        some = [promises.differing(dtype, each.get(dtype, {})) for each in (self.operand_dtypes, self.output_dtypes)]
        return some[0] | some[1]

    def limit(self, dtype: str, result: str = "") -> float:
        """The error beyond which a result of ordinary inputs in a dtype is wrong by this kernel's own word.

        In the unit of the op's gate: ULP, or multiples of the program's noise.
        """
        by_noise = self.op.gate_of(result) == "noise"
        return self.noise_limit(dtype, result) if by_noise else self.ulp_limit(dtype, result)

    def limit_of(self, dtype: str, of_class: str, result: str = "") -> float | None:
        """The limit of a class of inputs in the same unit; None where nothing is promised."""
        name = self._limited(dtype, result)
        ulp = self.class_limits.get(name, {}).get(of_class, self.max_ulp[name])
        if ulp is None or self.op.gate_of(result) != "noise":
            return ulp
        ordinary = self.max_ulp[name]
        return self.noise_limit(dtype, result) * ((ulp - 0.5) / (ordinary - 0.5) if ordinary > 0.5 else 1.0)

    def ulp_limit(self, dtype: str, result: str = "") -> float:
        """The limit of ordinary inputs in ULP."""
        return self.max_ulp[self._limited(dtype, result)]

    def noise_limit(self, dtype: str, result: str) -> float:
        """The limit of a result of a program, in units of its noise beyond half a ULP."""
        default = promises.default_noise(self.result_dtype(dtype, result) or dtype)
        return self.max_noise.get(result, self.max_noise.get("", default))

    def noise_floor(self, dtype: str, result: str) -> float:
        """The least unit of such a result, in ULP: an error within `ulp_limit` is then within `noise_limit`."""
        return (self.ulp_limit(dtype, result) - 0.5) / self.noise_limit(dtype, result)

    def _limited(self, dtype: str, result: str) -> str:
        """The name under which a result's limits stand: its own, that of its dtype, or that of the case's dtype."""
        own = self.result_dtype(dtype, result) if result else None
        for name in (f"{result} {own or dtype}", own):
            if name in self.max_ulp:
                return str(name)
        return dtype

    def allows(self, dims: Sequence[int]) -> bool:
        """Whether sizes belong to the kernel's domain."""
        return self.op.geometry.allows(tuple(dims)) and holds(self.where, self.op.geometry.sizes_by_name(tuple(dims)))

    def promised_to(self, dtype: str, operand: str) -> float:
        """The magnitude of an operand up to which anything is promised."""
        return up_to(self.largest.get(dtype), operand)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Modules that this kernel requires and that are not installed: it is skipped, and not imported."""
        return tuple(name for name in self.requires if importlib.util.find_spec(name) is None)

    @property
    def promise(self) -> str:
        """One line on what is promised."""
        parts = [" ".join(self.dtypes), f"layouts: {self.layouts}"]
        if self.gradients == "auto":
            parts.append("gradients: where autograd gives one")
        else:
            parts.append("gradients: " + (" ".join("d" + name for name in self.gradients) or "none"))
        limits = promises.of_limits(self.max_ulp, self.max_noise, self.op.gate)
        parts.append(limits if self.encoding is None else f"quantises to {self.encoding.words}")
        for each in dict.fromkeys(map(promises.of_classes, self.class_limits.values())):
            where = [dtype for dtype, limits in self.class_limits.items() if promises.of_classes(limits) == each]
            everywhere = set(where) >= set(self.dtypes)
            parts.append(each if everywhere else f"{each} in {' '.join(where)}")
        parts += promises.of_others("", self.operand_dtypes)
        parts += promises.of_others("returns ", self.output_dtypes)
        if not self.refuses:
            parts.append("refuses nothing")
        if self.where:
            parts.append(f"sizes: {self.where}")
        if writing := getattr(self.function, "writing", None):
            parts.append("writes " + ", ".join((*writing.writes, *writing.into)))
        if self.op.domains:
            parts.append(f"domain: {self.op.domain_words}")
        if self.largest:
            parts.append(", ".join(f"{largest_words(size)} in {dtype}" for dtype, size in self.largest.items()))
        return "; ".join(parts)


def kernel(
    *received: object,
    op: str | Op | None = None,
    like: Callable[..., Any] | None = None,
    shapes: Mapping[str, str] | None = None,
    where: str = "",
    integers: Mapping[str, str] | None = None,
    examples: Any = None,
    params: Mapping[str, Any] | None = None,
    dtypes: Iterable[str] | None = None,
    operands: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    layouts: Literal["any", "contiguous"] = "any",
    gradients: bool | Iterable[str] | Literal["auto"] = "auto",
    max_ulp: float | Mapping[str, Any] | None = None,
    max_noise: float | Mapping[str, float] | None = None,
    max_bias: float | Mapping[str, float] | None = None,
    accumulate: Literal["float32", "tf32"] = "float32",
    intermediate: Literal["", "eager", "float32"] = "",
    vacuous: Mapping[str, str] | None = None,
    backends: Iterable[str] | None = None,
    peer: bool = False,
    policy: Policy | None = None,
    name: str | None = None,
    requires: str | Iterable[str] = (),
    largest: float | Mapping[str, float | Mapping[str, float]] | None = None,
    domain: Mapping[str, str] | None = None,
    writes: Mapping[str, str] | None = None,
    into: Iterable[str] | None = None,
    derive: Mapping[str, Callable[..., Any]] | None = None,
    refuses: bool = True,
    operand_dtypes: Mapping[str, Any] | None = None,
    output_dtypes: Mapping[str, Any] | None = None,
    quantise: Encoding | None = None,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare the function below as a kernel.

    op: the operation it computes, by name (`verify list --ops`).
    like: instead of op, a PyTorch function or module that says what the kernel computes (docs/like.md). Its shapes
        follow from shapes={"x": "n d", ...} in named dimensions or from examples=[(x, ...)] or a function that returns
        one; without both it is elementwise. integers= says what integer operands hold, {"label": "0 <= label < v"} or
        "bool". outputs= names what it returns.
    where: which sizes it takes, such as "d % 16 == 0 and d <= 4096", in the dimensions of shapes=. Of an op by name
        they are m rows of n columns, and their rank; m, k and n of a product. No others are tried.
    params: values of the op's parameters that this kernel implements.
    dtypes: the dtypes it promises, default float32, bfloat16, float16.
    operands: the operands it takes, default all of the op's; leave out optional ones such as "bias".
    outputs: the outputs it returns, default the op's without the optional ones.
    layouts: "any", or "contiguous" when it refuses other layouts with an error.
    gradients: "auto" (test those that autograd provides), True (all must exist), False, or operand names.
    max_ulp: the error beyond which a result is wrong by this kernel's own word; one number, or one per dtype, or one
        per class of inputs, {"ordinary": 0.51, "extreme": None}, or classes per dtype, or any of these per result,
        {"y": 1, "dsink": 8}. A class that is not named has the limit of the one before it, in the order ordinary,
        demanding, extreme; None promises nothing of it: there PyTorch's own result is the limit. Default 4 in float32
        and float64 (10 of an elementwise function by like=), 1 in 16 bits, 0.51 in 8 bits; with like= nothing is
        promised of extreme inputs by default.
    max_noise: with like=, how many times the program's own noise beyond half a ULP is right as well (docs/limits.md);
        one number, or one per result; default 8, in 16 bits 5.
    accumulate: with like=, what products are computed in: "tf32" grants operands of 10 bits to float32 ones.
    intermediate: with like=, what lies between operators: "eager" has the dtype of the case there, as eager PyTorch,
        "float32" demands that nothing in between is rounded to 16 bits, as in a fused kernel. Default "eager", and
        "float32" where max_ulp= promises a number of ULP.
    max_bias: the mean error away from zero beyond which a result is wrong, in ULP (of a program: in units of what its
        noise explains); one number, or one per result. Without it the bias is only reported.
    vacuous: results whose limit trivial answers would keep, and why that is accepted, {"dx": "saturated"}.
    backends: where it can run, such as "cuda"; without it everywhere. Elsewhere it is skipped and the reason reported.
    peer: measured and shown for comparison, never judged (PyTorch's own kernel, a competitor).
    policy: what counts as an error where IEEE leaves room, see `verify.Policy`.
    requires: packages that the function imports; where one is not installed the kernel is skipped and says so.
    largest: the magnitude of inputs up to which the limit is promised: one number, one per dtype, one per operand
        (`{"x": 100.0}`), or one per operand of a dtype (`{"float16": {"x": 100.0}}`); default all finite
        ones. Cases have no larger ones, hunts search none, and where all inputs are tried those beyond are not judged.
    domain: the numbers that operands hold, `{"v": "0 <= v", "g": "-8 <= g < 0"}`, by one bound or two. Cases and hunts
        stay inside; where all inputs are tried those outside are not judged. NaN and infinities are in no domain.
    writes: with like=, operands that the kernel writes into and the results that it leaves there, `{"p": "p_"}`.
    derive: with like=, operands that are computed from others, `{"offsets": lambda lengths: ...}`.
    into: with like=, arguments that are buffers for the results of these names, `["y"]`.
    operand_dtypes: operands that have another dtype than the case, `{"weight": "float32"}`, and so their gradients; by
        the dtype of the case where it matters, `{"bfloat16": {"weight": "float32"}}`.
    output_dtypes: the same of outputs, `{"rstd": "float32"}`: each is judged in ULP of its own dtype, and by the limit
        that max_ulp names for it. Without it y has the dtype of the case, and a statistic any.
    refuses: whether it may raise an error on a case, which is reported as a limit of it; False promises to take all.
    quantise: `verify.quantised(...)` says what codes and scales the kernel returns, of x or, with like=, of its result
        (docs/low-precision.md).
    """
    if quantise is not None:
        quantise, like, shapes, where, operands = quantiser(quantise, like, shapes, where, operands, op)
        gradients = False
    # the declaring module, not the function's: a library function may be declared as it is
    caller = sys._getframe(1).f_globals
    module, file = caller.get("__name__", ""), caller.get("__file__", "")
    named_op = _op(received, op) if like is None else ""
    alone = {
        "shapes": shapes,
        "integers": integers,
        "examples": examples is not None,
        "accumulate": accumulate != "float32",
        "intermediate": intermediate,
        "writes": writes,
        "into": into,
        "derive": derive,
    }
    if like is None and (named_alone := [f"{name}=" for name, value in alone.items() if value]):
        raise UsageError(
            f"an op by name has no use for {', '.join(named_alone)}, which belong to like=",
            hint="@verify.kernel(like=function, ...)",
        )
    if like is not None and (received or op is not None or params):
        raise UsageError(
            "like= says what the kernel computes, so that there is neither op= nor params=",
            hint="@verify.kernel(like=functools.partial(function, eps=1e-6)) fixes a parameter of the function",
        )

    def declare(function: Callable[..., Any]) -> Kernel:
        label = name or getattr(function, "__name__", None) or "kernel"
        about = f"kernel {label!r}"
        if not isinstance(label, str) or "::" in label or label.encode(errors="ignore").decode() != label:
            raise UsageError(
                f"{about}: a name is Unicode text without ::", hint='@verify.kernel(op=..., name="another_name")'
            )
        if not callable(function):
            raise UsageError(
                f"{about}: @verify.kernel decorates a function; received {function!r}",
                hint="def my_kernel(x): ... below it, or verify.kernel(op=...)(function)",
            )
        if isinstance(function, type):
            raise UsageError(
                f"{about}: @verify.kernel decorates a function; received the class {function.__name__}",
                hint=f"decorate a function that calls it, as in: def my_kernel(x): return {_called(function)}",
            )
        taken, called, returns, grads = operands, function, outputs, gradients
        if like is not None and (writes or into):
            called, returns, grads = *functional(about, function, like, writes, into, outputs, gradients), False
        if like is not None:
            written = by_operand(about, called, like, shapes, derive)
            called = written.function
            said = {
                "derive": derive,
                "where": where,
                "integers": integers,
                "examples": examples,
                "accumulate": promises.choice(about, "accumulate", accumulate, ("float32", "tf32")),
                "intermediate": promises.choice(about, "intermediate", intermediate, ("", "eager", "float32"))
                or ("" if max_ulp is None else "float32"),
            }
            definition = op_of(label, written, operands, returns, said)
            taken = None
        else:
            definition = named_op if isinstance(named_op, Op) else ops.get(named_op)
        definition.resolve(params or {})
        taken = _operands(about, definition, taken)
        promised = _dtypes(about, dtypes)
        returned = _outputs(about, definition, returns)
        floating = [o.name for o in definition.operands if o.name in taken and not o.range]
        of_operands = promises.other_dtypes(about, "operand_dtypes", operand_dtypes, promised, floating)
        magnitudes = promises.largest(about, largest, promised, floating)
        definition = promises.domains(about, domain, definition, floating, promised, of_operands, magnitudes)
        numbers = [item for item in returned if item not in definition.integers]
        of_outputs = promises.other_dtypes(about, "output_dtypes", output_dtypes, promised, numbers)
        others = [item for each in (*of_operands.values(), *of_outputs.values()) for item in each.values()]
        results = [*returned, *(f"d{name}" for name in taken)]
        beyond = promises.WIDE if like is not None and definition.gate == "plain" else promises.DEFAULT_LIMIT
        relative = like is not None and quantise is None
        limits = promises.limits(about, max_ulp, promised, others, results, wide=beyond, relative=relative)
        declared = Kernel(
            name=label,
            function=called,
            op=definition,
            params=dict(params or {}),
            dtypes=promised,
            operands=taken,
            outputs=returned,
            layouts=promises.choice(about, "layouts", layouts, LAYOUTS),
            gradients=_gradients(about, definition, grads, taken),
            max_ulp={dtype: each[ORDINARY] or 0.0 for dtype, each in limits.items()},
            where="" if like is not None or not where else _where(about, definition, where),
            refuses=bool(refuses),
            class_limits={dtype: each for dtype, each in limits.items() if len(set(each.values())) > 1},
            backends=promises.strings(about, "backends", backends, known()) if backends is not None else (),
            peer=bool(peer),
            policy=policy or Policy(),
            module=module,
            file=file,
            summary=(inspect.getdoc(function) or "").split("\n", 1)[0],
            accepted=_accepted(called, definition),
            requires=promises.required(about, requires, file),
            largest=magnitudes,
            operand_dtypes=of_operands,
            output_dtypes=of_outputs,
            max_noise=promises.noise(about, max_noise, definition.gate, results),
            max_bias=promises.by_result(about, "max_bias", max_bias, results),
            vacuous=promises.reasons(about, vacuous, results),
            encoding=quantise,
        )
        _takes(about, declared)
        code = getattr(function, "__code__", None)
        if code is not None and getattr(function, "__module__", None) == module:
            declared_lines.setdefault(module, {}).setdefault(function.__qualname__, set()).add(code.co_firstlineno)
        return declared

    return declare


# -- checks: each states the rule and what was received -------------------------------------------------


def _op(received: tuple[object, ...], op: str | Op | None) -> str | Op:
    """The op of a declaration; without one, what was written instead and what to write."""
    if received or op is None:
        first = received[0] if received else "no op"
        name = getattr(first, "__name__", None) if callable(first) else None
        raise UsageError(
            "@verify.kernel takes keyword arguments, and op= is the one that it needs; received "
            + (f"the function {name!r}" if name else str(first) if first == "no op" else repr(first)),
            hint=f"@verify.kernel(op={first if isinstance(first, str) and received else 'gelu'!r}) above the function; "
            "`verify list --ops` names the ops",
        )
    if not isinstance(op, str | Op):
        raise UsageError(
            f"op is the name of an op; received {op!r}",
            hint="verify list --ops, or like=FUNCTION: the PyTorch function that says what is right (docs/like.md)",
        )
    return op


def _called(kind: type) -> str:
    from torch.autograd import Function

    return f"{kind.__name__}.apply(x)" if issubclass(kind, Function) else f"{kind.__name__}()(x)"


def _takes(where: str, declared: Kernel) -> None:
    """Refuse a function that cannot be called as it will be: the operands by position, then parameters by keyword."""
    function, op, operands, accepted = declared.function, declared.op, declared.operands, declared.accepted
    if isinstance(getattr(function, "__self__", None), type):
        return  # Function.apply takes whatever comes
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*operands, **dict.fromkeys(accepted))
    except TypeError as error:
        optional = [operand.name for operand in op.operands if operand.optional]
        positional = [
            item.name
            for item in signature.parameters.values()
            if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD) and item.name not in op.params
        ]
        known = [operand.name for operand in op.operands]
        hint = f"verify list --op {op.name}"
        if optional and positional and set(known) - set(optional) <= set(positional) < set(known):
            chosen = [item for item in known if item in positional]
            hint = f"operands={chosen!r} in the declaration, if the kernel takes no more"
        raise UsageError(
            f"{where}: it is called with the tensors {', '.join(operands)} by position"
            + (f" and {', '.join(sorted(accepted))} by keyword" if accepted else "")
            + f"; received a function that takes {signature}: {error}",
            hint=hint,
        ) from None


def _dtypes(where: str, dtypes: Iterable[str] | None) -> tuple[str, ...]:
    if dtypes is None:
        return DEFAULT_DTYPES
    names = []
    for item in promises.strings(where, "dtypes", dtypes):
        try:
            names.append(named(item).name)
        except UsageError:
            raise UsageError(
                f"{where}: dtypes are floating-point formats, {', '.join(FORMATS)}; received {item!r}",
                hint=f"dtypes={list(DEFAULT_DTYPES)!r}, which is also what is measured without dtypes=",
            ) from None
    return tuple(names)


def _operands(where: str, op: Op, operands: Iterable[str] | None) -> tuple[str, ...]:
    known = [operand.name for operand in op.operands]
    if operands is None:
        return tuple(known)
    chosen = promises.strings(where, "operands", operands)
    for item in chosen:
        if item not in known:
            raise UsageError(
                f"{where}: op {op.name!r} has operands {', '.join(known)}; received {item!r}",
                hint=f"verify list --op {op.name}",
            )
    for operand in op.operands:
        if not operand.optional and operand.name not in chosen:
            raise UsageError(
                f"{where}: op {op.name!r} requires operand {operand.name!r}; operands omits it",
                hint=f"operands={[item.name for item in op.operands if not item.optional or item.name in chosen]!r}",
            )
    return tuple(item for item in known if item in chosen)


def _outputs(where: str, op: Op, outputs: Iterable[str] | None) -> tuple[str, ...]:
    known = op.all_outputs
    if outputs is None:
        return op.required_outputs
    chosen = promises.strings(where, "outputs", outputs)
    for item in chosen:
        if item not in known:
            raise UsageError(
                f"{where}: op {op.name!r} has outputs {', '.join(known)}; received {item!r}",
                hint=f"verify list --op {op.name}",
            )
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
    for item in promises.strings(where, "gradients", gradients):
        operand = item if item in differentiable else item.removeprefix("d")
        if operand not in differentiable:
            raise UsageError(
                f"{where}: op {op.name!r} has gradients for {', '.join(differentiable)}; received {item!r}",
                hint='gradients=True (all), False (none), "auto" (those that autograd gives) or a list of operands',
            )
        chosen.append(operand)
    return promises.strings(where, "gradients", chosen)


def _where(about: str, op: Op, text: str) -> str:
    try:
        check(text, op.geometry.sizes)
    except UsageError as error:
        raise UsageError(f"{about}: {error.message}", hint="where='n <= 65536', where='rank == 2'") from None
    return text


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
    """Returns the shape of an output."""
    return op.result_shapes(dims, params)[output]


def shapes_of(op: Op, dims: Shape, params: Params, outputs: Iterable[str]) -> dict[str, Shape]:
    """Of the operands, and as "d" + output of outputs and the gradients that arrive there."""
    results = op.result_shapes(dims, params)
    return op.shapes(dims, params) | {"d" + name: results[name] for name in outputs}
