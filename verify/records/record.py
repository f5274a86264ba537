"""Defines the run record: everything that one run measured. Reports and gates read this and nothing else.

JSON has no NaN and no infinity, so numbers that may be either are written as the strings "inf", "-inf" and "nan" (type
`Number`; `number()` makes one, `value_of()` reads one). The default of a field never changes within a schema, because
files omit fields that hold their default. `verify.records.files` reads and writes them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from verify import backends

SCHEMA = 6

Number = float | Literal["inf", "-inf", "nan"]
# Classes of inputs, the most important first; `verify.cases.classes` defines them.
CLASSES = ORDINARY, DEMANDING, EXTREME = ("ordinary", "demanding", "extreme")

# The unit of an error: ULP of the truth, ULP of the scale of its terms, or the noise of the program that defines the
# op.
Gate = Literal["plain", "scaled", "noise"]
ResultStatus = Literal["ok", "wrong", "undecided", "vacuous"]
RESULT_STATUSES: tuple[ResultStatus, ...] = ("ok", "vacuous", "undecided", "wrong")  # the later one counts
UNPROVEN = ("vacuous", "undecided")  # neither a pass nor a fault
Status = Literal["ok", "wrong", "undecided", "vacuous", "error", "crashed", "timeout", "interrupted", "skipped"]
GapKind = Literal[
    "harness error",  # the kernel, or a dtype, law or hunt of it, has no verdict
    "judge failed",  # the judging process died or ran out of time or memory, which says nothing about the kernel
    "out of time",  # the time budget was spent; the same command continues
    "crashed",
    "timeout",
    "given up",  # the kernel failed too often
    "not importable",
    "interrupted",
    "refused",  # the kernel raised on cases that its declaration allows
    "no reference",  # PyTorch refuses the inputs, so there is nothing to compare with
    "not possible",  # verify refused the request, such as a sweep of a kernel that has no space of inputs
    "no gradient",  # PyTorch has a gradient, and the kernel has none
    "not timed",  # speed is measured on a GPU alone
]


def number(value: float) -> Number:
    """Returns a float in the form of the record: finite floats unchanged, the others as strings."""
    if math.isfinite(value):
        return float(value)
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


def value_of(value: Number) -> float:
    """Returns the float of a `Number`."""
    return float(value)


class Basis(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Says how much a maximum proves. Every printed maximum has its basis beside it."""

    kind: Literal["exhaustive", "certified", "observed"]
    n: int
    seed: int | None = None
    of: int = 0  # elements of the results, if not all were judged
    # the calls of the kernel that were judged and those that were planned, if the run ended before all were
    cases: int = 0
    planned: int = 0

    def __str__(self) -> str:
        if self.kind == "exhaustive":
            return f"exhaustive, {self.n:,} inputs"
        seed = "" if self.seed is None else f", seed {self.seed}"
        of = f" of {self.of:,}" if self.of else ""
        return f"{self.kind} over {self.n:,}{of} cases{seed}{self.ended}"

    @property
    def ended(self) -> str:
        """Returns how much of a plan was judged, as text; "" if all of it was."""
        return f", {self.cases:,} of {self.planned:,} planned cases" if self.planned else ""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Locates a finding: an element of a result of a kernel on a case, or a law that breaks on a case.

    These are the arguments of `verify replay`; `replay_command` spells the command out.
    """

    target: str  # FILE::KERNEL or MODULE::KERNEL
    case: str  # as JSON
    result: str = ""
    index: int = 0  # flat index of the element
    law: str = ""  # instead of a result and an index
    backend: str = ""  # the backend that the user named; "" for the first one that a machine has

    @classmethod
    def here(cls, target: str, case: str, result: str = "", index: int = 0, law: str = "") -> Origin:
        """Returns the origin of a finding of this process, on its backend."""
        return cls(target, case, result, index, law, backends.asked())


def replay_command(origin: Origin | None) -> str:
    """Returns the command that shows a finding again, or "".

    >>> print(replay_command(Origin("a.py::gelu", '{"dims":[4]}', "y", 3)))
    verify replay a.py::gelu '{"dims":[4]}' --result y --index 3
    """
    if origin is None:
        return ""
    command = f"verify replay {shlex.quote(origin.target)} {shlex.quote(origin.case)}"
    where = f" --backend {shlex.quote(origin.backend)}" if origin.backend else ""
    if origin.law:
        return f"{command} --law {shlex.quote(origin.law)}{where}"
    return f"{command} --result {shlex.quote(origin.result)} --index {origin.index}{where}"


class Worst(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Describes one bad element, judged exactly: its inputs, the kernel's value, and the real number."""

    index: tuple[int, ...]
    inputs: dict[str, str]  # operand -> "decimal (0xhex)" of the elements this result depends on
    got: str  # decimal
    got_hex: str
    truth: str  # 30 significant digits
    ulp: Number  # signed: positive when got is too large
    scaled_ulp: Number | None
    origin: Origin


