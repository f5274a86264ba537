"""A worker process for code that may hang, crash or exhaust memory; the parent survives.

A worker that dies or is late is killed with everything that it started, and a new one takes the next request. So is a
worker that reports that it cannot be used any more. Every wait has a limit.

`subprocess` starts it, because a worker has its own environment and session. A process that `multiprocessing` starts
without a fork would import the main module of the user's program, which a worker must not do.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import msgspec

from verify import start
from verify.errors import SPENT, KernelError, UsageError, VerifyError
from verify.records.part_store import cache
from verify.workers import process_tree
from verify.workers.calls import Callee
from verify.workers.channel import Channel
from verify.workers.fork_server import Begin, End, exchange
from verify.workers.phases import phase
from verify.workers.requests import Died, Late, OnProgress, R, Request, demand_reply, kind_of

START_SECONDS = 180.0  # importing torch on a cold, slow disk, then the user's module


class OutOfTime(VerifyError):
    """The time budget ended before the reply came; the kernel is not to blame."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__(f"not {'finished' if begun else 'begun'}: {SPENT}")


class Answers(Protocol):
    """An object that takes requests: a worker, or a pool."""

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress = ...) -> R: ...


class AnyWorker(Answers, Protocol):
    """A `Worker` of this machine, or a place in a cluster (`verify.workers.cluster.RemoteWorker`)."""

    @property
    def alive(self) -> bool: ...

    def stop(self) -> object: ...


class Worker(Callee):
    """Runs requests in a child process: `ask` returns the reply, or raises the error.

    `environment` is added to the parent's own variables. With a `template` it forks the process.
    """

    who = "judge"
    options: tuple[str, ...] = ()  # of the command, after the backend

    def __init__(
        self, backend: str | None = None, environment: Mapping[str, str] | None = None, template: Template | None = None
    ) -> None:
        super().__init__()
        self._backend, self._template = backend, template
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._channel: Channel | None = None
        self._mark = ""
        self._changing = threading.RLock()  # held while a process starts or ends

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """True if a process is ready for the next request."""
        return self._channel is not None and not self._channel.ended

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress = lambda text: None) -> R:
        """Sends one request and returns its reply, which must come within `timeout` seconds."""
        with phase(f"parent: ask for {kind_of(request)}"):
            deadline = time.monotonic() + timeout
            outcome = self.call(msgspec.json.encode(request), deadline=deadline, progress=progress)
            return request.read(demand_reply(outcome).value)

    def stop(self, *, at_once: bool = True) -> None:
        """Kills the worker and everything it started. Any thread may call this, also while another one asks."""
        with self._changing:
            process, self._process = self._process, None
            if process is None or self._channel is None:
                return
            self._channel.hang_up()
            self._channel = None
            with phase("parent: end a worker"):
                process_tree.end(process, self._mark)

    def begin(self) -> None:
        """Starts the process, unless there is one. It imports the modules that every request needs."""
        with self._changing:
            if self.alive:
                return
            self.stop()
            self._channel, theirs = Channel.pair()
            self._mark = secrets.token_hex(16)
            variables = {**self._environment, process_tree.MARK: self._mark}
            with theirs:
                if self._template is not None:
                    self._process = self._template.fork(theirs, variables)
                    return
                command = start.command("verify.worker", str(theirs.fileno()), self._backend or "", *self.options)
                output = subprocess.DEVNULL
                with suppress(OSError, AttributeError, ValueError):  # stderr may be no file
                    output = sys.stderr.fileno()
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env=start.environment({**os.environ, **variables}),
                )

    def _connected(self) -> Channel:
        with self._changing:
            self.begin()
            assert self._channel is not None
            return self._channel

    def died(self) -> Died:
        """Ends a process that closed its end of the connection. Returns why there is no answer."""
        process, code = self._process, 0
        try:
            code = process.wait(timeout=process_tree.END_SECONDS) if process is not None else 0
        except subprocess.TimeoutExpired:
            limit = f"{process_tree.END_SECONDS:g} s"
            return Died(f"the process closed its connection and did not end within {limit}; stopped", who="judge")
        finally:
            self.stop()
        return Died.of(code, who="judge")

    def wrote_into_connection(self, text: str) -> Died:
        """Ends a process that sent something other than a message of verify, as `text` says. Returns the outcome."""
        self.stop()
        return Died("the process sent no message of verify; stopped", who="judge")


