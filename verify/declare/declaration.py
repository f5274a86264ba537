"""Declares a kernel under test.

    @verify.kernel(op="gelu", params={"approximate": "tanh"}, dtypes=["bfloat16", "float32"])
    def my_gelu(x):
        return fast_gelu(x)

A declaration names the operation that the kernel computes, and its promises. The decorated name stays callable. Tensors
arrive by position in the op's order. Parameters arrive by keyword if the function accepts them. If it does not, its
parameters must be fixed inside.
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
from verify.declare.calling import accepted, by_operand, functional, op_of, recorded
from verify.declare.captured import captured
from verify.declare.quantiser import Encoded, encoded, quantiser
from verify.errors import UsageError
from verify.ops.graph.relative import RelativeRms
from verify.ops.graph.rounding import Accumulate
from verify.ops.graph.shapes import holds
from verify.ops.op import Largest, Op, Operand, largest_words, up_to
from verify.records.record import ORDINARY
from verify.truth.formats import named, torch_dtype
from verify.truth.quantised.encoding import Encoding
from verify.truth.ulp import Policy

LONGEST_NAME = 200  # bytes; a file of bounds or a part of a night has the name of a kernel
DEFAULT_DTYPES = ("float32", "bfloat16", "float16")
_OF_LIKE = (  # options that only a declaration by like= has
    *("shapes", "integers", "valid", "examples", "accumulate", "intermediate", "ties"),
    *("writes", "into", "derive", "stochastic", "draws", "promise", "inputs"),
)

# By module and function, the lines that declare a kernel of that name: the module itself keeps only the last one.
declared_lines: dict[str, dict[str, set[int]]] = {}


def _elsewhere(*arguments: Any, **keywords: Any) -> Any:
    raise RuntimeError("this process judges the kernel, another one calls it")


@dataclass(frozen=True)
class Kernel:
    """Describes one implementation under test. `verify.kernel` makes it; calling it calls the function."""

    name: str
    function: Callable[..., Any]
    op: Op
    params: Mapping[str, Any]
    dtypes: tuple[str, ...]
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    contiguous: tuple[str, ...]  # operands that it refuses in another layout
    gradients: tuple[str, ...] | Literal["auto"]
    max_ulp: Mapping[str, float]
    backends: tuple[str, ...]  # backends on which it can run; empty: all
    peer: bool
    policy: Policy
    module: str
    file: str
    summary: str = ""
    accepted: frozenset[str] = field(default_factory=frozenset)
    requires: tuple[str, ...] = ()
    largest: Mapping[str, Largest] = field(default_factory=dict)  # by dtype: see `Largest`
    class_limits: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # by dtype, then by class
    where: str = ""  # a condition on sizes, for an op of verify: see `Geometry.sizes`
    refuses: bool | None = None  # None: undeclared, so that cases that it refuses have no verdict
    # By the dtype of a case, then by name: operands or outputs with another dtype.
    operand_dtypes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    integer_dtypes: Mapping[str, str] = field(default_factory=dict)  # default int64
    output_dtypes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    max_noise: Mapping[str, float] = field(default_factory=dict)  # by result
    beside_noise: bool = False  # True: an elementwise program whose default limit in ULP has one in noise beside it
    max_bias: Mapping[str, float] = field(default_factory=dict)  # by result
    vacuous: Mapping[str, str] = field(default_factory=dict)  # by result: why a vacuous verdict is accepted
    encoding: Encoding | None = None  # what a quantiser returns
    stochastic: Mapping[str, str] = field(default_factory=dict)  # results that are rounded at random -> their seed
    draws: Mapping[str, str] = field(default_factory=dict)  # results that are drawn -> their seed, or ""
    relative: Mapping[str, RelativeRms] = field(default_factory=dict)  # results with a promise of whole rows
    encoded: Encoded | None = None  # its quantised operands
    same_bits: tuple[str, ...] = ()  # settings that change no bit: words of `promises.SETTINGS`, or "as NAME"
    same_bits_as: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # "as NAME" -> the function
    rounds: str = ""  # where it rounds to 16 bits: `promises.AS_LIKE`, `promises.ONCE`, or no promise
    models: tuple[str, ...] = ()  # it is measured at their sizes too
    sizes: Mapping[str, str] = field(default_factory=dict)  # dimension -> its role in a model, if its name says none

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calling = getattr(self.function, "calling", None)
        return (calling.function if calling else self.function)(*args, **kwargs)

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return f"<Kernel {self.name}: {self.op.name}{f'({params})' if params else ''}\n {self.promise}>"

    def described(self) -> dict[str, Any]:
        """Returns the declaration as JSON, without the function, for processes that do not import its module."""
        left = ("function", "encoding", "encoded", "same_bits_as")
        names = [item.name for item in dataclasses.fields(self) if item.name not in left]
        fields = {name: getattr(self, name) for name in names}
        return dict(msgspec.to_builtins({**fields, "op": self.op.name}))

    @staticmethod
    def of_description(description: Mapping[str, Any]) -> Kernel:
        """Returns the kernel of a description. This process cannot call it. Its op must be one of verify's own."""
        types = get_type_hints(Kernel)
        fields = {name: msgspec.convert(description[name], types[name]) for name in description if name != "op"}
        return Kernel(function=_elsewhere, op=ops.get(description["op"]), **fields)

    @property
    def absent(self) -> tuple[str, ...]:
        """Returns the optional operands that this kernel does not take."""
        return tuple(o.name for o in self.op.operands if o.name not in self.operands)

    @property
    def differentiable(self) -> tuple[Operand, ...]:
        """Returns the operands for which the op defines a gradient and the kernel may have one."""
        return tuple(
            each
            for each in self.op.operands
            if each.differentiable and each.name in (self.operands if self.gradients == "auto" else self.gradients)
        )

    def operand_dtype(self, dtype: str, operand: str) -> str:
        """Returns the dtype of an operand, and of its gradient, in the cases of a dtype."""
        return self.operand_dtypes.get(dtype, {}).get(operand, dtype)

    def result_dtype(self, dtype: str, result: str) -> str | None:
        """Returns the dtype of a result in the cases of a dtype. None: any, for an undeclared statistic."""
        if result not in self.outputs:
            return self.operand_dtype(dtype, result.removeprefix("d"))
        if result in self.op.integers:
            return "float64"  # integers are compared in this dtype
        return self.output_dtypes.get(dtype, {}).get(result, dtype if result == "y" else None)

    def torch_dtype(self, dtype: str, result: str) -> Any:
        """Returns the same as a PyTorch dtype."""
        name = self.result_dtype(dtype, result)
        return None if name is None else torch_dtype(named(name))

    def captured_dtypes(self, dtype: str) -> dict[str, Any]:
        """Maps the floating-point operands to PyTorch's dtypes in the cases of a dtype."""
        names = [each.name for each in self.op.operands if each.name in self.operands and each.range is None]
        return _kinds(dtype, names, self.operand_dtypes)

    def mixed(self, dtype: str) -> dict[str, str]:
        """Returns the operands and outputs that are declared with another dtype than that of the case."""
        some = [promises.differing(dtype, each.get(dtype, {})) for each in (self.operand_dtypes, self.output_dtypes)]
        return some[0] | some[1]

    def limit(self, dtype: str, result: str = "", among: int = 0) -> float:
        """Returns the declared error beyond which a result of ordinary inputs in a dtype is wrong.

        Its unit is that of the op's gate: ULP, or multiples of the program's noise. A default in noise depends on the
        number of elements `among` which the error is the largest.
        """
        by_noise = self.op.gate_of(result) == "noise"
        return self.noise_limit(dtype, result, among) if by_noise else self.ulp_limit(dtype, result)

    def limit_of(self, dtype: str, of_class: str, result: str = "", among: int = 0) -> float | None:
        """Returns the limit of a class of inputs in the same unit. None: the class has no promise."""
        name = self._limited(dtype, result)
        ulp = self.class_limits.get(name, {}).get(of_class, self.max_ulp[name])
        if ulp is None or self.op.gate_of(result) != "noise":
            return ulp
        ordinary = self.max_ulp[name]
        return self.noise_limit(dtype, result, among) * ((ulp - 0.5) / (ordinary - 0.5) if ordinary > 0.5 else 1.0)

    def ulp_limit(self, dtype: str, result: str = "") -> float:
        """Returns the limit of ordinary inputs in ULP."""
        return self.max_ulp[self._limited(dtype, result)]

    def noise_limit(self, dtype: str, result: str, among: int = 0) -> float:
        """Returns the limit of a result of a program, in units of its noise beyond half a ULP."""
        default = promises.default_noise(self.result_dtype(dtype, result) or dtype, among)
        return self.max_noise.get(result, self.max_noise.get("", default))

    def noise_floor(self, dtype: str, result: str) -> float:
        """Returns the least unit of a result, in ULP, so that `ulp_limit` is `noise_limit`; 0: noise does not count."""
        counts = self.op.gate_of(result) == "noise" or self.beside_noise
        return (self.ulp_limit(dtype, result) - 0.5) / self.noise_limit(dtype, result) if counts else 0.0

    def _limited(self, dtype: str, result: str) -> str:
        """Returns the key of a result's limits: its own, that of its dtype, or that of the case's dtype."""
        own = self.result_dtype(dtype, result) if result else None
        for name in (f"{result} {own or dtype}", own):
            if name in self.max_ulp:
                return str(name)
        return dtype

    def allows(self, dims: Sequence[int]) -> bool:
        """True if sizes belong to the kernel's domain."""
        return self.op.geometry.allows(tuple(dims)) and holds(self.where, self.op.geometry.sizes_by_name(tuple(dims)))

    def promised_to(self, dtype: str, operand: str) -> float:
        """Returns the magnitude of an operand up to which the kernel promises anything."""
        return up_to(self.largest.get(dtype), operand)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Returns the required modules that are not installed. The kernel is then skipped."""
        return tuple(name for name in self.requires if importlib.util.find_spec(name) is None)

    @property
    def promise(self) -> str:
        """Describes the promise in one line."""
        parts = [" ".join(self.dtypes), promises.of_layouts(self.contiguous, self.operands)]
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
        parts += promises.of_others("", self.operand_dtypes, self.integer_dtypes)
        parts += promises.of_others("returns ", self.output_dtypes)
        parts += [f"{name} is {each.words}" for name, each in (self.encoded.encodings if self.encoded else {}).items()]
        if self.refuses is False:
            parts.append("refuses nothing")

        def seeded(seeds: Mapping[str, str]) -> str:
            return ", ".join(f"{name} by {seed}".removesuffix(" by ") for name, seed in seeds.items())

        writing = getattr(self.function, "writing", None)
        facts = [
            ("rounds at random: ", seeded(self.stochastic)),
            ("draws ", seeded(self.draws)),
            *((f"{name} ", each.words) for name, each in self.relative.items()),
            ("same bits: ", ", ".join(self.same_bits)),
            ("rounds ", self.rounds),
            ("ties ", self.op.meaning.ties),
            ("sizes: ", self.where),
            ("at the sizes of ", ", ".join(self.models)),
            ("writes ", ", ".join((*writing.writes, *writing.into)) if writing else ""),
            ("domain: ", self.op.domain_words if self.op.domains else ""),
            ("valid: ", self.op.regions.words if self.op.regions else ""),
            ("", ", ".join(f"{largest_words(size)} in {dtype}" for dtype, size in self.largest.items())),
        ]
        return "; ".join([*parts, *(verb + words for verb, words in facts if words)])


@recorded
def kernel(
    *received: object,
    op: str | Op | None = None,
    like: Callable[..., Any] | None = None,
    shapes: Mapping[str, str] | None = None,
    where: str = "",
    integers: Mapping[str, str] | None = None,
    valid: Mapping[str, str] | None = None,
    examples: Any = None,
    params: Mapping[str, Any] | None = None,
    dtypes: Iterable[str] | None = None,
    operands: Iterable[str] | Mapping[str, Encoding] | None = None,
    outputs: Iterable[str] | None = None,
    layouts: str | Mapping[str, str] = "any",
    gradients: bool | Iterable[str] | Literal["auto"] = "auto",
    max_ulp: float | Mapping[str, Any] | None = None,
    max_noise: float | Mapping[str, float] | None = None,
    max_bias: float | Mapping[str, float] | None = None,
    accumulate: Accumulate = "float32",
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
    refuses: bool | None = None,
    operand_dtypes: Mapping[str, Any] | None = None,
    output_dtypes: Mapping[str, Any] | None = None,
    quantise: Encoding | None = None,
    stochastic: str | Mapping[str, str] | None = None,
    draws: str | Mapping[str, str] | None = None,
    promise: RelativeRms | Mapping[str, RelativeRms] | None = None,
    inputs: str | None = None,
    same_bits: Iterable[str] = (),
    same_bits_as: Callable[..., Any] | Iterable[Callable[..., Any]] = (),
    rounds: Literal["", "as like", "once"] = "",
    ties: Literal["", "as like"] = "",
    sizes: str | Iterable[str] | Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Declares the function below as a kernel.

    op: the operation that it computes, by name (`verify list --ops`).
    like: instead of op, a PyTorch function or module that defines what the kernel computes (docs/like.md). Its shapes
        follow from shapes={"x": "n d", ...} in named dimensions, or from examples=[(x, ...)] or a function that returns
        one. Without both it is elementwise. integers= describes the values of integer operands,
        {"label": "0 <= label < v"} or "bool". outputs= names its results.
    where: the sizes that it accepts, such as "d % 16 == 0 and d <= 4096", in the dimensions of shapes=. For an op by
        name the dimensions are m rows of n columns, and their rank; m, k and n of a product. No others are tried.
    params: values of the op's parameters that this kernel implements.
    dtypes: the dtypes that it promises, default float32, bfloat16, float16; one for a kernel of integers alone.
    operands: the operands that it takes, default all of the op's. Leave out optional ones such as "bias". With like=,
        the quantised ones, `{"w": verify.quantised(...)}`: the kernel receives w_codes and w_scales, and like= receives
        the numbers that they mean (docs/low-precision.md).
    outputs: the outputs that it returns, default the op's without the optional ones.
    layouts: "any", or "contiguous" if it refuses other layouts with an error; or by operand, `{"q": "contiguous"}`.
    gradients: "auto" (test those that autograd provides), True (all must exist), False, or operand names.
    max_ulp: the error beyond which a result is wrong. One number, or one per dtype, or one per class of inputs,
        {"ordinary": 0.51, "extreme": None}, or classes per dtype, or any of these per result, {"y": 1, "dsink": 8}. A
        class that is not named has the limit of the one before it, in the order ordinary, demanding, extreme. None is
        no promise, and no verdict but at infinite and NaN inputs where PyTorch's result is right. Default 4 in float32
        and float64 (8 of norms, softmax and products by name, 10 of an elementwise function by like=), 1 in 16 bits,
        0.51 in 8 bits. With like= the default promises nothing of extreme inputs.
    max_noise: with like=, the multiple of the program's own noise beyond half a ULP that is also right
        (docs/limits.md). One number, or one per result; default 8, in 16 bits 5.
    accumulate: with like=, the format in which products are computed: "tf32" allows operands of 10 bits for float32.
        "14 bits" allows sums of 14 bits, as Hopper's tensor cores add products of FP8, and "14 bits, promoted every
        128" the same for 128 products at a time, whose sums are added in float32.
    intermediate: with like=, the format between operators: "eager", the dtype of the case, or "float32", as in a fused
        kernel. Default "eager", and "float32" if max_ulp= promises a number of ULP without max_noise=.
    max_bias: the mean error away from zero beyond which a result is wrong, in ULP: an element that is rounded wrongly
        counts one. One number, or one per result; default 0.25 up to 16 bits, none beyond.
    vacuous: results whose limit trivial answers would keep, and the reason to accept that, {"dx": "saturated"}.
    backends: where it can run, such as "cuda"; default everywhere. Elsewhere it is skipped, with the reason.
    peer: measured and shown for comparison, never judged (PyTorch's own kernel, a competitor).
    policy: the definition of an error where IEEE leaves room, see `verify.Policy`.
    requires: packages that the function imports. If one is not installed, the kernel is skipped, with the reason.
    largest: the magnitude of inputs up to which the limit is promised: one number, one per dtype, one per operand
        (`{"x": 100.0}`), or one per operand of a dtype (`{"float16": {"x": 100.0}}`). Default all finite numbers. Cases
        have no larger inputs, hunts search none, and larger ones are not judged where all inputs are tried.
    domain: the numbers that operands hold, `{"v": "0 <= v", "g": "-8 <= g < 0"}`, by one bound or two. Cases and hunts
        stay inside. Numbers outside are not judged where all inputs are tried. No domain has NaN and infinities.
    valid: with like=, the parts of results and operands that count, {"y": "s < lengths"} (docs/like.md).
    writes: with like=, operands that the kernel writes into, and the results that it writes there, `{"p": "p_"}`.
    derive: with like=, operands that are computed from others, `{"offsets": lambda lengths: ...}`.
    into: with like=, arguments that are buffers for the results of these names, `["y"]`.
    operand_dtypes: operands that have another dtype than the case, `{"weight": "float32"}`; their gradients have it
        too. Or by the dtype of the case, `{"bfloat16": {"weight": "float32"}}`. Integer ones have int64 without it.
    output_dtypes: the same for outputs, `{"rstd": "float32"}`. Each is judged in ULP of its own dtype, and by the limit
        of that dtype in max_ulp. Without it y has the dtype of the case, and a statistic any.
    refuses: True: it may raise an error on a case, which is reported as its limit. False promises to accept all cases.
        Without it, cases on which it raises have no verdict.
    inputs: with like=, a file of captured operands, `"acts.safetensors"`, beside the declaring file. They are
        measured too, with results of their own. `verify.capture` writes such a file.
    stochastic: with like=, the operand that seeds the rounding of all outputs, `"seed"`, or of some, `{"p_": "seed"}`.
        Such a result is one of the two neighbours of the exact number (docs/like.md).
    draws: with like=, results that are drawn from the probabilities that like= returns in their place, "y", or with the
        operand that seeds the draws, {"y": "seed"} (docs/like.md).
    promise: with like=, `verify.relative_rms(0.02)` for all outputs, or for some, `{"y": ...}`: the error that a row, a
        head or the tensor may have on ordinary inputs, in place of a limit of each element (docs/like.md).
    same_bits: settings that change no bit of a result, such as ["rows", "position"] (docs/same-bits.md).
    same_bits_as: a function of the same operands, or several, that return the same bits.
    rounds: with like=, where numbers are rounded to 16 bits: "as like", where eager PyTorch rounds in the function, or
        "once", at the end alone (docs/contracts.md).
    ties: with like=, "as like" demands PyTorch's own slope at a kink, such as 0 of relu at 0, and of max for equal
        numbers. By default, either side is right (docs/like.md).
    sizes: measure it at the sizes of public models too: "qwen3-moe", several, or "all" (docs/models.md). For dimensions
        whose names say no size, `{"d": "hidden", "model": "qwen3-moe"}`.
    quantise: `verify.quantised(...)` describes the codes and scales that the kernel returns, of x or, with like=, of
        its result (docs/low-precision.md).
    """
    if quantise is not None:
        quantise, like, shapes, where, operands, bits = quantiser(quantise, like, shapes, where, operands, op)
        integers = {**(integers or {}), **bits}
        gradients = False
    # the declaring module's, 1 is `recorded`: a declaration may name a library function
    caller = sys._getframe(2).f_globals
    module, file = caller.get("__name__", ""), caller.get("__file__", "")
    named_op = _op(received, op) if like is None else ""
    given = {**locals(), "examples": examples is not None, "accumulate": accumulate != "float32"}
    if like is None and (named_alone := [f"{name}=" for name in _OF_LIKE if given[name]]):
        text = f"an op by name has no use for {', '.join(named_alone)}, which belong to like="
        raise UsageError(text, hint="@verify.kernel(like=function, ...)")
    if like is not None and (received or op is not None or params):
        raise UsageError(
            "like= defines what the kernel computes, and excludes op= and params=",
            hint="@verify.kernel(like=functools.partial(function, eps=1e-6)) fixes a parameter of the function",
        )

    def declare(function: Callable[..., Any]) -> Kernel:
        label = (getattr(function, "__name__", None) or "kernel") if name is None else name
        about = f"kernel {label!r}"
        encoded_name = label.encode(errors="ignore") if isinstance(label, str) else b""
        if not 0 < len(encoded_name) <= LONGEST_NAME or encoded_name.decode() != label or "::" in label:
            text = f"{about}: a name is Unicode text of 1 to {LONGEST_NAME} bytes without ::"
            raise UsageError(text, hint='@verify.kernel(op=..., name="another_name")')
        if not isinstance(where, str) or not isinstance(policy, Policy | None):
            text = f"{about}: where is a text and policy a verify.Policy; received {where!r} and {policy!r}"
            raise UsageError(text, hint="where='n <= 65536', policy=verify.Policy(nan='any')")
        if not callable(function):
            text = f"{about}: @verify.kernel decorates a function; received {function!r}"
            raise UsageError(text, hint="def my_kernel(x): ... below it, or verify.kernel(op=...)(function)")
        if isinstance(function, type):
            raise UsageError(
                f"{about}: @verify.kernel decorates a function; received the class {function.__name__}",
                hint=f"decorate a function that calls it, as in: def my_kernel(x): return {_called(function)}",
            )
        taken, called, returns, grads = operands, function, outputs, gradients
        if like is not None and (writes or into):
            called, returns, grads = *functional(about, function, writes, into, outputs, gradients, derive), False
        quantised = encoded(about, function, like, operands, shapes, where)
        if like is not None:
            taken = None if quantised.encodings else operands
            all_derived = {**(derive or {}), **quantised.derive}
            written = by_operand(about, called, quantised.like, quantised.shapes, all_derived, quantised.raw)
            called = written.function
            fused = promises.intermediate(rounds, max_ulp, max_noise, stochastic or draws)
            said = {
                "derive": all_derived,
                "where": quantised.where,
                "shown": quantised.shown,
                "integers": integers,
                "valid": valid,
                "examples": examples,
                "seeds": promises.seeds_of(stochastic, draws),
                **promises.of_program(about, accumulate, intermediate or fused, ties),
            }
            definition = op_of(label, written, taken, returns, said, draws)
            taken, grads = None, grads if draws is None else False
        else:
            definition = named_op if isinstance(named_op, Op) else ops.get(named_op)
        definition.resolve(params or {})
        taken = promises.operands(about, definition, taken)
        returned = promises.outputs(about, definition, returns)
        floating = [o.name for o in definition.operands if o.name in taken and not o.range]
        numbers = [item for item in returned if item not in definition.integers]
        promised = promises.dtypes(about, dtypes, DEFAULT_DTYPES if floating or numbers else DEFAULT_DTYPES[:1])
        definition, others, integral = promises.whole_dtypes(about, definition, taken, operand_dtypes)
        of_operands = promises.other_dtypes(about, "operand_dtypes", others, promised, floating)
        of_operands = quantised.with_scales(of_operands, promised)
        magnitudes = promises.largest(about, largest, promised, floating)
        definition = promises.domains(about, domain, definition, floating, promised, of_operands, magnitudes)
        of_outputs = promises.other_dtypes(about, "output_dtypes", output_dtypes, promised, numbers)
        results = [*returned, *(f"d{name}" for name in taken)]
        definition, relative = promises.relative(about, promise, definition, numbers)
        wide = promises.wide_of(definition, results, like is None)
        by_terms = quantise is None and (like is not None or not definition.geometry.by_element)
        beside = *of_operands.values(), *of_outputs.values()
        limits = promises.limits(about, max_ulp, promised, beside, results, wide=wide, relative=by_terms)
        noises = promises.noise(about, max_noise, definition.gate, results)
        settings, others_of_bits = promises.same_bits(about, same_bits, same_bits_as, quantise is not None)
        seeds = promises.stochastic_results(about, stochastic, definition, returned, promised, of_outputs)
        if seeds and max_ulp is None:
            limits |= promises.limits_of_results(seeds, promised, of_outputs, promises.STOCHASTIC_LIMIT, demanding=True)
            noises = dict.fromkeys(seeds, promises.STOCHASTIC_NOISE) | noises
        limits |= promises.limits_of_results(relative, promised, of_outputs, None, demanding=False)
        noises = dict.fromkeys(relative, promises.DEFAULT_NOISE) | noises
        models, roles = promises.models_and_roles(about, sizes, definition) if sizes else ((), {})
        if inputs is not None:
            kinds = {each: _kinds(each, floating, of_operands) for each in promised}
            definition = dataclasses.replace(definition, captured=captured(about, inputs, definition, kinds, file))
        declared = Kernel(
            name=label,
            function=called,
            op=definition,
            params=dict(params or {}),
            dtypes=promised,
            operands=taken,
            outputs=returned,
            contiguous=promises.contiguous(about, layouts, taken),
            gradients=promises.gradients(about, definition, grads, taken),
            max_ulp={dtype: each[ORDINARY] or 0.0 for dtype, each in limits.items()},
            where="" if like is not None or not where else promises.where(about, definition, where),
            refuses=None if refuses is None else bool(refuses),
            class_limits={dtype: each for dtype, each in limits.items() if len(set(each.values())) > 1},
            backends=promises.strings(about, "backends", backends, known()) if backends is not None else (),
            peer=bool(peer),
            policy=policy or Policy(),
            module=module,
            file=file,
            summary=(inspect.getdoc(function) or "").split("\n", 1)[0],
            accepted=accepted(called, definition),
            requires=promises.required(about, requires, file),
            largest=magnitudes,
            operand_dtypes=of_operands,
            integer_dtypes=integral,
            output_dtypes=of_outputs,
            max_noise=noises,
            beside_noise=like is not None and definition.gate == "plain" and max_ulp is None,
            max_bias=promises.by_result(about, "max_bias", max_bias, results),
            vacuous=promises.reasons(about, vacuous, results),
            encoding=quantise,
            stochastic=seeds,
            draws=promises.of_draws(draws),
            relative=relative,
            encoded=quantised if quantised.encodings else None,
            same_bits=(*settings, *others_of_bits),
            same_bits_as=others_of_bits,
            rounds=promises.rounds(about, rounds, definition, quantise or quantised.encodings or seeds),
            models=models,
            sizes=roles,
        )
        if (writing := getattr(called, "writing", None)) is not None:
            writing.kernel = declared
        _takes(about, declared)
        code = getattr(function, "__code__", None)
        if code is not None and getattr(function, "__module__", None) == module:
            declared_lines.setdefault(module, {}).setdefault(function.__qualname__, set()).add(code.co_firstlineno)
        return declared

    return declare


def _op(received: tuple[object, ...], op: str | Op | None) -> str | Op:
    """Returns the op of a declaration. Without one, raises UsageError that says what to write."""
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
    """Raises UsageError if the function does not take the operands by position and the parameters by keyword."""
    function, op, operands, accepted = declared.function, declared.op, declared.operands, declared.accepted
    if isinstance(getattr(function, "__self__", None), type):
        return  # Function.apply accepts any arguments
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


def _kinds(dtype: str, names: Sequence[str], others: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Maps operands to PyTorch's dtypes in the cases of a dtype."""
    return {name: torch_dtype(named(others.get(dtype, {}).get(name, dtype))) for name in names}