class Histogram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Counts signed errors in ULP: `counts[i]` errors lie between edges[i] and edges[i + 1].

    An edge belongs to the bin further from zero, on both sides.
    """

    edges: list[Number]
    counts: list[int]


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds the errors of one implementation over one set of elements.

    `max_ulp` is the maximum, judged exactly. No element exceeds `max_upper`, by the bounds of the fast reference.
    The two are equal unless elements remain undecided. The `scaled_*` figures are in the unit of the gate "scaled" (ULP
    of the scale) or "noise" (the program's own noise, beyond half a ULP). With the gate "plain" they are ULP less
    noise, which the verdict is about, or None if no noise was needed. An undecided element is `open` if exact
    arithmetic has no figure for it. Maximum, quantile and mean omit open elements. `rms` is the root mean square in
    ULP, for the gate "noise" in units of what noise and rounding explain, of `weighed` elements. `bias` is the mean
    error away from zero, +- `bias_error`, over elements with distinct truths: one that is rounded wrongly counts 1 ULP.
    """

    n: int
    max_ulp: Number
    max_upper: Number
    p999: Number
    mean: Number  # of errors capped at 65,536 ULP, to 7 digits
    misrounded: int
    undecided: int = 0
    nonfinite: int = 0  # NaN or infinity where the truth is finite, or the reverse
    scaled_max: Number | None = None
    scaled_upper: Number | None = None
    scaled_p999: Number | None = None
    open: int = 0
    bias: float | None = None
    bias_error: float | None = None
    rms: float | None = None
    weighed: int = 0


class RegimeFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds the figures of one named region of the input space."""

    name: str
    low: Number | None
    high: Number | None
    figures: Figures
    baseline: Figures | None = None
    operand: str = ""  # the operand whose values lie between low and high
    worst: Worst | None = None  # of a judged kernel, if its error exceeds that of correct rounding


class ClassFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds the figures of a class of inputs, without infinities and NaN. No `limit`: no promise."""

    name: str
    figures: Figures
    limit: float | None
    baseline: Figures | None = None
    worst: Worst | None = None
    reason: str = ""  # why it is wrong, in one line; empty if it is not


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds the error over the input: the maximum in each bin of an operand's values.

    `edges[i]` to `edges[i + 1]` is a bin, the upper end in the next one. The bins of one octave hold equally many
    floating-point numbers, and neighbours within 5% are joined. An empty bin has count 0, error 0 and no input. Maxima
    are rounded up to three digits.
    """

    operand: str
    edges: list[Number]
    counts: list[int]
    max_ulp: list[Number]
    worst: list[str]  # bits in hex of the input with the bin's maximum
    baseline: list[Number] = []  # the baseline's maxima in the same bins


class Hard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds an input whose exact result lies close to a rounding boundary.

    No command writes one now. Records of this schema that were written before have them, so they must be read.
    """

    inputs: dict[str, str]  # operand -> "decimal (0xhex)"
    truth: str  # 30 significant digits
    distance: Number  # from the nearest midpoint of two neighbours, in ulp


class SpecialValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds the kernel's answer at one infinite, NaN, zero, subnormal or greatest input."""

    inputs: dict[str, str]
    got: str
    truth: str
    status: Literal["ok", "wrong"] = "ok"
    origin: Origin | None = None  # of a wrong answer


