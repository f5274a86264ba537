"""Defines the exit codes of every command, their names and meanings, and how a command ends at a signal."""

import contextlib
import signal
import threading
from collections.abc import Iterator

from verify.errors import INCOMPLETE as INCOMPLETE
from verify.errors import OF_VERDICT as OF_VERDICT
from verify.errors import PASS as PASS
from verify.errors import UNWRITTEN as UNWRITTEN
from verify.errors import USAGE as USAGE
from verify.errors import WRONG as WRONG

UNREAD = 141  # the reader closed the output early; a shell reports the same for a command that a closed pipe ended

# docs/cli.md and `verify --help` print this table. A command that deviates describes that.
MEANING = {
    PASS: "pass",
    WRONG: "wrong, breached or failed",
    USAGE: "usage: the command cannot be carried out as it was typed",
    INCOMPLETE: "incomplete: something was not measured, or its verdict is vacuous or undecided",
    UNWRITTEN: "unwritten: a file could not be written (full disk, no permission), for any verdict on the screen",
}


def worse(code: int) -> int:
    """Returns the sort key of the exit codes of several verdicts: the worst of them counts."""
    return (PASS, INCOMPLETE, USAGE, WRONG).index(code)


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Treats SIGTERM as Ctrl-C: a scheduler sends it, and the finished measurements are then shown."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