class Template(Worker):
    """A process that has imported what workers need. Its forks are workers, which start in milliseconds.

    It makes no context of a GPU, because no fork could use that.
    """

    options = ("forks",)

    def fork(self, channel: Channel, variables: Mapping[str, str]) -> ForkedProcess:
        """Starts a worker at the other end of a channel, once everything is imported."""
        given = msgspec.Raw(msgspec.json.encode(variables))
        return ForkedProcess(self, self.exchange(Begin(given), [channel.fileno()]) or 0)

    def exchange(self, request: Begin | End, descriptors: Sequence[int] = ()) -> int | None:
        """Returns the answer to a request (`verify.workers.fork_server.exchange`)."""
        with self._changing:
            try:
                return exchange(self._connected(), request, time.monotonic() + START_SECONDS, descriptors)
            except TimeoutError:
                self.stop()
                raise Late(f"no worker was started within {START_SECONDS:g} s; stopped", who=self.who) from None
            except (EOFError, ConnectionError):
                raise self.died() from None


class ForkedProcess:
    """A process that a template started, with what a worker needs of `subprocess.Popen`."""

    def __init__(self, template: Template, pid: int) -> None:
        self._template, self.pid = template, pid
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """Returns the exit code of a process that has ended, or that ends within a grace period."""
        if self.returncode is None:
            self.returncode = self._template.exchange(End(self.pid))
        if self.returncode is None:
            raise subprocess.TimeoutExpired("verify.worker", timeout)
        return self.returncode


def ask_about(worker: Answers, request: Request[R], subject: str, *, timeout: float) -> R:
    """Returns the reply. Raises UsageError with the subject if the kernel raises, hangs or ends the process."""
    try:
        return worker.ask(request, timeout=timeout)
    except KernelError as error:
        raise UsageError(str(error)) from error
    except (Died, Late) as error:
        raise UsageError(f"{subject}: {error}") from error


# -- in the child ----------------------------------------------------------------------------------------------


def import_torch(*, identifies_triton: bool) -> None:
    """Imports PyTorch for all forks of this process.

    Args:
        identifies_triton: Triton reads its own 400 MB beside the import. Otherwise every fork that compiles a kernel
            reads them, for seconds.
    """
    reading = threading.Thread(target=_identify_triton)
    if identifies_triton:
        reading.start()
    gc.disable()  # imported objects stay: walking them is a tenth of the import
    try:
        with _byte_code():
            import torch  # noqa: F401
    finally:
        gc.enable()
    if identifies_triton:
        reading.join()


@contextmanager
def _byte_code() -> Iterator[None]:
    """Lets Python keep the byte code of PyTorch in verify's cache if its installation has none.

    Images often have none, and forbid to write any. Compiling PyTorch's source takes 2.5 s of each start.
    """
    found, before = importlib.util.find_spec("torch"), (sys.pycache_prefix, sys.dont_write_bytecode)
    if found and found.origin and found.cached and not os.path.exists(found.cached):
        with suppress(RuntimeError):  # the user has no home folder
            at = os.stat(found.origin).st_mtime_ns  # an image may give all versions of a file the same time
            sys.pycache_prefix = str(cache("byte-code") / f"torch-{importlib.metadata.version('torch')}-{at}")
            sys.dont_write_bytecode = False
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before


def _identify_triton() -> None:
    with suppress(Exception):  # a failure is harmless: Triton then reads it later
        from triton.runtime.cache import triton_key

        triton_key()
