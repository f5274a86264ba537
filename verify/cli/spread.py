"""Starts what `--gpus` and `--scheduler` ask for: workers on several GPUs or machines."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verify.workers.pool import Pool


@contextlib.contextmanager
def pool(options: argparse.Namespace, targets: Sequence[str], backend: str | None) -> Iterator[Pool | None]:
    """The workers that the options ask for, None when they ask for none."""
    if options.scheduler:
        from verify.declare.target import Target
        from verify.workers.cluster import Cluster

        files = sorted({str(file) for target in targets if (file := Target.parse(target).file) is not None})
        with Cluster.connect(options.scheduler, backend, files) as cluster:
            yield cluster.pool()
    elif options.gpus:
        from verify.workers.equal import check_equal
        from verify.workers.pool import Pool

        with Pool.on_gpus(_devices(options.gpus), backend or "cuda") as found:
            check_equal(found)
            yield found
    else:
        yield None


def _devices(request: str) -> list[str]:
    from verify.workers.gpus import gpus
    from verify.workers.process import START_SECONDS, Worker
    from verify.workers.requests import CountGpus

    with Worker("interpreter") as worker:  # counting GPUs needs torch, not a GPU context
        return gpus(request, worker.ask(CountGpus(), timeout=START_SECONDS))
