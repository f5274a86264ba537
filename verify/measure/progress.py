"""Makes the progress line of a run: its running parts, how far each is, and an estimate of the time left."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from verify.workers.requests import Step

FIRST_CASE = 2.0  # a part's first case compiles: it counts as this many others
LAWS_SHARE = 0.7  # share of the laws in the time of a part that tries them
MOST_GROWTH = 2.5  # beyond so many times the first estimate the line says "more than"


@dataclass
class _Running:
    """Holds a running part: when it began, when its first case began, and its last report."""

    began: float
    step: str
    first_case: float | None = None


class Line(str):
    """A line of progress. `share` of the run is done, from 0 to 1."""

    share: float = 0.0


class Progress:
    """Holds the parts of a run that are running, and the last `Step` that each reported."""

    def __init__(self, total: int, laws: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self._laws, self._clock = total, laws, clock
        self._lock = threading.RLock()  # each worker reports from a thread of its own
        self.ended = 0
        self._seconds: list[float] = []  # of each ended part that was measured in this run
        self._running: dict[str, _Running] = {}
        self._at_once = 1  # the most parts that ran at a time
        self._first: float | None = None  # the first estimate

    def begin(self, part: str, text: str) -> str:
        """Records that a part begins; returns the line."""
        with self._lock:
            self._running[part] = _Running(self._clock(), text)
            self._at_once = max(self._at_once, len(self._running))
            return self.line()

    def at(self, part: str, step: str) -> str:
        """Records how far a part is; returns the line."""
        with self._lock:
            running = self._running[part]
            running.step = step
            if running.first_case is None and isinstance(step, Step) and step.total:
                running.first_case = self._clock()
            return self.line()

    def end(self, part: str) -> str:
        """Records that a part ended, also one that was never begun because nothing of it remained; returns the line."""
        with self._lock:
            self.ended += 1
            if (running := self._running.pop(part, None)) is not None:
                self._seconds.append(self._clock() - running.began)
            return self.line()

    def line(self) -> Line:
        """Returns a line such as `2 of 6 done, about 40 s left; running: gelu float32, case 3 of 12`."""
        running = "; ".join(each.step for each in self._running.values())
        left = self.left()
        guess = ""
        if left is not None:
            self._first = left if self._first is None else self._first
            most = MOST_GROWTH * self._first
            guess = f", about {clock(left)} left" if left <= most else f", more than {clock(most)} left"
        line = Line(f"{self.ended} of {self.total} done{guess}" + (f"; running: {running}" if running else ""))
        done = self.ended + sum(self._share(each.step) for each in self._running.values())
        line.share = done / self.total if self.total else 0.0
        return line

    def left(self) -> float | None:
        """Estimates the seconds left: parts take as long as others did. Returns None before the first case ended."""
        now = self._clock()
        expected = {part: self._expected(running, now) for part, running in self._running.items()}
        known = [*self._seconds, *filter(None, expected.values())]
        if not known or self.ended == self.total:
            return None
        usual = sum(known) / len(known)
        left = [max((expected[part] or usual) - (now - each.began), 0.0) for part, each in self._running.items()]
        rounds = math.ceil((self.total - self.ended - len(left)) / self._at_once)
        return max([rounds * usual + sum(left) / self._at_once, *left])

    def _expected(self, running: _Running, now: float) -> float | None:
        """Returns the seconds that a running part takes in all; None before its first case ended."""
        share = self._share(running.step)
        if not share or running.first_case is None:
            return None
        return running.first_case - running.began + (now - running.first_case) / share

    def _share(self, step: str) -> float:
        """Returns the share of a part's cases and laws that is done."""
        if not isinstance(step, Step) or not step.total or (step.unit == "case" and step.number < 2):
            return 0.0
        share = (step.number - 1) / step.total
        if step.unit == "case":
            share = (step.number - 2 + FIRST_CASE) / (step.total - 1 + FIRST_CASE)
        before_laws = 1 - LAWS_SHARE if self._laws else 1.0
        return share * before_laws if step.unit == "case" else before_laws + share * LAWS_SHARE


def clock(seconds: float) -> str:
    """Returns a coarse time such as `40 s`, `3 min` or `2.5 h`."""
    if seconds < 99:
        return f"{max(5 * round(seconds / 5), 5)} s"
    return f"{round(seconds / 60)} min" if seconds < 99 * 60 else f"{seconds / 3600:.1f} h"
