"""The laws against the zoo: each seeded bug dies, each correct twin lives."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mutants import mutants
from mutants.matrix import FIXED, try_law
from mutants.mutant import Mutant
from verify.backends import Backend
from verify.declare.declaration import Kernel
from verify.laws import registry
from verify.laws.engine import PROFILES, Profile

README = Path(__file__).parents[2] / "mutants" / "README.md"
ALL = mutants()
TWINS = {id(mutant.twin): mutant.twin for mutant in ALL}
CI = PROFILES["ci"]
ALARMS = ("killed", "harness error")
# torch.compile takes seconds for each case: the slow tests do it
MINUTES = ("compiled",)
OF_EVERY_KERNEL = {"determinism", "memory bounds", "initialised memory", "no stale results", "error contract"}
SAFE = [mutant for mutant in ALL if not mutant.unsafe]
# A slow mutant -> a cheaper one of its class, which dies under the same law in every run.
SECONDS = {
    "shaped loss: labels in 16 bits": "shaped log_sum: two blocks of columns",
    "shaped attention: edge beyond 128 keys": "shaped log_sum: two blocks of columns",
    "shaped attention: last key where one is over": "shaped log_sum: two blocks of columns",
    "shaped attention: not rescaled from the third block on": "shaped log_sum: two blocks of columns",
    "shaped weighted: subnormal weights flushed": "gelu: input flushed",
    "attention plain: a half block is not masked": "attention fp8: weights beyond 448 at whole blocks",
    "attention plain: an unmasked 0 is the maximum": "attention fp8: weights beyond 448 at whole blocks",
    "attention fp8: the maximum lags by 8": "attention fp8: weights beyond 448 at whole blocks",
    "layer_norm_rows: partial sums share a slot": "layer_norm: lost update",
    "layer_norm_rows: tail rows skipped backward": "layer_norm: all rows stored to row 0",
    "layer_norm_rows: block too small": "linear: K remainder dropped",
    "layer_norm weight bias: bias lost without a weight": "layer_norm weight bias: weight lost without a bias",
    "layer_norm: rank above two folded wrongly": "layer_norm_rows: last column not stored",
    "layer_norm: rows counted by the first dimension": "layer_norm: all rows stored to row 0",
    "layer_norm: raises for no rows": "layer_norm: 0/0 for no rows",
    "linear: dbias of the first block of rows": "geglu: second half stored to row 0",
    "linear gelu bfloat16: dpre rounded backward": "gelu bfloat16: slope rounded backward",
    "silu: grid capped": "silu: grid rounded down",
}


def classes() -> list[str]:
    """The bug classes that README.md lists, one per table row."""
    rows = re.findall(r"^\| `([^`]+)` \|", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(rows) == len(set(rows))
    return rows


def fate(mutant: Mutant, backend: Backend) -> tuple[str, ...]:
    """The first of the mutant's laws that kills it, or nothing."""
    for name in mutant.killed_by:
        if try_law(registry.get(name), mutant.kernel, backend, FIXED).fate == "killed":
            return (name,)
    return ()


# -- the zoo itself ---------------------------------------------------------------------------------


# -- the laws ---------------------------------------------------------------------------------------


def test_every_law_has_a_mutant_that_must_die_under_it_alone() -> None:
    """So a law that cannot fail is noticed: `test_a_mutant_dies_under_its_law` would find its mutant alive."""
    alone = {mutant.killed_by for mutant in ALL if mutant.name not in SECONDS}
    assert [law.name for law in registry.ALL if (law.name,) not in alone] == []


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(mutant, id=mutant.name, marks=pytest.mark.slow if mutant.name in SECONDS else ()) for mutant in SAFE],
)
def test_a_mutant_dies_under_its_law(mutant: Mutant, backend: Backend) -> None:
    """By the law's fixed cases alone, which every profile but quick tries: no kill hangs on what a search draws."""
    if backend.name not in mutant.backends:
        pytest.skip(f"this bug cannot be seen on the {backend.name} backend")
    if "two GPUs" in mutant.note and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    if mutant.killed_by == ("large tensors",) and not FIXED.sizes[backend.scale].many_rows:
        pytest.skip("this profile has no case of more than 2^31 elements")
    assert fate(mutant, backend), f"{mutant.name} survives {', '.join(mutant.killed_by)}"


@pytest.mark.parametrize("mutant", [m for m in ALL if m.unsafe], ids=lambda mutant: mutant.name)
def test_a_mutant_that_damages_foreign_memory_dies_between_guard_bands(mutant: Mutant, backend: Backend) -> None:
    """Only laws that surround every allocation with guard bands may run it in this process."""
    assert set(mutant.killed_by) <= {"memory bounds", "initialised memory"}
    assert fate(mutant, backend)


@pytest.mark.parametrize("twin", TWINS.values(), ids=lambda twin: twin.name)
def test_a_twin_survives_the_laws_that_kill_its_mutants(twin: Kernel, backend: Backend) -> None:
    """In the first fixed cases of each law; slow runs draw others."""
    deadly = {name for mutant in ALL if mutant.twin is twin for name in mutant.killed_by} - set(MINUTES)
    few = replace(PROFILES["quick"], examples=0, fixed=4)
    trials = [try_law(registry.get(name), twin, backend, few) for name in sorted(deadly)]
    assert [(trial.law, trial.reason, trial.case) for trial in trials if trial.fate in ALARMS] == []


@pytest.mark.slow
@pytest.mark.parametrize("twin", TWINS.values(), ids=lambda twin: twin.name)
def test_a_twin_survives_every_law(twin: Kernel, backend: Backend) -> None:
    laws = [law for law in registry.ALL if law.name not in MINUTES]
    trials = [try_law(law, twin, backend, PROFILES["quick"]) for law in laws]
    assert [(trial.law, trial.reason, trial.case) for trial in trials if trial.fate in ALARMS] == []
    assert {trial.law for trial in trials if trial.fate == "survived"} >= OF_EVERY_KERNEL


@pytest.mark.slow
@pytest.mark.parametrize("twin", TWINS.values(), ids=lambda twin: twin.name)
def test_a_twin_survives_many_cases(twin: Kernel, backend: Backend) -> None:
    many = Profile("many", 700, CI.sizes, seed=20_240_229)
    trials = [try_law(law, twin, backend, many) for law in registry.ALL]
    assert [(trial.law, trial.reason, trial.case) for trial in trials if trial.fate in ALARMS] == []


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SAFE, ids=lambda mutant: mutant.name)
def test_a_mutant_dies_under_each_law_that_is_written_for_it(mutant: Mutant, backend: Backend) -> None:
    if backend.name not in mutant.backends:
        pytest.skip(f"this bug cannot be seen on the {backend.name} backend")
    for name in mutant.killed_by:
        trial = try_law(registry.get(name), mutant.kernel, backend, PROFILES["nightly"])
        # on a GPU the law of accuracy tries sizes that are too large for the interpreter
        assert trial.fate == "killed" or "the law of accuracy tries" in trial.reason, (name, trial)


# -- what the laws are for ----------------------------------------------------------------------------
