"""The run record: everything one run measured. Reports and gates read this and nothing else.

JSON has no NaN and no infinity, so numbers that may be either are written as the strings "inf", "-inf" and "nan" (type
`Number`; `number()` makes one, `value_of()` reads one). The default of a field never changes within a schema, because
files leave out what holds its default; `verify.records.files` reads and writes them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

SCHEMA = 6

Number = float | Literal["inf", "-inf", "nan"]
# Classes of inputs, in the order of what weighs most; `verify.cases.classes` says what belongs to which.
CLASSES = ORDINARY, DEMANDING, EXTREME = ("ordinary", "demanding", "extreme")

# what an error is told in: ULP of the truth, ULP of the scale of its terms, the noise of the program that defines it
Gate = Literal["plain", "scaled", "noise"]
ResultStatus = Literal["ok", "wrong", "undecided", "vacuous"]
RESULT_STATUSES: tuple[ResultStatus, ...] = ("ok", "vacuous", "undecided", "wrong")  # the later one counts
UNPROVEN = ("vacuous", "undecided")  # neither a pass nor a fault
Status = Literal["ok", "wrong", "undecided", "vacuous", "error", "crashed", "timeout", "interrupted", "skipped"]
GapKind = Literal[
    "harness error",  # the kernel, or a dtype, law or hunt of it, has no verdict
    "judge failed",  # it died, or ran out of time or memory: nothing is known of the kernel
    "out of time",  # the time budget was spent; the same command again goes on
    "crashed",
    "timeout",
    "given up",  # it failed too often
    "not importable",
    "interrupted",
    "other",
]


def number(value: float) -> Number:
    """A float as the record writes it: finite floats as they are, the rest as strings."""
    if math.isfinite(value):
        return float(value)
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


def value_of(value: Number) -> float:
    """The float behind a `Number`."""
    return float(value)


class Basis(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a maximum rests on. It stands beside every maximum that is ever printed."""

    kind: Literal["exhaustive", "certified", "observed"]
    n: int
    seed: int | None = None
    of: int = 0  # elements that the results have, where not all were judged

    def __str__(self) -> str:
        if self.kind == "exhaustive":
            return f"exhaustive, {self.n:,} inputs"
        seed = "" if self.seed is None else f", seed {self.seed}"
        of = f" of {self.of:,}" if self.of else ""
        return f"{self.kind} over {self.n:,}{of} cases{seed}"


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a finding comes from: an element of a result of a kernel on a case, or a law that breaks on a case.

    These are the arguments of `verify replay`; `replay_command` spells the command out.
    """

    target: str  # FILE::KERNEL or MODULE::KERNEL
    case: str  # as JSON
    result: str = ""
    index: int = 0  # of the element, flat
    law: str = ""  # in place of a result and an index


def replay_command(origin: Origin | None) -> str:
    """The command that shows a finding again; empty where there is none.

    >>> print(replay_command(Origin("a.py::gelu", '{"dims":[4]}', "y", 3)))
    verify replay a.py::gelu '{"dims":[4]}' --result y --index 3
    """
    if origin is None:
        return ""
    command = f"verify replay {shlex.quote(origin.target)} {shlex.quote(origin.case)}"
    if origin.law:
        return f"{command} --law {shlex.quote(origin.law)}"
    return f"{command} --result {shlex.quote(origin.result)} --index {origin.index}"


class Worst(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One bad element, judged exactly: what went in, what came out, what the real number is."""

    index: tuple[int, ...]
    inputs: dict[str, str]  # operand -> "decimal (0xhex)" of the elements this result depends on
    got: str  # decimal
    got_hex: str
    truth: str  # 30 significant digits
    ulp: Number  # signed: positive when got is too large
    scaled_ulp: Number | None
    origin: Origin


