"""`--gpus` and `--scheduler`: which workers do the work."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.workers.fake import FakeWorker
from verify import api
from verify.errors import UsageError
from verify.workers import process
from verify.workers.requests import About, CountGpus, Environment

MADE: list[Fake] = []


FILE = f"{__file__}::f"  # a file that exists


class Fake(FakeWorker):
    """A worker of a machine with three GPUs, of which the last is another one."""

    def __init__(self, backend: str | None = None, environment: dict[str, str] | None = None) -> None:
        super().__init__()
        self.backend, self.device = backend, (environment or {}).get("CUDA_VISIBLE_DEVICES", "")
        MADE.append(self)

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answer(self, request: Any) -> Any:
        if isinstance(request, CountGpus):
            return 3
        assert isinstance(request, Environment)
        return About("cuda", "cuda", {"gpu": "H100" if self.device == "2" else "H200"})


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    MADE.clear()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(process, "Worker", Fake)


def test_gpus_of_this_machine_are_a_process_each_and_need_no_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with api.workers("0,1", None, [FILE], None) as pool:
        assert pool is not None
        assert [(worker.backend, worker.device) for worker in pool.workers] == [(None, "0"), (None, "1")]  # type: ignore[attr-defined]
    counter, *workers = MADE
    assert counter.backend == "cpu", "counting GPUs takes no context on one"
    assert [worker.stops for worker in MADE] == [1, 1, 1] and len(workers) == 2


def test_gpus_interpret_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    said = "'cuda' interprets no kernels, but TRITON_INTERPRET=1 makes Triton interpret them\n  next: unset TRITON"
    with pytest.raises(UsageError, match=said), api.workers("all", None, [], None):
        raise AssertionError("no worker starts")


def test_gpus_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match="must be equal: gpu"), api.workers("all", None, [], None):
        raise AssertionError("nothing runs on them")
    assert all(worker.stops == 1 for worker in MADE)


def test_without_an_option_a_command_has_its_own_workers() -> None:
    with api.workers(None, None, [], None) as pool:
        assert pool is None and not MADE


def test_a_scheduler_needs_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(UsageError, match="distributing work needs Dask distributed"),
        api.workers(None, "tcp://nowhere:1", [FILE], None),
    ):
        raise AssertionError("there is none")
