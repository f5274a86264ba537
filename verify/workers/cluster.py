"""Several machines: the requests of `verify.worker`, answered by the workers of a Dask cluster.

A `RemoteWorker` answers like `verify.workers.process.Worker`, so a pool spreads its jobs over a cluster as it does over
processes of this machine. On the other side each Dask worker keeps one isolated worker process of its own: a kernel
that crashes or hangs takes that process down, never the cluster's. A request whose Dask worker is lost is given to
another one by the scheduler; figures do not depend on which one answered, because every request is complete in itself
and partial results merge exactly.

Only equal workers may answer: same backend, GPU, driver, torch, triton, verify and target files. An unequal
one is refused by name before anything runs, and an answer from one that joined later is refused too.

Dask connects without a password unless TLS is configured, and runs what it is sent: use a scheduler that
only trusted people can reach.
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
from verify.records.source_digest import digest, own_digest
from verify.workers.check_workers_identical import equal_workers, identity_of, refuse_unlike
from verify.workers.pool import Pool
from verify.workers.process import START_SECONDS, Worker
from verify.workers.requests import Died, Environment, Failure, OnProgress, Progressed, R, Reply, Request

CONNECT_SECONDS = 20.0
LOOK_SECONDS = 5.0  # between looks at whether a request's worker is still there
TOPIC = "verify-progress"

_MISSING = "distributing work needs Dask distributed"
_INSTALL = 'python -m pip install "verify-kernels[cluster]"'


class _Answer(msgspec.Struct):
    """What comes back through Dask, as JSON."""

    reply: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None


# -- on a Dask worker -----------------------------------------------------------------------------------

_lock = threading.Lock()
_workers: dict[str, Worker] = {}


def serve(request: bytes, backend: str, timeout: float, ticket: str) -> bytes:
    """Answer one request in this Dask worker's isolated process."""
    with _lock:
        try:
            deadline = time.monotonic() + timeout
            outcome = _process(backend).call(request, deadline=deadline, progress=_forward(ticket))
        except Exception as error:
            outcome = Failure.of(error)
    if isinstance(outcome, Reply):
        return msgspec.json.encode(_Answer(outcome.value))
    return msgspec.json.encode(_Answer(failure=outcome if isinstance(outcome, Failure) else Failure.of(outcome)))


def _process(backend: str) -> Worker:
    if backend not in _workers:
        _workers[backend] = Worker(backend or None)
    return _workers[backend]


def stop_worker(backend: str) -> None:
    """End this Dask worker's isolated process; the next request starts a fresh one."""
    with _lock:
        worker = _workers.pop(backend, None)
        if worker is not None:
            worker.stop()


def raise_flag(path: str) -> None:
    """Make the file by which a running request is asked to end, on this machine."""
    flag = Path(path)
    flag.parent.mkdir(parents=True, exist_ok=True)
    flag.touch()


def lower_flag(path: str) -> None:
    """Remove it again."""
    flag = Path(path)
    flag.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # never made here, or shared with the machine that made it
        flag.parent.rmdir()


def identify(backend: str, sources: tuple[str, ...]) -> dict[str, str]:
    """What must be equal among the workers of one run, as text."""
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
    """Send a worker's progress to the side that asked, as an event of the cluster."""
    from distributed import get_worker

    def forward(text: str) -> None:
        with contextlib.suppress(ValueError):  # no Dask worker around us
            get_worker().log_event(TOPIC, {"ticket": ticket, "step": msgspec.to_builtins(Progressed.of(text))})

    return forward


# -- on the side that asks ------------------------------------------------------------------------------


class RemoteWorker:
    """One place in a cluster's queue, with the interface of `verify.workers.process.Worker`.

    Its requests go to the Dask worker at `address`, which has compiled what the earlier ones needed; to any other
    once that one is lost.
    """

    alive = True

    def __init__(self, cluster: Cluster, name: str, address: str) -> None:
        self._cluster = cluster
        self._name = name
        self._address = address

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress = lambda text: None) -> R:
        """Send one request and wait for its reply."""
        return self._cluster.ask(request, timeout=timeout, progress=progress, ticket=self._name, address=self._address)

    def stop(self) -> None:
        """Nothing to do: the process belongs to the Dask worker."""


