"""Several machines: the workers of a Dask cluster answer the requests of `verify.worker`.

A `RemoteWorker` has the interface of `verify.workers.process.Worker`, so a pool spreads jobs over a cluster as over
processes of this machine. Each Dask worker has one isolated worker process. A kernel that crashes or hangs ends that
process, never the Dask worker. If a Dask worker is lost, the scheduler gives its request to another one. Figures do not
depend on the worker, because every request is complete in itself and partial results merge exactly.

Only equal workers may answer: same backend, GPU, driver, torch, triton, verify and target files. An unequal worker is
rejected by name before anything runs. So is an answer from an unequal one that joined later.

Dask connects without a password unless TLS is configured, and it runs any code that it receives. Only trusted people
must be able to reach its scheduler.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from verify.errors import UsageError
from verify.records.commit import digest, own_digest
from verify.workers.calls import event_of, outcome_of
from verify.workers.pool import Pool, equal_workers, identity_of, refuse_unlike
from verify.workers.process import START_SECONDS, Worker
from verify.workers.requests import Died, Environment, Event, Failure, OnProgress, Progressed, R, Request, demand_reply

CONNECT_SECONDS = 20.0
LOOK_SECONDS = 5.0  # between checks that a request's worker is still there
TOPIC = "verify-progress"

_MISSING = "distributing work needs Dask distributed"
_INSTALL = 'python -m pip install "verify-kernels[cluster]"'


# -- on a Dask worker -----------------------------------------------------------------------------------

_lock = threading.Lock()
_workers: dict[str, Worker] = {}


def serve(request: bytes, backend: str, timeout: float, ticket: str) -> bytes:
    """Sends one request to this Dask worker's isolated process, and returns the event that answers it, as JSON."""
    with _lock:
        try:
            deadline = time.monotonic() + timeout
            outcome = _process(backend).call(request, deadline=deadline, progress=_forward(ticket))
        except Exception as error:
            outcome = Failure.of(error)
    return msgspec.json.encode(event_of(outcome))


def _process(backend: str) -> Worker:
    """Returns this Dask worker's isolated process, and starts it at the first call."""
    if backend not in _workers:
        _workers[backend] = Worker(backend or None)
    return _workers[backend]


def stop_worker(backend: str) -> None:
    """Ends this Dask worker's isolated process; the next request starts a new one."""
    with _lock:
        worker = _workers.pop(backend, None)
        if worker is not None:
            worker.stop()


def raise_flag(path: str) -> None:
    """Creates the file that asks a running request on this machine to end."""
    flag = Path(path)
    flag.parent.mkdir(parents=True, exist_ok=True)
    flag.touch()


def lower_flag(path: str) -> None:
    """Removes the file that `raise_flag` created, and its folder if empty."""
    flag = Path(path)
    flag.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # never created here, or shared with another machine
        flag.parent.rmdir()


def identify(backend: str, sources: tuple[str, ...]) -> dict[str, str]:
    """Returns the facts that must be equal among the workers of one run, as text."""
    with _lock:
        try:
            found = identity_of(_process(backend).ask(Environment(), timeout=START_SECONDS))
        except Exception as error:
            return {"error": str(error)}
    found["verify sources"] = own_digest()
    for source in sources:
        found[source] = digest(Path(source))
    return found


def _forward(ticket: str) -> OnProgress:
    """Returns a function that sends progress to the command as an event. `ticket` identifies the request."""
    from distributed import get_worker

    def forward(text: str) -> None:
        with contextlib.suppress(ValueError):  # raised outside a Dask worker
            get_worker().log_event(TOPIC, {"ticket": ticket, "step": msgspec.to_builtins(Progressed.of(text))})

    return forward


# -- on the side of the command -------------------------------------------------------------------------


class RemoteWorker:
    """One place in a cluster's queue, with the interface of `verify.workers.process.Worker`.

    Its requests go to the Dask worker at `address`, which has compiled the code of earlier ones; if that worker is
    lost, to any other.
    """

    alive = True

    def __init__(self, cluster: Cluster, name: str, address: str) -> None:
        self._cluster = cluster
        self._name = name
        self._address = address

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress = lambda text: None) -> R:
        """Sends one request and waits for its reply."""
        return self._cluster.ask(request, timeout=timeout, progress=progress, ticket=self._name, address=self._address)

    def stop(self) -> None:
        """Does nothing: the process belongs to the Dask worker."""


