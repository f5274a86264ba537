"""A worker that starts no process, for tests of what asks workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verify.records.record import Run
from verify.workers.requests import About, Environment

ABOUT = About("interpreter", "cpu", {}, workers=4)


class FakeWorker:
    """Answers a request with the `reply` to it, or raises that, and remembers requests, their times and its stops."""

    def __init__(self, reply: Callable[[Any], Any] = lambda request: 1, about: About | Exception = ABOUT) -> None:
        self.reply, self.about = reply, about
        self.alive = True
        self.stops = 0
        self.asked: list[Any] = []
        self.timeouts: list[float] = []

    def answer(self, request: Any) -> Any:
        """Returns the reply to a request, or its error."""
        return self.about if isinstance(request, Environment) else self.reply(request)

    def ask(self, request: Any, *, timeout: float, progress: Any = None) -> Any:
        if not isinstance(request, Environment):
            self.asked.append(request)
            self.timeouts.append(timeout)
        found = self.answer(request)
        if isinstance(found, Exception):
            raise found
        return found

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
