"""Tries the laws of many kernels on many workers, for nightly runs. A unit is one law of one kernel in one dtype."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from verify.declare.target import Declared
from verify.errors import SPENT
from verify.laws.profiles import remaining
from verify.laws.requests import TryLaw
from verify.measure.source import KINDS, KernelUnits, NoResult, SourceSettings, Unit, Units, collect
from verify.records.record import KernelRun, LawRun, Run
from verify.workers.pool import Pool
from verify.workers.requests import About


@dataclass(kw_only=True)
class LawSettings(SourceSettings):
    """Holds the settings of a run of laws."""

    profile: str
    without: tuple[str, ...] = ()  # laws that are not tried


def run(kernels: Sequence[Declared], settings: LawSettings, command: str) -> Run:
    """Tries every law of every kernel."""
    return collect(_Laws(kernels, settings), command)


@dataclass(eq=False, kw_only=True)
class _Tried(Unit):
    """Holds one law of one kernel in one dtype. All are of one length: a worker then stays with its kernel."""

    law: str
    length = (0, False)


class _Laws(Units[_Tried, LawRun]):
    """Holds the laws of all kernels."""

    gap = "{0.of.kernel.name}: the law of {0.name}: {1}"

    def __init__(self, kernels: Sequence[Declared], settings: LawSettings) -> None:
        super().__init__(settings)
        self.settings, self.profile, self.declared = settings, settings.profile, kernels

    def open(self, pool: Pool) -> About:
        """Queues every law of every kernel in every dtype."""
        about, laws = pool.about(), remaining(self.settings.without)
        kernels = [KernelUnits(each) for each in self.declared]
        longest = sorted(kernels, key=lambda of: KINDS.index(of.kernel.kind))
        units = [
            _Tried(of, dtype, f"{dtype} {law}", f"{of.kernel.target} {dtype} {law}", law=law)
            for of in longest
            for law in laws
            for dtype in of.kernel.dtypes
        ]
        self.enqueue(kernels, units, len(pool.workers))
        return about

    def begin(self, part: _Tried) -> TryLaw:
        """Returns the request of a unit."""
        finished = len(self.places) - len(self.waiting) - len(self.running) - 1
        self.settings.progress(f"{finished:,}/{len(self.places):,} {part.of.kernel.name} {part.name}")
        seconds = self.settings.timeout / 2  # the last case may take as long again
        seconds = seconds if part.share is None else min(seconds, part.share)
        return TryLaw(part.target, part.dtype, part.law, self.settings.profile, self.settings.seed, seconds)

    def done(self, part: _Tried, reply: LawRun, seconds: float) -> None:
        """Records a law. If verify itself failed, the law has no verdict."""
        if reply.in_error:
            self.leave_out(part, "harness error", reply.message)
        else:
            self.finish(part, seconds, "wrong" if reply.status == "broken" else "ok", laws=[reply])

    def of_failure(self, part: _Tried, why: NoResult) -> dict[str, Any]:
        """Returns the next command for a kernel that failed."""
        return {"hint": f"verify run {shlex.quote(part.target)}"}

    def entry(self, of: KernelUnits) -> KernelRun:
        """Adds the laws that were omitted, and a note on laws with too little time."""
        found = super().entry(of)
        short = sum(law.late for law in found.laws)
        text = f"{short} of {len(found.laws)} laws had fewer cases than the profile draws: {SPENT}"
        laws = [*found.laws, *left_out(self.settings.without, of.kernel.dtypes)]
        return msgspec.structs.replace(found, laws=laws, notes=[text] if short else [])


def left_out(laws: Sequence[str], dtypes: Sequence[str]) -> list[LawRun]:
    """Returns entries for the laws that `--without` left out, so that the record lists them."""
    return [LawRun(law, dtype, "skipped", 0, "left out by --without") for law in laws for dtype in dtypes]
