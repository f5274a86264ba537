"""Defines the requests to diagnose one case."""

from typing import Literal

import msgspec

from verify.records.record import LawRun, Number, Origin, Worst, value_of
from verify.workers.requests import Request

_SHOWN = 6  # undecided roundings that the screen shows


class Smaller(msgspec.Struct, frozen=True):
    """Describes the search for a smaller case, which started from `original`."""

    evaluations: int
    exhausted: bool
    original: Origin | None


class Replay(msgspec.Struct, frozen=True):
    """Holds the replayed element of one result."""

    kernel: str
    op: str
    result: str
    dtype: str
    backend: str
    worst: Worst
    case: str
    flat_index: int
    ulp_exponent: int  # exponent of the spacing at the exact value: one plain ULP is 2^this
    right: str  # the correctly rounded value
    right_hex: str
    misrounded: bool
    repeatable: bool  # True: a second call gave the same bits everywhere
    baseline: Worst | None
    error: Number  # of the element and of PyTorch's: what the limit applies to
    baseline_error: Number | None
    limit: float  # of the element's class of inputs; without a promise, of ordinary inputs
    gate: str
    smaller: Smaller | None = None
    counts: bool = False  # True for integers and conditions, which have no ULP
    unpromised: str = ""  # the inputs of the element, if the kernel promises nothing there
    beside_pytorch: bool = False  # True: it is wrong there if only PyTorch's result is within the limit

    @property
    def judged(self) -> float:
        """Returns the size of the error that the limit applies to."""
        return abs(value_of(self.error))

    @property
    def within(self) -> bool:
        """True unless the element is wrong."""
        # not (error > limit): a NaN is not within
        if self.judged <= self.limit or not self.unpromised:
            return self.judged <= self.limit
        theirs = self.baseline_error
        return not self.beside_pytorch or theirs is None or not abs(value_of(theirs)) <= self.limit

    @property
    def excused(self) -> bool:
        """True if the element is beyond the limit where the kernel promises nothing."""
        return self.within and not self.judged <= self.limit


class ReplayElement(Request[Replay], frozen=True, tag="replay"):
    """Replays one element of a case. On request, makes the case smaller."""

    target: str
    case: str
    result: str = "y"
    index: int = 0
    shrink: bool = False


class LawReplayed(msgspec.Struct, frozen=True):
    """Holds the outcome of a law on a case, or on the smaller case that was found."""

    law: LawRun
    kernel: str
    smaller: Smaller | None


class ReplayLaw(Request[LawReplayed], frozen=True, tag="law"):
    """Tries one law on one case again."""

    target: str
    case: str
    law: str
    shrink: bool = False


class Rounded(msgspec.Struct, frozen=True):
    """Holds one step of a program, and how far the element moves if only that step is rounded."""

    text: str
    value: str
    moves: dict[str, Number]  # in the judged ULP, by the format of the rounding


class Whole(msgspec.Struct, frozen=True):
    """Holds the outcome of a program with every step rounded to one format.

    error: its error at the element.
    same: number of elements with the kernel's bits.
    """

    format: str
    error: Number
    same: int


class Explanation(msgspec.Struct, frozen=True):
    """Divides the error of one element among the steps of a program. Without steps, only `cause` explains it."""

    replay: Replay
    least: Number  # error of the correctly rounded result
    sensitivity: Number | None  # how far half an ulp of x moves the result
    cause: str
    owner: Literal["kernel", "definition"] = "definition"  # the owner of the program
    steps: list[Rounded] = []
    formula: Number | None = None  # error of the kernel's program with no step rounded
    wholes: list[Whole] = []
    compared: int = 0  # number of elements whose bits were compared


class Explain(Request[Explanation], frozen=True, tag="explain"):
    """Divides the error of one element among the steps that lead to it."""

    target: str
    case: str
    result: str = ""
    index: int | None = None  # None: the worst element of the result
    law: str = ""  # a law: explains the element that breaks it


class FoundContract(msgspec.Struct, frozen=True):
    """Holds the contract of one function: the program with its roundings, and how well it predicts."""

    like: str  # the program, for `like=`
    formats: dict[str, str]  # place -> format, without the places in the usual one
    places: dict[str, str]  # every place, in words
    usual: str
    known: float  # share of equal bits on the inputs of the search
    unseen: float  # share of equal bits on other inputs of other recipes
    elements: int  # number of unseen elements
    evaluations: int
    undecided: list[str] = []  # roundings that no input tried could decide
    form: str = ""  # how the program differs from the layer's, such as "tanh in place of erf"

    def lines(self, name: str) -> list[str]:
        """Returns the contract as lines for the screen."""
        share = "100%" if self.unseen == 1 else f"{100 * self.unseen:.3f}%"
        said = f"{name}: predicts {share} of {self.elements:,} unseen results"
        lines = [said + (f"; {self.form}" if self.form else ""), *("    " + line for line in self.like.splitlines())]
        lines += [f"    rounds {self.places[place]} to {kind}" for place, kind in self.formats.items()]
        if not self.formats:
            lines.append("    rounds once, at the end")
        more = len(self.undecided) - _SHOWN
        shown = [*self.undecided[:_SHOWN], *([f"{more:,} more"] if more > 0 else [])]
        return lines + [f"    not decided by these inputs: {text}" for text in shown]


