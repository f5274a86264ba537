"""A few specimens of the zoo and their honest twins; `python -m mutants.zoo` judges all of them."""

from __future__ import annotations

import pytest

from mutants import zoo
from verify.referee.plan import Judgement

pytestmark = pytest.mark.usefixtures("warm")
FEW = (
    "beside NaN",
    "a mask that is not read",
    "weights that a constructor prepared are those of another module",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[zoo.Trick, Judgement]]:
    chosen = [trick for trick in zoo.TRICKS if trick.name in FEW]
    judged = zoo.judged(chosen, tmp_path_factory.mktemp("zoo"), 2)  # alone, a judgement has forks for each case
    return {(trick.name, kind): (trick, done) for trick, kind, done in judged}


@pytest.mark.parametrize("name", FEW)
def test_a_specimen_is_caught_and_its_twin_accepted(
    found: dict[tuple[str, str], tuple[zoo.Trick, Judgement]], name: str
) -> None:
    trick, done = found[name, "specimen"]
    assert trick.holds(done), (done.verdict, done.message, done.tricks)
    _, twin = found[name, "twin"]
    assert twin.verdict == "accepted", twin.message
