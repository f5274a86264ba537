"""Starts what `--gpus` and `--scheduler` ask for: workers on several GPUs or machines."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verify.workers.cluster import Cluster


@contextlib.contextmanager
def cluster(options: argparse.Namespace, targets: Sequence[str], backend: str | None) -> Iterator[Cluster | None]:
    """The cluster that the options ask for, None when they ask for none."""
    if not options.gpus and not options.scheduler:
        yield None
        return
    from verify.workers.cluster import Cluster

    sources = sorted({target.partition("::")[0] for target in targets})
    files = [source for source in sources if source.endswith(".py")]
    if options.scheduler:
        found = Cluster.connect(options.scheduler, backend, files)
    else:
        found = Cluster.local(_devices(options.gpus), backend or "cuda", files)
    with found:
        yield found


def _devices(request: str) -> list[str]:
    from verify.measure.session import START_SECONDS, answer
    from verify.workers.cluster import gpus
    from verify.workers.process import Worker

    with Worker("interpreter") as worker:  # counting GPUs needs torch, not a GPU context
        seen: Any = answer(worker.ask({"do": "gpus"}, timeout=START_SECONDS))["gpus"]
    return gpus(request, int(seen))
