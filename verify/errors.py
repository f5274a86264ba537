"""Errors that a user meets: each states the rule, what was received, and the next command."""

from __future__ import annotations

# Exit codes of every command; `verify.cli.exits` says what each means.
PASS, WRONG, USAGE, INCOMPLETE, UNWRITTEN = range(5)
OF_VERDICT = {"pass": PASS, "fail": WRONG, "incomplete": INCOMPLETE}

# How lines say what was not judged.
IN_ERROR = "the harness is in error, no verdict"
SPENT = "the time budget was spent"


LONGEST = 2000  # characters of a message that is not verify's own


def said_by(error: BaseException) -> str:
    """Returns what an exception of other code says: at most LONGEST characters, all of which can be written."""
    try:
        text = str(error)
    except Exception:
        return "its message cannot be read"
    more = f"... ({len(text):,} characters)" if len(text) > LONGEST else ""
    return text[:LONGEST].encode("utf-8", "backslashreplace").decode() + more


class VerifyError(Exception):
    """Base of everything that verify raises knowingly."""


class UsageError(VerifyError):
    """The user asked for something that cannot be: exit code 2. `hint` is the next command or step."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  next: {self.hint}"


class WriteError(VerifyError):
    """A file could not be written: exit code 4. What was measured is on the screen by then. `hint` as above."""

    def __init__(self, message: str, *, hint: str = "make room or name another file, then the same command") -> None:
        super().__init__(message)
        self.hint = hint


class TruthError(VerifyError):
    """Two routes to the exact value disagree, or precision ran out: an error of the harness; stops the run."""


class BeyondEffort(TruthError):
    """The exact value of one element depends on more numbers than its problem is given time for."""


class KernelError(VerifyError):
    """A kernel broke its contract (wrong shape, dtype, device, not a tensor, raised): that kernel's result."""


class Refused(KernelError):
    """A kernel raised an error of Python's on a case: it does not take it."""


class RefusedBackward(Refused):
    """The same in its backward pass alone."""


class OtherDtype(KernelError):
    """An output has another dtype than is declared for it."""

    def __init__(self, message: str, output: str, dtype: str) -> None:
        super().__init__(message)
        self.output, self.dtype = output, dtype


class InternalError(VerifyError):
    """verify itself failed in a worker: an exception that no code there expects. Its traceback is on stderr."""


class JudgeFailed(InternalError):
    """The process that judges died, or ran out of time or memory: nothing is known of the kernel."""


def no_verdict(error: Exception) -> str:
    """How a line says that the harness is in error: its own routes disagree, or it failed where no code expects it."""
    return f"{IN_ERROR}: {error if isinstance(error, TruthError) else f'verify itself failed: {error}'}"
