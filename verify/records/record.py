"""The run record: everything one run measured, as one JSON file. Reports and gates read this and nothing else.

Strict on load (an unknown field, a wrong type or another schema version is an error that names the place),
atomic on write, and without bare NaN: JSON has none, so numbers that may be infinite or NaN are written as
the strings "inf", "-inf" and "nan" (type `Number`; `number()` makes one, `value_of()` reads one).

A file leaves out fields that hold their default, keeps rows of figures as columns and what occurs twice once
(`verify.records.packing`); the default of a field therefore never changes within a schema.
"""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any, Literal

import msgspec

from verify.errors import IN_ERROR, SPENT, UsageError
from verify.records import packing

SCHEMA = 5
READS = (1, 2, 3, 4, 5)  # older schemas are migrated on load

Number = float | Literal["inf", "-inf", "nan"]
GapKind = Literal[
    "harness error",  # the kernel, or a dtype, law or hunt of it, has no verdict
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

    def __str__(self) -> str:
        if self.kind == "exhaustive":
            return f"exhaustive, {self.n:,} inputs"
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.kind} over {self.n:,} cases{seed}"


class Worst(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One bad element, judged exactly: what went in, what came out, what the real number is."""

    index: tuple[int, ...]
    inputs: dict[str, str]  # operand -> "decimal (0xhex)" of the elements this result depends on
    got: str  # decimal
    got_hex: str
    truth: str  # 30 significant digits
    ulp: Number  # signed: positive when got is too large
    scaled_ulp: Number | None
    replay: str  # the whole command, which holds the case as JSON


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
    The `scaled_*` figures are relative to ulp(scale); they are None for ops without a scale of their own.
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


class RegimeFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Figures of one named region of the input space."""

    name: str
    low: Number | None
    high: Number | None
    figures: Figures
    baseline: Figures | None = None
    operand: str = ""  # whose values low and high bound
    worst: Worst | None = None  # of a judged kernel, where an error exceeds what correct rounding may have


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
    replay: str = ""  # of a wrong one


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


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One output or gradient of one kernel in one dtype.

    `gate` says which figure is judged; `limit` is the kernel's own declaration; `status`: "ok" when the
    judged maximum is proven within the limit, "wrong" when it is not.
    """

    output: str
    dtype: str
    basis: Basis
    gate: Literal["plain", "scaled"]
    limit: float
    status: Literal["ok", "wrong"]
    figures: Figures
    regimes: list[RegimeFigures]
    histogram: Histogram
    worst: list[Worst]
    escalated: int  # elements judged exactly because float64 did not decide
    certificate: str  # which certificate bounded the fast reference, or "exact"
    reason: str = ""  # why the status is "wrong", one line
    baseline: Figures | None = None
    baseline_name: str = ""
    baseline_worst: list[Worst] = []
    source: Literal["run", "sweep", "hunt"] = "run"  # which command measured it
    properties: str = ""  # hash of what was asked: op, params, output, dtype, cases; figures of other hashes differ
    curve: Curve | None = None
    hardest: list[Hard] = []
    special: list[SpecialValue] = []
    bits: str = ""  # digest of all result bits, see `verify.measure.digest`: equal when no bit changed


class Gap(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something that was asked for and did not happen, or has no verdict. `text` is the line that people read."""

    kind: GapKind
    text: str
    target: str = ""  # of the kernel that it is about


class LawRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One law tried on one kernel in one dtype. A skipped law says why; a broken one shows its smallest case."""

    law: str
    dtype: str
    status: Literal["ok", "broken", "skipped"]
    cases: int
    message: str = ""
    facts: dict[str, str] = {}
    case: str = ""
    replay: str = ""
    in_error: bool = False  # skipped because the harness is in error: the run is incomplete


class KernelRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything measured for one kernel. `status` other than "ok"/"wrong" has its reason in `message`.

    "skipped" means that the declaration itself rules this backend out; it is shown, and not held against it.
    """

    name: str
    target: str  # FILE::KERNEL or MODULE::KERNEL, as `verify run` takes it
    op: str
    params: dict[str, Any]
    promise: str  # one line: dtypes, layouts, gradients
    status: Literal["ok", "wrong", "error", "crashed", "timeout", "skipped"]
    results: list[Result]
    message: str = ""
    hint: str = ""
    laws: list[LawRun] = []
    peer: bool = False  # measured for comparison, never judged
    notes: list[str] = []
    seconds: float = 0.0
    speed: list[Speed] = []
    gaps: list[Gap] = []  # of a kernel on its way into a run, which gathers them in `incomplete`


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
    backend: str  # "cuda" or "interpreter": results never mix
    seed: int
    profile: str
    environment: dict[str, Any]
    kernels: list[KernelRun]
    incomplete: list[Gap] = []  # what was asked for and did not happen
    seconds: float = 0.0
    stages: list[Stage] = []
    selftest: SelfTest | None = None

    @property
    def verdict(self) -> Literal["pass", "fail", "incomplete"]:
        """fail: something is wrong. incomplete: nothing wrong seen, but something was not measured."""
        judged = [kernel.status for kernel in self.kernels if not kernel.peer]
        if set(judged) & {"wrong", "error", "crashed", "timeout"}:
            return "fail"
        if self.incomplete or "ok" not in judged:
            return "incomplete"
        return "pass"


def encode(run: Run) -> bytes:
    """The record as canonical JSON: sorted keys, a line per field, one trailing newline."""
    return packing.dumps(packing.pack(msgspec.to_builtins(run)))


def decode(data: bytes, *, source: str = "record") -> Run:
    """A record from JSON. Raises UsageError that names the file, the bad field and the rule."""
    try:
        version = msgspec.json.decode(data, type=_Version).schema
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{source} is not a verify run record: {error}", hint="verify run --json PATH writes one"
        ) from error
    if version not in READS:
        raise UsageError(
            f"{source} has schema {version}; this verify reads schemas {', '.join(map(str, READS))}",
            hint="rerun `verify run --json PATH` with this version",
        )
    try:
        # 1 and 2 wrote every row out, 3 whatever occurs twice; 2 added fields to 1, each with a default
        plain = msgspec.json.decode(data) if version < 3 else packing.unpack(msgspec.json.decode(data))
        return msgspec.structs.replace(msgspec.convert(_with_gaps(plain, version), Run), schema=SCHEMA)
    except (msgspec.DecodeError, UnicodeDecodeError, packing.PackingError, RecursionError) as error:
        raise UsageError(f"{source} breaks the record schema: {error}") from error