class Histogram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Signed error counts in ULP: `counts[i]` errors lie between edges[i] and edges[i + 1].

    An edge belongs to the bin further from zero, on both sides.
    """

    edges: list[Number]
    counts: list[int]


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The error of one implementation over one set of elements.

    `max_ulp` is the exactly re-judged maximum; `max_upper` is what no element can exceed given the
    certificate of the fast reference (equal to `max_ulp` unless elements remain undecided).
    The `scaled_*` figures are in the unit of the gate "scaled" (ULP of the scale) or "noise" (the program's own noise,
    beyond half a ULP); they are None for ops that are judged in ULP.
    Of the undecided elements those are `open` of which nothing is known: maximum, quantile and mean leave them out.
    `bias` is the mean error away from zero, +- `bias_error`: in ULP, or of the gate "noise" in units of the rms that
    noise and rounding explain. `rms` is the root mean square in these units. Both are about `weighed` elements.
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
    """Figures of one named region of the input space."""

    name: str
    low: Number | None
    high: Number | None
    figures: Figures
    baseline: Figures | None = None
    operand: str = ""  # whose values low and high bound
    worst: Worst | None = None  # of a judged kernel, where an error exceeds what correct rounding may have


class ClassFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Figures of one class of inputs, infinite and NaN ones left out. Without a `limit` nothing is promised of it."""

    name: str
    figures: Figures
    limit: float | None
    baseline: Figures | None = None
    worst: Worst | None = None
    reason: str = ""  # why it is wrong, one line; empty where it is not


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Error against input: the maximum in each bin of an operand's values.

    `edges[i]` to `edges[i + 1]` is a bin, the upper end in the next one; the bins of one octave hold equally many
    floating-point numbers, and neighbours within 5% are joined. An empty bin has count 0, error 0 and no
    input. Maxima are rounded up to three digits.
    """

    operand: str
    edges: list[Number]
    counts: list[int]
    max_ulp: list[Number]
    worst: list[str]  # bits in hex of the input with the bin's maximum
    baseline: list[Number] = []  # the baseline's maxima in the same bins


class Hard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An input whose exact result lies close to where rounding changes: the table-maker's dilemma."""

    inputs: dict[str, str]  # operand -> "decimal (0xhex)"
    truth: str  # 30 significant digits
    distance: Number  # from the nearest midpoint of two neighbours, in ulp


class SpecialValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What came out for one infinite, NaN, zero, subnormal or greatest input."""

    inputs: dict[str, str]
    got: str
    truth: str
    status: Literal["ok", "wrong"] = "ok"
    origin: Origin | None = None  # of a wrong one


class Speed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Time of one pass, beside a copy of the same bytes measured in the same run."""

    dtype: str
    direction: Literal["forward", "backward"]
    shape: tuple[int, ...]
    milliseconds: float  # median over interleaved rounds
    of_copy: float | None  # copy time / kernel time: 1 is memory speed
    spread: float = 0.0  # milliseconds between the quartiles of the rounds
    of_product: float | None = None  # time of the matrix products alone / kernel time
    rounds: int = 0


INTEGERS = "integers"  # the format of a result of integers or conditions: the wrong ones are counted


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One output or gradient of one kernel in one dtype.

    `gate` says which figure is judged; `limit` is the kernel's own declaration. The `status` is "ok" when the judged
    maximum is proven within the limit, "wrong" when it is proven beyond it, "undecided" when neither is, and "vacuous"
    when trivial answers would keep the limit too. Of the gate "noise" an element is also within the limit where its
    error is at most `ulp_limit`.
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
    certificate: str  # which certificate bounded the fast reference, or "exact"
    reason: str = ""  # why the status is not "ok", one line
    baseline: Figures | None = None
    baseline_name: str = ""
    baseline_worst: list[Worst] = []
    source: Literal["run", "sweep", "hunt"] = "run"  # which command measured it
    properties: str = ""  # hash of what was asked: op, params, output, dtype, cases; figures of other hashes differ
    curve: Curve | None = None
    hardest: list[Hard] = []
    special: list[SpecialValue] = []
    bits: str = ""  # digest of all result bits, see `verify.measure.digest`: equal when no bit changed
    classes: list[ClassFigures] = []  # those that occur, in the order of CLASSES; none of a sweep or a hunt
    ulp_limit: float | None = None
    trivial: str = ""  # a trivial answer that is itself right, or why a vacuous result is accepted
    format: str = (
        ""  # of the result, in whose ULP it is judged, where that is not `dtype`, which says what cases it has
    )

    @property
    def counts(self) -> bool:
        """True if the result has integers or conditions: each is right or wrong, by no ULP."""
        return self.format == INTEGERS


