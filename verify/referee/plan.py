"""The plan of a judgement, the observations of the host, and the answer, with the request that times a solution.

Importing this needs no torch.
"""

import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from verify.errors import INCOMPLETE, PASS, WRONG
from verify.workers.requests import Request
from verify.workers.sandbox.confine import Confined

SCHEMA = 2  # 2: speed has figures
# what is data: tricks, forms of problems, things that a machine may lack
RULES: dict[str, Any] = tomllib.loads((Path(__file__).parent / "rules.toml").read_text())
# How the names of problems begin: at their own sizes, with weights of a seed, at other sizes.
OWN, SEEDED, OTHER = "own", "seeded", "beyond"
RUNNER = "verify.referee.runner"  # what the process of a solution runs
SAYS = "its process says: "  # before texts that the solution may have written

# Parts of texts that decide: of the verdict of a problem's own check, and of a failure
AS_THE_MODEL, SAYS_NOTHING = ", as the problem's own model does", ", as zeros do: it says nothing"
GAVE_NONE = "gave no answer within"

SolutionVerdict = Literal["accepted", "wrong", "cheats", "fails", "undecided"]


class Plan(msgspec.Struct, frozen=True):
    """All settings that decide about a solution. It is hashed before the solution starts."""

    format: str
    problem: str  # absolute path of a file or folder, or FILE::KERNEL
    scratch: str  # where the solution may write
    file: str  # of the solution in the scratch folder
    notes: str  # folder for the observations of the host
    seed: int
    profile: str
    seconds: float  # of one call
    build_seconds: float  # in which the solution is imported, and what it has compiled
    memory: int  # bytes beyond those of a new process
    device: str = "cpu"
    starter: str = ""  # the socket at which its processes are started
    gpu_share: float = 1.0  # of the memory of a GPU that it may use beside others
    weaker: bool = False  # judge also where this machine does not hold the solution


class Observed(msgspec.Struct):
    """Observations of a solution besides its results."""

    calls: int = 0
    limits: Confined = Confined()
    failed: str = ""  # why it was not built, or its process ended
    own_check: str = ""  # the verdict of the problem's own tolerance on its own inputs
    forged: str = ""
    lazy: str = ""
    replayed: str = ""  # an answer with the bits of an earlier one to other arguments
    late: bool = False
    changed: tuple[str, ...] = ()
    copies: str = ""  # the argument of which every answer was a copy
    constant: str = ""  # the only number in all answers
    narrow: str = ""  # a format of 16 bits that holds every answer
    unwritten: int = 0  # elements of answers that were never written
    dropped: str = ""  # parameters of the problem for which the solution's module has too few numbers
    by_seed: bool = False  # True: its weights come by a seed, because no call can write them
    functions: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()  # functions that a harness judges with
    modes: tuple[str, ...] = ()


class Trick(msgspec.Struct, frozen=True):
    """A recognised trick, by its name in docs/judge.md, with the evidence."""

    name: str
    evidence: str


class WrongInput(msgspec.Struct, frozen=True):
    """The smallest input found on which a solution is wrong, at its worst element."""

    result: str
    input: str
    index: str
    got: str
    truth: str
    error: str
    reason: str
    case: str  # as JSON


class CallTime(msgspec.Struct, frozen=True):
    """Holds the time of one call of a solution beside the reference's. docs/judge.md says which figures are proven.

    `reason` says why nothing was timed; with `failed`, the solution raised or ended. `tricks` has evidence by the names
    of tricks.
    """

    problem: str
    milliseconds: float | None = None  # without the judge's own work
    at_most: float | None = None  # with it: proven
    own_clock: float | None = None  # by the clock of the solution's process, which is not trusted
    reference: float | None = None
    times_as_fast: float | None = None  # as the reference
    at_least: float | None = None  # proven
    calls: int = 0
    wrong: str = ""  # why an answer is wrong, where the call that is not timed is wrong too
    reason: str = ""
    failed: bool = False
    tricks: dict[str, str] = {}


class TimeSolution(Request[CallTime], frozen=True, tag="time_solution"):
    """Time the solution of a problem that was judged, and judge some of its answers, `judges` at a time."""

    target: str
    seconds: float
    judges: int


class Judgement(msgspec.Struct, frozen=True):
    """The answer about one solution."""

    schema: int
    verdict: SolutionVerdict
    problem: str
    solution: str
    format: str
    message: str = ""
    wrong: WrongInput | None = None
    tricks: list[Trick] = []
    errors: list[dict[str, Any]] = []  # columns of rows of `verify.run` (docs/api.md)
    facts: list[str] = []  # observations that decide nothing
    own_check: str = ""  # the verdict of the problem's own tolerance on its own inputs; it decides nothing
    checked: list[str] = []
    unchecked: list[str] = []
    speed: list[CallTime] = []  # one for each of the problem's calls, where the solution is accepted
    isolation: list[str] = []
    not_isolated: list[str] = []
    given_up: list[str] = []  # by --allow-weaker: the solution may have reached the machine, so exit code 3
    fixed: dict[str, str] = {}  # digests from before the solution started
    profile: str = "quick"
    backend: str = ""
    seed: int = 0
    calls: int = 0
    seconds: float = 0.0


# in the order in which solutions of one problem are ranked
EXIT_CODES: dict[SolutionVerdict, int] = {"accepted": PASS, "wrong": WRONG, "cheats": WRONG, "fails": WRONG}
EXIT_CODES["undecided"] = INCOMPLETE


def schema() -> dict[str, Any]:
    """Returns the JSON schema of a judgement."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "version": SCHEMA}
    return about | msgspec.json.schema(Judgement)
