"""`verify selftest`: there is a seeded bug for every law, each is found, and no correct twin is accused."""

from __future__ import annotations

import dataclasses

import pytest

from verify.backends import Backend
from verify.laws import registry
from verify.laws.selftest import trials
from verify.laws.selftest.seeded import Seeded, seeded

SECONDS = ("compiled",)  # torch.compile: the slow test has it


def test_every_law_has_one_seeded_bug_and_its_twin_promises_the_same() -> None:
    assert sorted(item.law for item in seeded()) == sorted(law.name for law in registry.ALL)
    assert len({item.bug for item in seeded()}) == len(seeded())
    for item in seeded():
        assert item.kernel.promise == item.twin.promise
        assert item.kernel.op is item.twin.op


def test_every_law_that_can_be_tried_here_finds_its_bug(backend: Backend) -> None:
    found = trials.run(backend, [law.name for law in registry.ALL if law.name not in SECONDS])
    failed = [trial for trial in found.trials if trial.fate == "survived" or trial.alarm]
    assert failed == [] and found.passed
    for trial in found.trials:
        assert trial.message, trial.law  # the rule that was broken, or why it was not tried
    untried = [trial.law for trial in found.trials if trial.fate == "not tried"]
    if backend.name == "interpreter":
        assert untried == ["side stream", "CUDA graph", "other device", "large offsets", "large tensors"]
    assert found.record.twins == len(found.trials) - len(untried)
    assert [kill.visible for kill in found.record.kills] == [trial.fate != "not tried" for trial in found.trials]


@pytest.mark.slow
def test_torch_compile_too(backend: Backend) -> None:
    assert trials.run(backend, SECONDS).passed


def test_a_bug_that_survives_and_a_twin_that_is_accused_both_fail(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test itself can fail: bug and twin change places."""

    def swapped() -> tuple[Seeded, ...]:
        return tuple(dataclasses.replace(item, kernel=item.twin, twin=item.kernel) for item in seeded())

    monkeypatch.setattr(trials, "seeded", swapped)
    found = trials.run(backend, ["special values"])
    assert not found.passed
    assert found.trials[0].fate == "survived"
    assert found.record.alarms[0].startswith("special values: wrong at an infinite or NaN input")


def test_nothing_tried_is_no_pass(backend: Backend) -> None:
    if backend.name == "interpreter":
        assert not trials.run(backend, ["CUDA graph"]).passed