class ContractReport(msgspec.Struct, frozen=True):
    """Holds the contracts of a layer and of a kernel, and where they part."""

    layer: FoundContract
    kernel: FoundContract
    same: bool  # True: equal bits on all inputs tried
    first: str = ""  # the first place where the contracts differ
    shown: str = ""  # an input that shows it

    def __str__(self) -> str:
        lines = [*self.layer.lines("layer"), "", *self.kernel.lines("kernel"), ""]
        if self.same:
            return "\n".join([*lines, "the same contract: equal bits on all inputs tried"])
        lines.append(f"they part at {self.first}" if self.first else "they part at no rounding that was found")
        return "\n".join([*lines, *([f"    {self.shown}"] if self.shown else [])])


class FindContract(Request[ContractReport], frozen=True, tag="contract"):
    """Finds where a layer, given by name, and a kernel round."""

    target: str
    layer: str
    dtype: str = ""
    gradients: bool = False


class Drift(msgspec.Struct, frozen=True):
    """Holds the error of a stream after a stack of layers, as (mean, deviation), shares of the stream."""

    kernel: str
    dtype: str
    layers: int
    stream: str  # the operand that is the stream
    result: str
    carries: bool  # True: the result is the stream; False: it is added to it
    elements: int
    gain: float  # size of a random change after the last layer, over that before it
    call: tuple[float, float]  # the error of the first layer alone
    predicted: tuple[float, float]
    measured: tuple[float, float]


class FindDrift(Request[Drift], frozen=True, tag="drift"):
    """Predicts and measures the drift of a stream. Without a dtype: the first one of 16 bits."""

    target: str
    dtype: str = ""
    layers: int = 72


class SettingBits(msgspec.Struct, frozen=True):
    """Holds the values of one setting by classes of equal bits, and an element at which two differ, as lines.

    The values that the function refuses, or that end its process, are in no class. Nor are layouts in which elements
    share memory, if results have 16 bits: no case brings these to borders of rounding.
    """

    setting: str
    classes: list[list[str]]
    witness: list[str]
    refused: list[str] = []  # each with the reason
    undecided: list[str] = []
    tried: int = 0  # number of values in classes
    proved: str = ""  # for every input, from what Triton compiled


class SameBits(msgspec.Struct, frozen=True):
    """Holds the classes of each setting of a kernel in one dtype, on some inputs of some sizes."""

    kernel: str
    dtype: str
    backend: str
    sizes: dict[str, int]
    inputs: int
    settings: list[SettingBits]


class FindSettings(Request[SameBits], frozen=True, tag="same"):
    """Divides the settings of a kernel into classes of equal bits. Without a dtype: its first one."""

    target: str
    dtype: str = ""
    case: str = ""
    order: bool = False  # True: proofs from what Triton compiled, too
    without: dict[str, str] = msgspec.field(default_factory=dict)  # values that ended an earlier process, and how


class ProvedSum(msgspec.Struct, frozen=True):
    """Holds a sum of a launch: what each term reads, and where the sum itself is stored, as (operand, byte)."""

    terms: list[list[tuple[int, int]]]
    results: list[tuple[int, int]]


class Proof(msgspec.Struct, frozen=True):
    """Holds what `tests/oracle/summation.py` needs to check an order, without the code that found it."""

    target: str
    ptx: str
    values: list[int | None]  # of the operands
    program: list[int]
    grid: list[int]
    zeros: bool  # True: zeros are added, which turns a sum of negative zeros into zero
    products: bool  # True: a term is a product, whose rounding is counted; it may be fused
    branches: bool  # True: data choose between branches of the program
    bound: float  # of the error of a sum, as a share of the sum of the magnitudes of its terms
    sums: list[ProvedSum]


class Order(msgspec.Struct, frozen=True):
    """Holds the order in which a kernel adds up one result, as additions of terms and of earlier additions.

    An addition has the number of the terms and of those before it.
    """

    kernel: str
    dtype: str
    backend: str
    operand: str
    result: str
    rows: int  # of each call
    unknown: str = ""  # why there is no order
    kind: str = ""
    terms: int = 0
    additions: list[tuple[int, int]] = []
    depth: int = 0  # the most additions that a term goes through
    explained: float = 0.0  # the share of other results, or of probes of three terms, that the order gives
    tested: str = ""  # what this share is of
    spacing: float = 0.0  # of 1.0 in the format that the order adds in
    words: list[str] = []
    basis: Literal["probed", "compiled"] = "probed"  # from results, or from what Triton compiled
    proof: Proof | None = None


class FindOrders(Request[list[Order]], frozen=True, tag="order"):
    """Recovers the orders of the sums of a kernel. Without a dtype: its first one."""

    target: str
    dtype: str = ""
    case: str = ""