class Speed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds the time of one pass, and that of a copy of the same bytes in the same run."""

    dtype: str
    direction: Literal["forward", "backward"]
    shape: tuple[int, ...]
    milliseconds: float  # median over interleaved rounds
    of_copy: float | None  # copy time / kernel time: 1 is memory speed
    spread: float = 0.0  # milliseconds between the quartiles of the rounds
    of_product: float | None = None  # time of the matrix products alone / kernel time
    rounds: int = 0


INTEGERS = "integers"  # the format of a result of integers or conditions, where wrong elements are counted


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds one output or gradient of one kernel in one dtype.

    `gate` names the figure that is judged; `limit` is the kernel's own declaration. The `status` is "ok" if the judged
    maximum is proven within the limit, "wrong" if it is proven beyond it, and "undecided" if neither is proven. It is
    "vacuous" if trivial answers would keep the limit too. With the gate "noise", an element is also within the limit if
    its error is at most `ulp_limit`.
    """

    output: str
    dtype: str
    basis: Basis
    gate: Gate
    limit: float
    status: ResultStatus
    figures: Figures
    regimes: list[RegimeFigures]
    histogram: Histogram
    worst: list[Worst]
    escalated: int  # elements judged exactly because float64 did not decide
    certificate: str  # what bounded the fast reference, or "exact"
    reason: str = ""  # why the status is not "ok", in one line
    baseline: Figures | None = None
    baseline_name: str = ""
    baseline_worst: list[Worst] = []
    source: Literal["run", "sweep", "hunt"] = "run"  # the command that measured it
    # hash of op, params, output, dtype and cases; figures with other hashes answer other questions
    properties: str = ""
    curve: Curve | None = None
    hardest: list[Hard] = []
    special: list[SpecialValue] = []  # of older records
    bits: str = ""  # digest of all result bits, see `verify.measure.digest`; equal if no bit changed
    classes: list[ClassFigures] = []  # the classes that occur, in the order of CLASSES; empty for a hunt or a quantiser
    ulp_limit: float | None = None
    # the largest ratio of an error beyond the limit to PyTorch's near it, for kernels that are compared with PyTorch
    excess: Number | None = None
    trivial: str = ""  # what the limit does not see: a remark that reports print as it is
    # The format of the result, in whose ULP it is judged, if that is not `dtype`. Its cases have `dtype`.
    format: str = ""
    where: str = ""  # the cases where a result is wrong

    @property
    def counts(self) -> bool:
        """True if the result has integers or conditions. Each of these is right or wrong; they have no ULP."""
        return self.format == INTEGERS


