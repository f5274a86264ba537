"""What a run says while it goes on."""

from __future__ import annotations

import re

import pytest

from verify.measure.session import Line, RunProgress
from verify.workers.requests import Step


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def case(number: int, total: int = 10) -> Step:
    return Step(f"gelu float32, case {number} of {total}", "case", number, total)


def test_the_time_left_follows_from_what_is_done() -> None:
    time = Clock()
    progress = RunProgress(3, laws=False, clock=time)
    assert progress.begin("a", "gelu float32") == "0 of 3 done; running: gelu float32"
    time.now += 12
    assert progress.at("a", case(1)) == "0 of 3 done; running: gelu float32, case 1 of 10"
    time.now += 10
    assert progress.at("a", case(2)) == "0 of 3 done; running: gelu float32, case 2 of 10"
    time.now += 2
    assert progress.at("a", case(3)) == "0 of 3 done; running: gelu float32, case 3 of 10", "an eleventh is done"
    time.now += 2
    # nine cases of 2 s follow the first, which took 22 s with all before it, and two parts follow this one
    assert progress.at("a", case(4)).startswith("0 of 3 done, about 95 s left; running: gelu float32,")
    assert progress.left() == pytest.approx(40 - 26 + 2 * 40)
    progress.end("kept of an earlier run")
    assert progress.left() == pytest.approx(40 - 26 + 40), "nothing of that part was left to do"
    time.now += 14
    assert progress.end("a") == "2 of 3 done, about 40 s left"


def test_what_an_earlier_start_did_is_no_tenth_of_this_one() -> None:
    time = Clock()
    progress = RunProgress(57, laws=False, clock=time)
    for part in range(40):
        progress.end(f"kept {part}")
    for done in range(2):
        progress.begin(str(done), "gelu")
        time.now += 10
        text = progress.end(str(done))
        assert ("left" in text) == (done == 1), text
    assert text == "42 of 57 done, about 2 min left"


def simulated(
    parts: int, workers: int, *, startup: float, first: float, case_of: float, cases: int = 14
) -> list[tuple[float, Line]]:
    """Returns the lines of a run, one for each case that begins, with the seconds that were left in truth.

    The first part of each worker takes `startup` seconds before its first case.
    """
    time = Clock()
    progress = RunProgress(parts, laws=False, clock=time)
    waiting = list(range(parts))
    # by worker: the time of its next event, its part, and the number of the case that begins then
    events = [(100.0 + startup + 0.01 * place, waiting.pop(0), 1) for place in range(min(workers, parts))]
    for _, part, _ in events:
        progress.begin(str(part), f"part {part}")
    lines: list[tuple[float, Line]] = []
    while events:
        event = min(events)
        events.remove(event)
        time.now, part, number = event
        if number <= cases:
            lines.append((time.now, progress.at(str(part), case(number, cases))))
            events.append((time.now + (first if number == 1 else case_of), part, number + 1))
            continue
        lines.append((time.now, progress.end(str(part))))
        if waiting:
            events.append((time.now, waiting.pop(0), 1))
            progress.begin(str(events[-1][1]), f"part {events[-1][1]}")
    return [(time.now - at, line) for at, line in lines]


def seconds_of(line: str) -> float | None:
    found = re.search(r"(?:about|more than) ([\d.]+) (s|min|h) left", line)
    return float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]] if found else None


@pytest.mark.parametrize(("parts", "workers"), [(1, 1), (3, 2), (66, 16), (66, 64), (300, 4)])
@pytest.mark.parametrize(
    ("startup", "first", "case_of"),
    [(32, 24, 2), (12, 2, 2), (4, 48, 4), (0, 4, 4), (8, 4, 8)],
    ids=["compiles", "imports", "compiles long", "all alike", "slower later"],
)
def test_an_estimate_comes_after_a_tenth_and_is_right_within_a_factor_of_two(
    parts: int, workers: int, startup: float, first: float, case_of: float
) -> None:
    lines = simulated(parts, workers, startup=startup, first=first, case_of=case_of)
    told = [(left, seconds_of(line), line, line.share) for left, line in lines[:-1]]
    assert all(guess is None for _, guess, _, share in told if share < 0.1)
    guessed = [(left, guess, line) for left, guess, line, _ in told if guess is not None]
    first_share = next(share for _, guess, _, share in told if guess is not None)
    # of a part alone, the second case has to end: the third of 14 begins after a fifth
    assert first_share <= 0.22
    for left, guess, line in guessed:
        assert left / 2 - 5 <= guess <= 2 * left + 10, (left, line)  # a line counts by 5 s, then by minutes
