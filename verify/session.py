"""Keeps worker processes warm between calls: `verify.Session`.

with verify.Session() as session:
    for block in (64, 128, 256):
        print(session.run("accuracy.py", dtypes=["bfloat16"]).verdict)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from verify import api
from verify.declare.requests import Forget
from verify.errors import UsageError
from verify.workers.pool import Pool
from verify.workers.process import Worker

P = ParamSpec("P")
R = TypeVar("R")
FORGET_SECONDS = 60.0
USE = 'with verify.Session(backend="cuda") as session: session.run("accuracy.py")'


def _on_warm_workers(function: Callable[P, R]) -> Callable[Concatenate[Session, P], R]:
    """Makes a method of a public function. Its workers and its backend are those of the session."""

    @functools.wraps(function)
    def called(self: Session, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if own := [name for name in ("backend", "gpus", "scheduler", "pool") if kwargs.get(name)]:
            raise UsageError(f"a session has the workers of its calls; received {own[0]}=", hint=USE)
        taken: Any = {**kwargs, "pool": self._ready(), "backend": self._backend}
        return function(*args, **taken)

    return called


class Session:
    """Holds worker processes that stay between calls, so that only the first call waits for torch and the GPU.

    The methods run, sweep, hunt and judge take the arguments of the functions of these names. Each call imports the
    files of kernels as they are then. Calls follow one another; they are not for several threads.

    backend: "cuda", "interpreter" or "cpu"; without it the first of these that is there.
    gpus: workers on several GPUs of this machine, "all" or "0,2".
    """

    def __init__(self, *, backend: str | None = None, gpus: str | None = None) -> None:
        self._backend, self._gpus = backend, gpus
        self._stack = ExitStack()
        self._pool: Pool | None = None

    def __enter__(self) -> Session:
        pool = self._stack.enter_context(api.workers(self._gpus, None, (), self._backend))
        self._pool = pool or self._stack.enter_context(Pool.started(self._backend))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool = None
        self._stack.close()

    def _ready(self) -> Pool:
        """Returns the workers, which have forgotten the files of earlier calls."""
        if self._pool is None:
            hint = "with verify.Session() as session: ..."
            raise UsageError("a session has workers inside its with block", hint=hint)
        for worker in self._pool.workers:
            if isinstance(worker, Worker) and worker.alive:
                worker.ask(Forget(), timeout=FORGET_SECONDS)
        return self._pool

    run = _on_warm_workers(api.run)
    sweep = _on_warm_workers(api.sweep)
    hunt = _on_warm_workers(api.hunt)
    judge = _on_warm_workers(api.judge)
