"""The hunts of a night: one queue over all kernels, a count of generations within a share of the time, and what the
time or an error of the harness left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import verify
from tests.report.sample import passing
from tests.workers.fake import FakeWorker, raising
from verify import backends
from verify.declare.requests import Listed, ListKernels
from verify.declare.target import Declared, Target
from verify.errors import SPENT, TruthError
from verify.records.part_store import PartStore
from verify.records.record import Basis, Gap, Run
from verify.search.hunt import outcome, schedule
from verify.search.hunt.requests import DoHunt, Hunt, HuntReply, Hunts, Settings
from verify.search.hunt.schedule import HuntSession
from verify.workers.pool import Pool
from verify.workers.requests import Late

KINDS: dict[str, Any] = {"pairs": "elementwise", "rows": "rowwise"}
HUNTS = [Hunt(dtype, "y") for dtype in ("float32", "float64")]
RESULT = msgspec.structs.replace(
    passing().kernels[0].results[0], source="hunt", basis=Basis("observed", 65_536, 0), properties=""
)

Reply = Callable[[DoHunt], HuntReply]


def found(request: DoHunt) -> HuntReply:
    result = msgspec.structs.replace(RESULT, output=request.hunt.result, dtype=request.hunt.dtype)
    return HuntReply(result, [f"{request.target} {request.hunt.dtype}"])


def fake(reply: Reply = found) -> FakeWorker:
    """A worker that hunts nothing."""

    def answer(request: Any) -> Any:
        if isinstance(request, ListKernels):
            name = str(Target.parse(request.target).kernel)
            return Listed("", [Declared(request.target, name, "silu", KINDS[name], {}, "", ("interpreter",), ())])
        assert isinstance(request, DoHunt), "what can be hunted was asked before"
        return reply(request)

    return FakeWorker(answer)


def hunts(worker: FakeWorker) -> list[DoHunt]:
    """What it was asked to hunt."""
    return [each for each in worker.asked if isinstance(each, DoHunt)]


def hunted(worker: FakeWorker, **settings: Any) -> tuple[Run, HuntSession]:
    asked = {f"k.py::{name}": Hunts(HUNTS, ["dw"]) for name in KINDS}
    pool, short = Pool.of([worker]), Settings(generations=4, seconds=20.0)
    wanted = HuntSession(settings=short, asked=asked, pool=pool, **settings)
    return schedule.run(list(asked), wanted, "verify nightly: hunt"), wanted


def only(dtype: str, reply: Reply) -> Reply:
    return lambda request: (reply if request.hunt.dtype == dtype and "rows" in request.target else found)(request)


def test_a_hunt_that_the_end_of_the_budget_stops_is_late() -> None:
    def reply(request: DoHunt) -> HuntReply:
        raise Late("late")

    run, _ = hunted(fake(only("float64", reply)), until=time.monotonic() + 9.0)
    assert run.incomplete == [Gap("out of time", f"hunt of k.py::rows y float64: not finished: {SPENT}", "k.py::rows")]
    hung, _ = hunted(fake(only("float64", reply)))
    assert hung.kernels[1].status == "timeout"
    assert len(hung.kernels[1].results) == 1, "its other hunt is kept"


def test_finished_hunts_are_known_and_no_others(tmp_path: Path) -> None:
    def kept() -> PartStore:
        return PartStore(tmp_path / "hunt.parts")

    hunted(fake(only("float64", raising(TruthError("routes")))), contain=True, kept=kept())
    assert "k.py::rows y float64" not in kept().parts and len(kept().parts) == 3
    worker = fake()
    again, _ = hunted(worker, contain=True, kept=kept())
    assert [(each.target, each.hunt.dtype) for each in hunts(worker)] == [("k.py::rows", "float64")]
    assert again.id == hunted(fake())[0].id, "as if it had been done in one go"


# -- one hunt -------------------------------------------------------------------------------------------


@verify.kernel(op="silu", dtypes=["float32", "float64"], gradients=False, max_ulp=1e9)
def night_silu(x):
    return torch.nn.functional.silu(x)


def hunt(dtype: str, **settings: Any) -> outcome.Hunted:
    backend = backends.select()
    return outcome.hunt(night_silu, "k.py::k", backend, Hunt(dtype, "y"), Settings(**settings, population=64))


def test_a_count_of_generations_decides_what_is_found_and_a_clock_that_cuts_it_is_named() -> None:
    whole = hunt("float32", generations=3, seconds=600.0)
    assert whole.search.generations == 3
    assert whole.result == hunt("float32", evaluations=whole.search.evaluations).result
    assert not any("stopped" in note for note in whole.notes)
    cut = hunt("float32", generations=1 << 20, seconds=1e-9)
    assert cut.search.generations == 1
    assert f"y float32: stopped after 64 evaluations: {SPENT}" in cut.notes


def test_a_night_keeps_each_hunt_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verify import nightly

    worker = fake()
    night = nightly.Night(tmp_path / "night", ("k.py",), pool=Pool.of([worker]))
    asked = {f"k.py::{name}": Hunts(HUNTS, []) for name in KINDS}
    monkeypatch.setattr(nightly, "_hunts", lambda night: asked)
    first = nightly.hunt(night, None)
    assert len(PartStore(tmp_path / "night" / "hunt.parts").parts) == len(hunts(worker)) == 4
    assert nightly.hunt(night, None).id == first.id
    assert len(hunts(worker)) == 4, "nothing is hunted twice"