class Cluster:
    """A set of equal Dask workers. Make one with `connect`; use it in a `with` block."""

    def __init__(self, client: Any, backend: str | None, sources: Sequence[str]) -> None:
        self._client = client
        self._backend = backend or ""
        self._listeners: dict[str, OnProgress] = {}
        try:
            client.wait_for_workers(1, timeout=START_SECONDS)
            self.environment = self._equal(tuple(str(Path(item).resolve()) for item in sources))
            self._client.subscribe_topic(TOPIC, self._heard)
        except TimeoutError:
            self.close()
            raise UsageError(f"the cluster has no worker after {START_SECONDS:g} s") from None
        except BaseException:
            self.close()
            raise

    @classmethod
    def connect(cls, address: str, backend: str | None, sources: Sequence[str] = ()) -> Cluster:
        """An existing cluster, by the address of its scheduler (tcp://HOST:PORT)."""
        distributed = _distributed()
        try:
            client = distributed.Client(address, set_as_default=False, timeout=CONNECT_SECONDS)
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {address!r}: {error}",
                hint="start one with `dask scheduler`, workers with `dask worker tcp://HOST:8786 --nthreads 1`",
            ) from error
        return cls(client, backend, sources)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pool(self) -> Pool:
        """Its workers, as many as there are whenever they are asked for."""
        return Pool(self.workers, self.flag)

    def workers(self) -> list[RemoteWorker]:
        """As many places in the queue as there are workers."""
        addresses = sorted(self._client.scheduler_info(n_workers=-1)["workers"])
        # without an address: all of them may be starting again
        return [RemoteWorker(self, f"{id(self):x}.{place}", item) for place, item in enumerate(addresses or [""])]

    def ask(self, request: Request[R], *, timeout: float, progress: OnProgress, ticket: str, address: str) -> R:
        """One request, answered by one worker; the exceptions are those of a local one."""
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
        if where not in self._known:
            self._admit(where)
        answer = msgspec.json.decode(raw, type=_Answer)
        if answer.failure is not None:
            raise answer.failure.error()
        return request.read(answer.reply)

    def _waits_in_vain(self, future: Any, address: str) -> bool:
        """Whether Dask keeps a request for a worker that is gone: it does where no other was there at that moment."""
        there = self._client.scheduler_info(n_workers=-1)["workers"]
        if future.done() or not there or address in there:
            return False
        return not any(future.key in keys for keys in self._client.processing().values())

    @contextlib.contextmanager
    def flag(self, path: Path) -> Iterator[Callable[[], None]]:
        """What raises a flag at `path` on the machine of every worker; it is gone at the end of the block."""
        raised = False

        def put_up() -> None:
            nonlocal raised
            raised = True
            self._client.run(raise_flag, str(path), on_error="ignore")  # a lost worker has nothing to end

        try:
            yield put_up
        finally:
            if raised:
                self._client.run(lower_flag, str(path), on_error="ignore")

    def close(self) -> None:
        """End the workers' isolated processes; the Dask workers stay."""
        with contextlib.suppress(Exception):  # workers that are gone have nothing left to stop
            self._client.run(stop_worker, self._backend)
        self._client.close()

    def _heard(self, event: tuple[Any, dict[str, Any]]) -> None:
        _, said = event
        listener = self._listeners.get(said["ticket"])
        if listener is not None:
            listener(msgspec.convert(said["step"], Progressed).step)

    def _equal(self, sources: tuple[str, ...]) -> dict[str, str]:
        """The environment that all workers share; an error that names who differs in what."""
        self._sources = sources
        found: dict[str, dict[str, str]] = self._client.run(identify, self._backend, sources)
        self._known = set(found)
        return equal_workers(found)

    def _admit(self, address: str) -> None:
        """A worker that joined during the run: its answers count if it is equal to the others."""
        found = self._client.run(identify, self._backend, self._sources, workers=[address])
        about = found.get(address, {"error": "it left before it could be identified"})
        refuse_unlike(self.environment, address, about)
        self._known.add(address)


def _answer(request: bytes, backend: str, timeout: float, ticket: str) -> tuple[str, bytes]:
    """`serve`, with the address of the Dask worker that answered."""
    from distributed import get_worker

    return get_worker().address, serve(request, backend, timeout, ticket)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise UsageError(_MISSING, hint=_INSTALL) from error
    return distributed
