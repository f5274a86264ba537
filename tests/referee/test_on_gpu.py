"""What solutions do on a GPU: specimens of the zoo, chains of calls there, and neighbours that share its memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mutants import honest, zoo
from verify.referee.judging import Settings, judge_many
from verify.referee.plan import Judgement

pytestmark = pytest.mark.gpu
JOBS = 8
GROUPS = ("what a GPU makes possible", "a call that is timed, and one that is not")
HOARDS = """
import torch
from torch import nn

held = []


class ModelNew(nn.Module):
    def forward(self, x):
        while True:  # until the GPU is full
            held.append(torch.empty(1 << 30, dtype=torch.uint8, device=x.device))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[zoo.Trick, str, Judgement]]:
    chosen = [each for group, tricks in zoo.grouped() if group["name"] in GROUPS for each in tricks]
    return list(zoo.judged(chosen, tmp_path_factory.mktemp("zoo"), JOBS, "cuda"))


def test_specimens_are_caught_on_a_gpu(found: list[tuple[zoo.Trick, str, Judgement]]) -> None:
    assert len(found) >= 30
    held = {trick.name: (done.verdict, done.message, done.tricks) for trick, kind, done in found if kind == "specimen"}
    assert not {
        trick.name: held[trick.name] for trick, kind, done in found if kind == "specimen" and not trick.holds(done)
    }


def test_their_honest_twins_are_accepted_on_a_gpu(found: list[tuple[zoo.Trick, str, Judgement]]) -> None:
    assert not {
        trick.name: (done.verdict, done.message, done.tricks)
        for trick, kind, done in found
        if kind == "twin" and done.verdict != "accepted"
    }


def test_a_solution_that_fills_the_gpu_is_not_the_fault_of_its_neighbours(tmp_path: Path) -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    rows = [each for each in honest.written() if each.problem == "softmax_rows"]
    pairs = [each.write(tmp_path, place) for place, each in enumerate(rows)]
    (tmp_path / "hoards.py").write_text(HOARDS)
    problem = pairs[0][0]
    pairs[1:1] = [(problem, str(tmp_path / "hoards.py"))]
    verdicts = {}
    for done in judge_many(pairs, Settings(backend="cuda", allow_weaker=True), JOBS):
        verdicts[Path(done.solution).name] = done.verdict, done.message
    assert verdicts.pop("hoards.py")[0] == "fails"
    assert {verdict for verdict, _ in verdicts.values()} == {"accepted"}, verdicts
