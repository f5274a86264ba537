"""Options that spread a command's work over GPUs and machines: `--gpus` and `--scheduler`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verify.workers.pool import Pool


def add(parser: argparse.ArgumentParser) -> None:
    """Add both options, of which one may be given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--gpus",
        metavar="all|N|LIST",
        help="a worker on each of these GPUs of this machine: all, a count, or numbers such as 0,2",
    )
    group.add_argument(
        "--scheduler", metavar="ADDRESS", help="the workers of a running Dask cluster, e.g. tcp://HOST:8786"
    )


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
