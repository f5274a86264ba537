"""A thousand seeded disturbances of pool and part store: the record is the same in the end, or the gap has a name.

Each seed starts a command again and again. In a start a worker may die, be late, lose its judge or take its time; the
command may be killed in the middle; the disk may be full. Between two starts the file of finished parts may be cut off
or changed. The last start is undisturbed.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.measure.test_source import Letters, Part, declared
from verify.errors import UsageError
from verify.measure.source import NoResult, SourceSettings, collect
from verify.records import part_store
from verify.records.part_store import PartStore
from verify.records.record import KernelRun
from verify.workers.pool import Pool
from verify.workers.requests import About, CountGpus, Died, Environment, Late

SEEDS, STARTS = (200, 1000), 4
SETTINGS = {"sources": "3f2a"}


class Killed(BaseException):
    """The command ends here, as by SIGKILL."""


class Named(Letters):
    """Letters whose requests say which part they are of: a reply that lands at another part is seen."""

    def __init__(self, work: SourceSettings, letters: str) -> None:
        super().__init__(work)
        self.letters, self.asked = letters, dict[str, int]()

    def open(self, pool: Pool) -> About:
        self.waiting = [Part(letter) for letter in self.letters]
        return pool.about()

    def begin(self, part: Part) -> CountGpus:
        self.asked[part.target] = self.asked.get(part.target, 0) + 1
        return CountGpus()

    def timeout(self, part: Part) -> float:
        return 100.0 + ord(part.target)  # which the worker answers with

    def failed(self, part: Part, why: NoResult, seconds: float) -> None:
        assert part.target not in self.found
        super().failed(part, why, seconds)


class Disturbed:
    """A worker that answers with the letter of its part, or has an accident."""

    alive = True

    def __init__(self, draw: random.Random, share: float) -> None:
        self.draw, self.share = draw, share

    def ask(self, request: Any, *, timeout: float, progress: Any = None) -> Any:
        if isinstance(request, Environment):
            return About("cpu", "cpu", {})
        if self.draw.random() < self.share:
            accident = self.draw.choice([Died("SIGSEGV"), Died("SIGKILL", who="judge"), Late("late"), Killed(), None])
            if accident is not None:
                raise accident
            time.sleep(0.001)
        return int(timeout - 100)

    def stop(self) -> None: ...


@contextmanager
def full_disk(draw: random.Random, share: float) -> Iterator[None]:
    """Writes fail now and then, some of them after half of the bytes."""
    write = os.write

    def failing(handle: int, data: bytes) -> int:
        if draw.random() < share:
            write(handle, bytes(data)[: draw.randrange(len(data))])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_store.os, "write", failing)
        patch.setattr(part_store.os, "fsync", lambda handle: None)
        yield


def damage(path: Path, draw: random.Random) -> None:
    """Cuts a file off or changes a byte of it."""
    data = path.read_bytes()
    place = draw.randrange(len(data))
    changed = data[:place] if draw.random() < 0.5 else data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    path.write_bytes(changed)


def start(path: Path, letters: str, draw: random.Random, share: float) -> list[KernelRun] | None:
    """Starts the command once: its kernels, or None if it was killed."""
    store = PartStore(path)
    try:
        with full_disk(draw, share):
            store.claim(SETTINGS, "letters", "verify letters")
            held = {letter for letter in letters if store.known(letter, KernelRun) is not None}
            source = Named(
                SourceSettings(pool=Pool.of([Disturbed(draw, share) for _ in range(draw.randrange(1, 4))]), kept=store),
                letters,
            )
            try:
                record = collect(source, "verify letters")
            except Killed:
                return None
    except UsageError:  # the first line was damaged: the message says to begin anew
        path.unlink()
        return None
    assert not held & set(source.asked) and all(count == 1 for count in source.asked.values())
    assert [kernel.name for kernel in record.kernels] == list(letters)  # none is lost, none is there twice
    named = {gap.target for gap in record.incomplete}
    for kernel in record.kernels:
        if kernel.status == "ok":
            assert kernel == right(kernel.name)  # a damaged part is no result
        else:
            assert kernel.name in named and kernel.message
    assert (
        record.verdict == "pass"
        if all(kernel.status == "ok" for kernel in record.kernels)
        else record.verdict != "pass"
    )
    return record.kernels


def right(letter: str) -> KernelRun:
    return declared(letter).run("ok", notes=[f"{ord(letter)}"])


@pytest.mark.parametrize("seeds", [SEEDS[0], pytest.param(SEEDS[1], marks=pytest.mark.slow)])
def test_what_is_disturbed_ends_in_the_same_record_or_a_named_gap(seeds: int, tmp_path: Path, capsys: Any) -> None:
    killed = resumed = 0
    for seed in range(seeds):
        draw = random.Random(seed)
        path = tmp_path / f"{seed}.parts"
        letters = "abcdef"[: draw.randrange(1, 7)]
        for _ in range(draw.randrange(1, STARTS)):
            killed += start(path, letters, draw, draw.random() * 0.6) is None
            if path.exists() and path.stat().st_size and draw.random() < 0.5:
                damage(path, draw)
        resumed += path.exists() and path.stat().st_size > 0
        found = start(path, letters, random.Random(seed), 0.0) or start(path, letters, random.Random(seed), 0.0)
        assert found == [right(letter) for letter in letters], seed
        path.unlink()
    assert killed > seeds / 4 and resumed > seeds / 2