class Gap(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something that was asked for and did not happen, or has no verdict. `text` is the line that people read."""

    kind: GapKind
    text: str
    target: str = ""  # of the kernel that it is about


# Why a law is broken where the reason is not its own: the kernel failed when it was called, or its calls differ.
Cause = Literal["", "failed", "not deterministic"]


class LawRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One law tried on one kernel in one dtype. A skipped law says why; a broken one shows its smallest case."""

    law: str
    dtype: str
    status: Literal["ok", "broken", "skipped"]
    cases: int
    message: str = ""
    facts: dict[str, str] = {}
    origin: Origin | None = None  # of a broken one
    in_error: bool = False  # skipped because the harness is in error: the run is incomplete
    cause: Cause = ""
    refused: int = 0  # cases that the kernel did not take, beside `cases`

    @property
    def case(self) -> str:
        """The smallest case that breaks the law, as JSON; empty where it holds."""
        return "" if self.origin is None else self.origin.case

    def told(self, most: int = 5) -> list[tuple[str, str]]:
        """The facts in so many lines: operands and place on one, error and limit on one, the rest on the last.

        >>> facts = {"at": "y [1]", "x": "2", "dy": "1", "got": "3", "truth": "4", "error": "1 ULP", "limit": "0.5 ULP"}
        >>> [f"{name} {text}" for name, text in LawRun("accuracy", "float32", "broken", 1, facts=facts).told()]
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
    """State of the process that is another one after a kernel. `text` is the line that people read."""

    kind: Literal[
        "judge",  # an attribute of verify, torch, triton or Python's own that tells right from wrong
        "mode",  # what decides how PyTorch computes from then on
        "process",  # environment, paths, signal handlers, filters of warnings
        "random",
    ]
    after: Literal["import", "call"]
    text: str

    @property
    def breaks(self) -> bool:
        """Whether it is held against the kernel: setting up the process on import is a module's right."""
        return self.kind == "judge" or (self.kind == "mode" and self.after == "call")


class Printed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a kernel printed: the beginning and the end, where it was much."""

    bytes: int
    text: str

    def plus(self, later: Printed | None) -> Printed:
        """Both, one after the other."""
        return self if later is None else Printed(self.bytes + later.bytes, self.text + later.text)


class Unmeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Cases of one dtype that gave no results, for one reason.

    A kernel that raises refuses the case: that is a limit of it, and no error. What it returns in a wrong form, a
    process that dies and one that hangs are errors; the other cases are measured all the same.
    """

    kind: Literal["refused", "contract", "crashed", "hung"]
    dtype: str
    dims: list[tuple[int, ...]]  # of the cases, each once
    cases: int
    of: int  # cases that were tried
    text: str  # what was raised, and where
    origin: Origin  # of the smallest case


class KernelRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything measured for one kernel. `status` other than "ok"/"wrong" has its reason in `message`.

    "skipped" means that the declaration itself rules this backend out; it is shown, and not held against it.
    "interrupted" is what Ctrl-C left without a figure.
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
    unrepeatable: str = ""  # how calls with the same input differ, from which whatever else is wrong may follow
    left: list[SideEffect] = []
    printed: Printed | None = None
    unmeasured: list[Unmeasured] = []
    gaps: list[Gap] = []  # of a kernel on its way into a run, which gathers them in `incomplete`
    sizes: dict[str, int] = {}  # the largest size of each named dimension that a measured case has
    peak: dict[str, int] = {}  # bytes that the process which judges has held at most: of the host, and of a device


def unrepeatable(laws: Sequence[LawRun]) -> str:
    """How the calls of a kernel differ, by the first of its laws that says so."""
    return next((law.message for law in laws if law.cause == "not deterministic"), "")


class Kill(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One mutant of the self-test: which laws killed it, and whether comparing randn outputs would have."""

    mutant: str
    family: str
    killed_by: list[str]
    visible: bool  # on this backend
    assert_close: bool  # torch.testing.assert_close with its default tolerances fails
    loose: bool  # with the tolerances of the project that had the bug


class SelfTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The kill matrix: laws tried on kernels with one seeded bug each, and on their correct twins."""

    profile: str
    laws: list[str]
    kills: list[Kill]
    twins: int  # correct kernels tried
    alarms: list[str]  # what a law said against a correct one: must be empty


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One stage of a nightly run."""

    name: str
    status: Literal["ok", "wrong", "incomplete", "skipped"]
    message: str = ""
    seconds: float = 0.0


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One run of `verify run`: the environment and what every kernel did in it."""

    schema: int
    id: str  # 12 hex digits of the content without timings and dates
    created: str  # ISO 8601, UTC
    command: str
    backend: str  # its name, such as "cuda" or "interpreter": results never mix
    seed: int
    profile: str
    environment: dict[str, Any]
    kernels: list[KernelRun]
    incomplete: list[Gap] = []  # what was asked for and did not happen
    seconds: float = 0.0
    stages: list[Stage] = []
    selftest: SelfTest | None = None

    @property
    def unproven(self) -> list[KernelRun]:
        """The judged kernels whose verdict is vacuous or undecided."""
        return [kernel for kernel in self.kernels if kernel.status in UNPROVEN and not kernel.peer]

    @property
    def verdict(self) -> Literal["pass", "fail", "incomplete"]:
        """fail: something is wrong. incomplete: nothing wrong seen, but something was not measured, or not decided."""
        judged = [kernel.status for kernel in self.kernels if not kernel.peer]
        if set(judged) & {"wrong", "error", "crashed", "timeout"}:
            return "fail"
        if self.incomplete or "ok" not in judged or self.unproven:
            return "incomplete"
        return "pass"