class Gap(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Records requested work that did not happen or has no verdict. `text` is the line for readers."""

    kind: GapKind
    text: str
    target: str = ""  # the kernel that it is about


# Why a law is broken if not by its own rule: the kernel failed when it was called, or its calls differ.
Cause = Literal["", "failed", "not deterministic"]


class LawRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds one law tried on one kernel in one dtype. A skipped law says why; a broken one has its smallest case."""

    law: str
    dtype: str
    status: Literal["ok", "broken", "skipped"]
    cases: int
    message: str = ""
    facts: dict[str, str] = {}
    origin: Origin | None = None  # of a broken law
    in_error: bool = False  # skipped because the harness is in error, so the run is incomplete
    cause: Cause = ""
    refused: int = 0  # cases that the kernel refused; `cases` does not count them
    undeclared: bool = False  # the declaration does not say that the kernel may refuse cases
    late: bool = False  # its time ended before its last case

    @property
    def case(self) -> str:
        """Returns the smallest case that breaks the law, as JSON. Empty if the law holds."""
        return "" if self.origin is None else self.origin.case

    def fact_lines(self, most: int = 5) -> list[tuple[str, str]]:
        """Returns at most `most` lines of facts: operands and place in one, error and limit in one, the rest in the
        last.

        >>> facts = {"at": "y [1]", "x": "2", "dy": "1", "got": "3", "truth": "4", "error": "1 ULP", "limit": "0.5 ULP"}
        >>> [f"{name} {text}" for name, text in LawRun("accuracy", "float32", "broken", 1, facts=facts).fact_lines()]
        ['input x = 2, dy = 1 at y [1]', 'got 3', 'truth 4', 'error 1 ULP, the limit is 0.5 ULP']
        """
        lines = dict(self.facts)
        names = list(lines)
        if "at" in lines and "got" in lines and names.index("got") > names.index("at") + 1:
            operands = names[names.index("at") + 1 : names.index("got")]
            place = lines.pop("at")
            inputs = ", ".join(f"{name} = {lines.pop(name)}" for name in operands)
            lines = {"input": f"{inputs} at {place}", **lines}
        if "error" in lines and "limit" in lines:
            lines["error"] += f", the limit is {lines.pop('limit')}"
        told = list(lines.items())
        if len(told) > most:
            (name, text), *rest = told[most - 1 :]
            told[most - 1 :] = [(name, "; ".join([text, *(f"{name} {text}" for name, text in rest)]))]
        return told


class SideEffect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds a change that a kernel made to the state of its process. `text` is the line for readers."""

    kind: Literal[
        "judge",  # an attribute of verify, torch, triton or Python itself on which the verdict depends
        "mode",  # a setting that changes how PyTorch computes from then on
        "process",  # of older records, as the next one
        "random",
    ]
    after: Literal["import", "call"]
    text: str

    @property
    def breaks(self) -> bool:
        """True if the change counts against the kernel. On import, a module may set up the process."""
        return self.kind == "judge" or (self.kind == "mode" and self.after == "call")


class Printed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds a kernel's output: the beginning and the end if it was long."""

    bytes: int
    text: str

    def plus(self, later: Printed | None) -> Printed:
        """Returns both outputs, one after the other."""
        return self if later is None else Printed(self.bytes + later.bytes, self.text + later.text)


class Unmeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds cases of one dtype that gave no results, for one reason.

    A kernel that raises refuses the case. The run is then incomplete, unless the declaration has refuses=True. A result
    in a wrong form, a process that dies and a process that hangs are errors. The other cases are measured all the same.
    """

    kind: Literal["refused", "contract", "crashed", "hung"]
    dtype: str
    dims: list[tuple[int, ...]]  # of the cases, each once
    cases: int
    of: int  # cases that were tried
    text: str  # the exception and its place
    origin: Origin  # of the smallest case


class KernelRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds everything measured for one kernel. If `status` is not "ok" or "wrong", `message` has the reason.

    "skipped" means that the declaration itself excludes this backend. It is shown and does not count against the
    kernel. "interrupted" means that Ctrl-C ended the run before there was a figure.
    """

    name: str
    target: str  # FILE::KERNEL or MODULE::KERNEL, as `verify run` takes it
    op: str
    params: dict[str, Any]
    promise: str  # one line: dtypes, layouts, gradients
    status: Status
    results: list[Result]
    message: str = ""
    hint: str = ""
    laws: list[LawRun] = []
    peer: bool = False  # measured for comparison, never judged
    notes: list[str] = []
    seconds: float = 0.0
    speed: list[Speed] = []
    unrepeatable: str = ""  # how calls with the same input differ, which may cause every other finding
    left: list[SideEffect] = []
    printed: Printed | None = None
    unmeasured: list[Unmeasured] = []
    gaps: list[Gap] = []  # gaps of a kernel on its way into a run, which collects them in `incomplete`
    sizes: dict[str, int] = {}  # the largest size of each named dimension over the measured cases
    definition: str = ""  # the source of the function that like= names
    peak: dict[str, int] = {}  # of older records: the most bytes that the judging process held


def unrepeatable(laws: Sequence[LawRun]) -> str:
    """Returns how the calls of a kernel differ, by its first law that reports this, or ""."""
    return next((law.message for law in laws if law.cause == "not deterministic"), "")


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds one stage of a nightly run."""

    name: str
    status: Literal["ok", "wrong", "incomplete", "skipped"]
    message: str = ""
    seconds: float = 0.0


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds one run: the environment and the findings about every kernel in it."""

    schema: int
    id: str  # 12 hex digits of the content without timings and dates
    created: str  # ISO 8601, UTC
    command: str
    backend: str  # its name, such as "cuda" or "interpreter": results never mix
    seed: int
    profile: str
    environment: dict[str, Any]
    kernels: list[KernelRun]
    incomplete: list[Gap] = []  # requested work that did not happen
    seconds: float = 0.0
    stages: list[Stage] = []

    @property
    def unproven(self) -> list[KernelRun]:
        """Returns the judged kernels whose verdict is vacuous or undecided."""
        return [kernel for kernel in self.kernels if kernel.status in UNPROVEN and not kernel.peer]

    @property
    def verdict(self) -> Literal["pass", "fail", "incomplete"]:
        """Returns "fail" if something is wrong, "incomplete" if something has no verdict, else "pass"."""
        judged = [kernel.status for kernel in self.kernels if not kernel.peer]
        if set(judged) & {"wrong", "error", "crashed", "timeout"}:
            return "fail"
        if self.incomplete or "ok" not in judged or self.unproven:
            return "incomplete"
        return "pass"
