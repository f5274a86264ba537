"""Many GPUs or machines: the requests of `verify.worker`, answered by the workers of a Dask cluster.

A `RemoteWorker` answers like `verify.workers.process.Worker`, so whoever spreads work over local workers spreads it
over a cluster unchanged. On the other side each Dask worker keeps one isolated worker process of its own:
a kernel that crashes or hangs takes that process down, never the cluster's. A request whose Dask worker is
lost is given to another one by the scheduler; figures do not depend on who answered, because every request
is complete in itself and partial results merge exactly.

Only equal workers may answer: same backend, GPU, driver, torch, triton, verify and target files. An unequal
one is refused by name before anything runs, and an answer from one that joined later is refused too.

Dask connects without a password unless TLS is configured, and runs what it is sent: use a scheduler that
only trusted people can reach.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from verify.errors import UsageError
from verify.records.source_digest import digest, own_digest
from verify.workers.process import Worker, WorkerDied, WorkerTimeout

START_SECONDS = 180.0
CONNECT_SECONDS = 20.0
ATTEMPTS = 10  # Dask workers that may be lost under one request before it is given up
TOPIC = "verify-progress"

_MISSING = "distributing work needs Dask distributed"
_INSTALL = 'python -m pip install "verify-kernels[cluster]"'


# -- on a Dask worker -----------------------------------------------------------------------------------

_lock = threading.Lock()
_workers: dict[str, Worker] = {}


def serve(request: str, backend: str, timeout: float, ticket: str) -> str:
    """Answer one request in this Dask worker's isolated process. JSON in, JSON out."""
    with _lock:
        worker = _workers.get(backend)
        if worker is None:
            worker = _workers[backend] = Worker(backend or None)
        about = msgspec.json.decode(request)
        try:
            reply = worker.ask(about, timeout=timeout, progress=_forward(ticket))
        except WorkerDied as died:
            reply = {"cluster": "died", "message": str(died)}
        except WorkerTimeout as late:
            reply = {"cluster": "timeout", "message": str(late)}
        return msgspec.json.encode(reply).decode()


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
    with contextlib.suppress(OSError):  # never made here, or shared with whoever made it
        flag.parent.rmdir()


def identify(backend: str, sources: tuple[str, ...]) -> dict[str, str]:
    """What must be equal among the workers of one run, as text."""
    reply = msgspec.json.decode(serve('{"do": "environment"}', backend, START_SECONDS, ""))
    if "environment" not in reply:
        return {"error": str(reply.get("usage") or reply.get("message") or reply)}
    environment = reply["environment"]
    ignored = _MAY_DIFFER | ({"cpu"} if reply["backend"] == "cuda" else set())
    about = {name: str(value) for name, value in environment.items() if name not in ignored}
    about["backend"] = reply["backend"]
    about["verify sources"] = own_digest()
    for source in sources:
        about[source] = digest(Path(source))
    return about


# The same GPU gives the same bits under another kernel of the operating system; sources are compared themselves.
_MAY_DIFFER = frozenset({"platform", "commit", "dirty"})