def _with_gaps(plain: Any, version: int) -> Any:
    """Up to schema 4 `incomplete` was a list of lines, and what a line was about stood in its wording."""
    if version > 4 or not isinstance(plain, dict) or not isinstance(plain.get("incomplete"), list):
        return plain
    kernels = plain.get("kernels")
    named = [item for item in kernels if isinstance(item, dict)] if isinstance(kernels, list) else []

    def gap_of(line: Any) -> Any:
        if not isinstance(line, str):
            return line
        about = next((item for item in named if line.startswith(f"{item.get('name')}: ")), {})
        return {"kind": _kind_of(line, about), "text": line, "target": about.get("target", "")}

    return {**plain, "incomplete": [gap_of(line) for line in plain["incomplete"]]}


def _kind_of(line: str, kernel: dict[str, Any]) -> GapKind:
    status: Any = kernel.get("status")
    if status in ("crashed", "timeout") and line == f"{kernel.get('name')}: {kernel.get('message')}":
        return status  # type: ignore[no-any-return]
    if IN_ERROR in line:
        return "harness error"
    return "out of time" if line.endswith(SPENT) else "other"


def load(path: str | os.PathLike[str]) -> Run:
    """The record in a file."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the record {os.fspath(path)}: {error.strerror}", hint="verify run --json PATH writes one"
        ) from error
    return decode(data, source=os.fspath(path))


def save(run: Run, path: str | os.PathLike[str]) -> None:
    """Write the record; a reader never sees half of it."""
    write_atomically(path, encode(run))


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file through a temporary neighbour and a rename, so that it is old or new, never half."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise UsageError(f"cannot write {target}: {error.strerror}") from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class _Version(msgspec.Struct):
    schema: int
