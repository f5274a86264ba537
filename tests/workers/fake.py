"""A worker that starts no process, for tests of what asks workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verify.records.record import Run


class FakeWorker:
    """Answers requests with what `answer` gives, and counts its stops."""

    def __init__(self) -> None:
        self.alive = True
        self.stops = 0

    def answer(self, request: Any, timeout: float) -> Any:
        """Returns the reply to a request, which may take `timeout` seconds, or raises."""
        raise NotImplementedError

    def ask(self, request: Any, *, timeout: float, progress: Any = None) -> Any:
        return self.answer(request, timeout)

    def stop(self) -> None:
        self.stops += 1


def raising(error: BaseException) -> Callable[..., Any]:
    """Returns a function that raises an error, whatever it is asked."""

    def reply(*_: Any) -> Any:
        raise error

    return reply


def texts(done: Run) -> list[str]:
    """Returns what a record says of each part that did not happen."""
    return [gap.text for gap in done.incomplete]
