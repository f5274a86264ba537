"""A worker that differs from the others of a run is refused by name."""

from __future__ import annotations

import pytest

from tests.workers.fake import FakeWorker
from verify.errors import UsageError
from verify.workers.check_workers_identical import check_equal
from verify.workers.pool import Pool
from verify.workers.requests import About


def test_gpus_that_differ_are_refused_by_name() -> None:
    pool = Pool.of([FakeWorker(about=About("cuda", "cuda", {"gpu": name})) for name in ("H200", "H200", "H100")])
    with pytest.raises(UsageError, match="must be equal: gpu is 'H200', but 'H100' on 2"):
        check_equal(pool)
    check_equal(Pool.of(pool.workers[:2]))
    with pytest.raises(UsageError, match="worker 0 cannot run verify: no GPU"):
        check_equal(Pool.of([FakeWorker(about=UsageError("no GPU"))]))
