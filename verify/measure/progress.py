"""Makes the progress line of a run: its running parts, how far each is, and an estimate of the time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from verify.workers.requests import Step

FIRST_GUESS = 3.0  # seconds before the first estimate
LAWS_SHARE = 0.7  # share of the laws in the time of a part that tries them


class Progress:
    """Holds the parts of a run that are running, and the last `Step` that each reported."""

    def __init__(self, total: int, laws: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self._laws, self._clock = total, laws, clock
        self._lock = threading.RLock()  # each worker reports from a thread of its own
        self.ended = 0
        self._measured = 0  # number of ended parts that were measured in this run
        self._since: float | None = None
        self._running: dict[str, tuple[float, str]] = {}  # by part: its start, and its last report

    def begin(self, part: str, text: str) -> str:
        """Records that a part begins; returns the line."""
        with self._lock:
            self._since = self._since or self._clock()
            self._running[part] = self._clock(), text
            return self.line()

    def at(self, part: str, step: str) -> str:
        """Records how far a part is; returns the line."""
        with self._lock:
            self._running[part] = self._running[part][0], step
            return self.line()

    def end(self, part: str) -> str:
        """Records that a part ended, also one that was never begun because nothing of it remained; returns the line."""
        with self._lock:
            self.ended += 1
            self._measured += self._running.pop(part, None) is not None
            return self.line()

    def line(self) -> str:
        """Returns a line such as `2 of 6 done, about 40 s left; running: gelu float32, case 3 of 12`."""
        running = "; ".join(text for _, text in self._running.values())
        left = self.left()
        guess = "" if left is None else f", about {clock(left)} left"
        return f"{self.ended} of {self.total} done{guess}" + (f"; running: {running}" if running else "")

    def left(self) -> float | None:
        """Estimates the seconds left: remaining parts take as long as those done. Returns None if it is too early."""
        now = self._clock()
        spent = 0.0 if self._since is None else now - self._since
        shares = {part: self._share(step) for part, (_, step) in self._running.items()}
        done = self._measured + sum(shares.values())
        if spent < FIRST_GUESS or done < 0.02 or self.ended == self.total:
            return None
        all_of_it = spent * (self.total - self.ended + self._measured - done) / done
        alone = [
            (now - since) * (1 - shares[part]) / shares[part]
            for part, (since, _) in self._running.items()
            if shares[part] > 0.02
        ]
        return max([all_of_it, *alone])

    def _share(self, step: str) -> float:
        """Returns the share of a part that is done."""
        if not isinstance(step, Step) or not step.total:
            return 0.0
        share = (step.number - 1) / step.total
        before_laws = 1 - LAWS_SHARE if self._laws else 1.0
        return share * before_laws if step.unit == "case" else before_laws + share * LAWS_SHARE


def clock(seconds: float) -> str:
    """Returns a coarse time such as `40 s`, `3 min` or `2.5 h`."""
    if seconds < 99:
        return f"{max(5 * round(seconds / 5), 5)} s"
    return f"{round(seconds / 60)} min" if seconds < 99 * 60 else f"{seconds / 3600:.1f} h"
