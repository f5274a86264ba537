"""A Dask cluster on this machine, as `verify --scheduler` meets one elsewhere."""

from __future__ import annotations

import multiprocessing
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests import warm
from verify.workers.cluster import Cluster

ATTEMPTS = 10  # Dask workers that may be lost under one request before it is given up


@contextmanager
def connected(workers: int, sources: Sequence[str]) -> Iterator[Cluster]:
    """A scheduler and so many workers, each of one thread and replaced when it is lost.

    Workers and their processes are forks of the warm process of `tests.warm`, except those that replace lost ones.
    """
    import dask
    import distributed

    spec = {
        number: {"cls": distributed.Nanny, "options": {"nthreads": 1, "memory_limit": 0}} for number in range(workers)
    }
    options = {"dashboard": False, "port": 0, "host": "127.0.0.1", "allowed_failures": ATTEMPTS}
    scheduler = {"cls": distributed.Scheduler, "options": options}
    warm.begin()
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        distributed.SpecCluster(workers=spec, scheduler=scheduler, silence_logs="critical") as own,
    ):
        with distributed.Client(own, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=120)
            client.run(_start_forks)
        with Cluster.connect(own.scheduler_address, "interpreter", sources) as found:
            yield found


def _start_forks() -> None:
    """Makes this Dask worker start its own process as a fork, which may have children."""
    multiprocessing.current_process()._config.pop("daemon", None)  # type: ignore[attr-defined]
    subprocess.Popen = warm.Popen  # type: ignore[misc]
