"""Writes down the time of a command's phases: with VERIFY_TIMES=FILE each process adds a line for each phase.

A line has the start of the phase after the command's start, its duration, the process, and the phase. `sort -n FILE`
sorts by time. The clock is the system's, the same for all processes of a machine.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE, _SINCE = "VERIFY_TIMES", "VERIFY_TIMES_SINCE"


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Records the with block as one phase."""
    file = os.environ.get(VARIABLE)
    if not file:
        yield
        return
    begun = time.monotonic()
    since = float(os.environ.setdefault(_SINCE, repr(begun)))
    try:
        yield
    finally:
        line = f"{begun - since:8.3f} s  took {time.monotonic() - begun:7.3f} s  process {os.getpid():<7}  {name}\n"
        with open(file, "a", encoding="utf-8") as log:  # one write, so lines of several processes do not mix
            log.write(line)