def _forward(ticket: str) -> Callable[[str], None]:
    """Send a worker's progress to whoever asked, as an event of the cluster."""
    from distributed import get_worker

    def forward(text: str) -> None:
        with contextlib.suppress(ValueError):  # no Dask worker around us
            get_worker().log_event(TOPIC, {"ticket": ticket, "text": text})

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

    def ask(
        self, request: dict[str, Any], *, timeout: float, progress: Callable[[str], None] = lambda text: None
    ) -> dict[str, Any]:
        """Send one request and wait for its answer."""
        return self._cluster.ask(request, timeout=timeout, progress=progress, ticket=self._name, address=self._address)

    def stop(self) -> None:
        """Nothing to do: the process belongs to the Dask worker."""

    def __enter__(self) -> RemoteWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Cluster:
    """A set of equal Dask workers. Make one with `local` or `connect`; use it in a `with` block."""

    def __init__(self, client: Any, backend: str | None, sources: Sequence[str], own: Any = None) -> None:
        self._client = client
        self._own = own
        self._backend = backend or ""
        self._listeners: dict[str, Callable[[str], None]] = {}
        self._counting = threading.Lock()
        # seconds that each worker has been at requests of each kind, by its address and the kind
        self.spent: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.requests: Counter[str] = Counter()  # that were answered, by kind
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
    def local(cls, devices: Sequence[str], backend: str | None, sources: Sequence[str] = ()) -> Cluster:
        """A cluster on this machine: one worker process for each entry of `devices`, which sees only that GPU.

        An empty entry stands for a worker without a GPU.
        """
        distributed = _distributed()
        spec = {
            number: {
                "cls": distributed.Nanny,
                "options": {
                    "nthreads": 1,
                    "name": f"gpu{device}" if device else f"cpu{number}",
                    "env": {"CUDA_VISIBLE_DEVICES": device} if device else {},
                    "memory_limit": 0,
                },
            }
            for number, device in enumerate(devices)
        }
        scheduler = {
            "cls": distributed.Scheduler,
            "options": {"dashboard": False, "port": 0, "host": "127.0.0.1", "allowed_failures": ATTEMPTS},
        }
        own = distributed.SpecCluster(workers=spec, scheduler=scheduler, silence_logs="critical")
        client = distributed.Client(own, set_as_default=False)
        try:
            client.wait_for_workers(len(devices), timeout=START_SECONDS)
        except TimeoutError:
            client.close()
            own.close()
            raise UsageError(f"only some of {len(devices)} local workers started") from None
        return cls(client, backend, sources, own=own)

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

    @property
    def size(self) -> int:
        """How many requests are answered at a time."""
        return max(1, len(self._addresses()))

    def _addresses(self) -> list[str]:
        return sorted(self._client.scheduler_info(n_workers=-1)["workers"])

    def workers(self) -> list[RemoteWorker]:
        """As many places in the queue as there are workers."""
        addresses = self._addresses() or [""]  # all of them may be starting again
        return [RemoteWorker(self, f"{id(self):x}.{place}", address) for place, address in enumerate(addresses)]

    def ask(
        self, request: dict[str, Any], *, timeout: float, progress: Callable[[str], None], ticket: str, address: str
    ) -> dict[str, Any]:
        """One request, answered by one worker; WorkerDied and WorkerTimeout as from a local one."""
        from distributed.scheduler import KilledWorker

        self._listeners[ticket] = progress
        text = msgspec.json.encode(request).decode()
        where_to = {"workers": [address], "allow_other_workers": True} if address else {}
        future = self._client.submit(_answer, text, self._backend, timeout, ticket, pure=False, **where_to)
        try:
            where, raw, seconds = future.result()
        except KilledWorker as killed:
            raise WorkerDied(f"every worker that took the request was lost: {killed}") from killed
        except BaseException:
            future.cancel()
            raise
        finally:
            self._listeners.pop(ticket, None)
        with self._counting:
            self.spent[where, request["do"]] += seconds
            self.requests[request["do"]] += 1
        if where not in self._known:
            self._admit(where)
        reply: dict[str, Any] = msgspec.json.decode(raw)
        if reply.get("cluster") == "died":
            raise WorkerDied(reply["message"])
        if reply.get("cluster") == "timeout":
            raise WorkerTimeout(reply["message"])
        return reply

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
        """End the workers' isolated processes, and the cluster if it is ours."""
        with contextlib.suppress(Exception):  # workers that are gone have nothing left to stop
            self._client.run(stop_worker, self._backend)
        self._client.close()
        if self._own is not None:
            self._own.close()

    def _heard(self, event: tuple[Any, dict[str, str]]) -> None:
        _, said = event
        listener = self._listeners.get(said["ticket"])
        if listener is not None:
            listener(said["text"])

    def _equal(self, sources: tuple[str, ...]) -> dict[str, str]:
        """The environment that all workers share; an error that names who differs in what."""
        self._sources = sources
        found: dict[str, dict[str, str]] = self._client.run(identify, self._backend, sources)
        first, *others = sorted(found)
        self._reference = found[first]
        for address in (first, *others):
            self._refuse_unlike(address, found[address])
        self._known = set(found)
        return self._reference

    def _refuse_unlike(self, address: str, about: dict[str, str]) -> None:
        if "error" in about:
            raise UsageError(f"worker {address} cannot run verify: {about['error']}")
        for name, value in self._reference.items():
            if about.get(name) != value:
                raise UsageError(
                    f"the workers of one run must be equal: {name} is {value!r}, but {about.get(name)!r} on {address}",
                    hint="one run for each kind of GPU; `verify compare` sets the records side by side",
                )

    def _admit(self, address: str) -> None:
        """A worker that joined during the run: its answers count if it is equal to the others."""
        found = self._client.run(identify, self._backend, self._sources, workers=[address])
        self._refuse_unlike(address, found.get(address, {"error": "it left before it could be identified"}))
        self._known.add(address)


def _answer(request: str, backend: str, timeout: float, ticket: str) -> tuple[str, str, float]:
    """`serve`, with the address of the Dask worker that answered, and the seconds that it took."""
    from distributed import get_worker

    begun = time.monotonic()
    raw = serve(request, backend, timeout, ticket)
    return get_worker().address, raw, time.monotonic() - begun


def gpus(request: str, seen: int) -> list[str]:
    """The devices that `--gpus` names: "all", a count, or a list such as 0,2; as CUDA_VISIBLE_DEVICES entries.

    `seen` is how many GPUs the process sees; a list that the user has set in CUDA_VISIBLE_DEVICES is kept.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = listed.split(",") if listed else [str(number) for number in range(seen)]
    names = names[:seen]
    if request == "all":
        if not names:
            raise UsageError("--gpus all needs a GPU; this process sees none", hint="--jobs N spreads over CPU cores")
        return names
    wanted = [part.strip() for part in request.split(",")]
    if len(wanted) == 1 and wanted[0].isascii() and wanted[0].isdigit() and "," not in request:
        count = int(wanted[0])
        if not 1 <= count <= len(names):
            raise UsageError(f"--gpus takes a count from 1 to {len(names)} (the GPUs seen here); received {request}")
        return names[:count]
    chosen = []
    for part in wanted:
        if not (part.isascii() and part.isdigit() and int(part) < len(names)):
            raise UsageError(
                f"--gpus takes all, a count, or numbers below {len(names)} as in 0,2; received {request!r}"
            )
        chosen.append(names[int(part)])
    if len(set(chosen)) != len(chosen):
        raise UsageError(f"--gpus names a GPU twice: {request!r}")
    return chosen


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise UsageError(_MISSING, hint=_INSTALL) from error
    return distributed
