"""Defines the errors that a user meets. Each gives the rule, the received value, and the next command."""

import math
from collections.abc import Iterable
from typing import Any

# Exit codes of every command. `verify.cli.exits` explains them.
PASS, WRONG, USAGE, INCOMPLETE, UNWRITTEN = range(5)
OF_VERDICT = {"pass": PASS, "fail": WRONG, "incomplete": INCOMPLETE}

# Phrases for parts without a verdict.
IN_ERROR = "the harness is in error, no verdict"
SPENT = "the time budget was spent"


LONGEST = 2000  # the most characters of a message from other code


def said_by(error: BaseException) -> str:
    """Returns the message of an exception of other code: at most LONGEST characters, all printable."""
    try:
        text = str(error)
    except Exception:
        return "its message cannot be read"
    more = f"... ({len(text):,} characters)" if len(text) > LONGEST else ""
    return text[:LONGEST].encode("utf-8", "backslashreplace").decode() + more


class VerifyError(Exception):
    """Base of every error that verify raises on purpose."""


class UsageError(VerifyError):
    """Reports that the user's request is not possible: exit code 2. `hint` is the next command or step."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  next: {self.hint}"


def nearest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns the known name that is closest to the given one; "" if none is close."""
    import difflib  # 8 ms, only for a message

    return next(iter(difflib.get_close_matches(given, list(known), n=1, cutoff=cutoff)), "")


def closest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns ` (closest: NAME)` with the same name; "" if none is close."""
    name = nearest(given, known, cutoff)
    return f" (closest: {name})" if name else ""


def one_of(where: str, what: str, value: Any, allowed: Iterable[str]) -> Any:
    """Returns the value. Raises UsageError with the closest name if it is not one of those allowed."""
    names = list(allowed)
    if value not in names:
        near = closest(value, names) if isinstance(value, str) else ""
        listed = ", ".join(name or "''" for name in names)
        hint = f"{what}={next(filter(None, names))!r}"
        raise UsageError(f"{where}: {what} is one of {listed}; received {value!r}{near}", hint=hint)
    return value


def from_zero(where: str, what: str, value: Any) -> float:
    """Returns a number. Raises UsageError unless it is finite and at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageError(f"{where}: {what} is a finite number of at least 0; received {value!r}", hint=f"{what}=1.0")
    return float(value)


class WriteError(VerifyError):
    """Reports that a file could not be written: exit code 4. The results are already on the screen.

    `hint` is the next command or step.
    """

    def __init__(self, message: str, *, hint: str = "make room or name another file, then the same command") -> None:
        super().__init__(message)
        self.hint = hint


class TruthError(VerifyError):
    """Reports that two routes to the exact value disagree, or that precision ran out.

    The error is verify's own, and the run stops.
    """


class BeyondEffort(TruthError):
    """Reports that the exact value of one element depends on more numbers than its budget allows."""


class KernelError(VerifyError):
    """Reports that a kernel broke its contract: wrong shape, dtype or device, not a tensor, or an exception.

    It becomes the result of that kernel.
    """


class Refused(KernelError):
    """Reports that a kernel raised a Python exception on a case: it refuses the case."""


class RefusedBackward(Refused):
    """Reports that only the backward pass of a kernel refused a case."""


class InternalError(VerifyError):
    """Reports that verify itself failed in a worker with an unexpected exception. The traceback is on stderr."""


class JudgeFailed(InternalError):
    """Reports that the judging process died, or ran out of time or memory. The kernel has no verdict."""


def no_verdict(error: Exception) -> str:
    """Returns the text about an error of verify itself: its routes disagree, or an unexpected exception occurred."""
    return f"{IN_ERROR}: {error if isinstance(error, TruthError) else f'verify itself failed: {error}'}"