class Cluster:
    """A set of equal Dask workers. `connect` makes one; use it in a `with` block."""

    def __init__(
        self, client: Any, backend: str | None, sources: Sequence[str], progress: OnProgress = lambda text: None
    ) -> None:
        self._client = client
        self._backend = backend or ""
        self._listeners: dict[str, OnProgress] = {}
        start = f"dask worker {client.scheduler.address} --nthreads 1"
        try:
            until = time.monotonic() + START_SECONDS
            while not client.scheduler_info()["workers"]:
                if (left := until - time.monotonic()) <= 0:
                    raise TimeoutError
                progress(f"the cluster has no worker; waiting {left:.0f} s for one: {start}")
                with contextlib.suppress(TimeoutError):
                    client.wait_for_workers(1, timeout=min(left, LOOK_SECONDS))
            self._sources = tuple(str(Path(item).resolve()) for item in sources)
            found: dict[str, dict[str, str]] = self._client.run(identify, self._backend, self._sources)
            self._known, self.environment = set(found), equal_workers(found)
            self._client.subscribe_topic(TOPIC, self._heard)
        except TimeoutError:
            self.close()
            raise UsageError(f"the cluster has no worker after {START_SECONDS:g} s", hint=start) from None
        except BaseException:
            self.close()
            raise

    @classmethod
    def connect(
        cls, address: str, backend: str | None, sources: Sequence[str] = (), progress: OnProgress = lambda text: None
    ) -> Cluster:
        """Connects to an existing cluster by the address of its scheduler (tcp://HOST:PORT)."""
        try:
            import distributed
        except ImportError as error:
            raise UsageError(_MISSING, hint=_INSTALL) from error
        try:
            client = distributed.Client(address, set_as_default=False, timeout=CONNECT_SECONDS)
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {address!r}: {error}",
                hint="start one with `dask scheduler`, workers with `dask worker tcp://HOST:8786 --nthreads 1`",
            ) from error
        return cls(client, backend, sources, progress)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pool(self) -> Pool:
        """Returns a pool of its workers; their number may change."""
        return Pool(self.workers, self.flag)

    def workers(self) -> list[RemoteWorker]:
        """Returns one place in the queue for each worker that is there now."""
        addresses = sorted(self._client.scheduler_info(n_workers=-1)["workers"])
        # an empty address: all workers may be restarting
        return [RemoteWorker(self, f"{id(self):x}.{place}", item) for place, item in enumerate(addresses or [""])]

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress, ticket: str, address: str) -> R:
        """Sends one request to one worker; raises the exceptions of a local worker."""
        from distributed.scheduler import KilledWorker

        self._listeners[ticket] = progress
        where_to = {"workers": [address], "allow_other_workers": True} if address else {}
        call = (_answer, msgspec.json.encode(request), self._backend, timeout, ticket)
        future = self._client.submit(*call, pure=False, **where_to)
        try:
            while address and not future.done():
                with contextlib.suppress(TimeoutError):
                    future.exception(timeout=LOOK_SECONDS)
                if self._waits_in_vain(future, address):
                    future.cancel()
                    future, address = self._client.submit(*call, pure=False), ""
            where, raw = future.result()
        except KilledWorker as killed:
            raise Died(f"every worker that took the request was lost: {killed}", who="judge") from killed
        except BaseException:
            future.cancel()
            raise
        finally:
            self._listeners.pop(ticket, None)
        if where not in self._known:  # it joined during the run
            found = self._client.run(identify, self._backend, self._sources, workers=[where])
            refuse_unlike(self.environment, where, found.get(where, {"error": "it left before it could be identified"}))
            self._known.add(where)
        return request.read(demand_reply(outcome_of(msgspec.json.decode(raw, type=Event))).value)

    def _waits_in_vain(self, future: Any, address: str) -> bool:
        """True if Dask keeps a request for a worker that is gone, as it does if no other worker was there."""
        there = self._client.scheduler_info(n_workers=-1)["workers"]
        if future.done() or not there or address in there:
            return False
        return not any(future.key in keys for keys in self._client.processing().values())

    @contextlib.contextmanager
    def flag(self, path: Path) -> Iterator[Callable[[], None]]:
        """Yields a function that creates a flag file at `path` on every worker's machine; the end of the block removes
        it.
        """
        raised = False

        def put_up() -> None:
            nonlocal raised
            raised = True
            self._client.run(raise_flag, str(path), on_error="ignore")  # a lost worker has no request to end

        try:
            yield put_up
        finally:
            if raised:
                self._client.run(lower_flag, str(path), on_error="ignore")

    def close(self) -> None:
        """Ends the workers' isolated processes; the Dask workers stay."""
        with contextlib.suppress(Exception):  # lost workers have no process to end
            self._client.run(stop_worker, self._backend)
        self._client.close()

    def _heard(self, event: tuple[Any, dict[str, Any]]) -> None:
        """Passes an event of progress to the listener of its request."""
        _, said = event
        listener = self._listeners.get(said["ticket"])
        if listener is not None:
            listener(msgspec.convert(said["step"], Progressed).step)


def _answer(request: bytes, backend: str, timeout: float, ticket: str) -> tuple[str, bytes]:
    """Runs `serve` on a Dask worker. Returns the worker's address too, because any worker may take the request."""
    from distributed import get_worker

    return get_worker().address, serve(request, backend, timeout, ticket)
