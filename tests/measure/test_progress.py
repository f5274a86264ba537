"""What a run says while it goes on."""

from __future__ import annotations

import re

import pytest

from verify.measure.session import RunProgress
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
    time.now += 2
    assert progress.at("a", case(1)) == "0 of 3 done; running: gelu float32, case 1 of 10"
    time.now += 10
    assert progress.left() is None, "its first case goes on"
    # the first case counts as two of eleven, so the part takes 2 + 10 / (2 / 11) = 57 s, and two others follow it
    assert progress.at("a", case(2)).startswith("0 of 3 done, about 3 min left; running: gelu float32,")
    assert progress.left() == 57 - 12 + 2 * 57
    progress.end("kept of an earlier run")
    assert progress.left() == 57 - 12 + 57, "nothing of that part was left to do"
    time.now += 8
    assert progress.end("a") == "2 of 3 done, about 20 s left"


def simulated(parts: int, workers: int, *, startup: float, first: float, case_of: float, cases: int = 14) -> list[str]:
    """Returns the lines of a run, one for each case that begins, with the seconds that were left in truth before each.

    The first part of each worker takes `startup` seconds before its first case.
    """
    time = Clock()
    progress = RunProgress(parts, laws=False, clock=time)
    waiting = list(range(parts))
    # by worker: the time of its next event, its part, and the number of the case that begins then
    events = [(100.0 + startup + 0.01 * place, waiting.pop(0), 1) for place in range(min(workers, parts))]
    for _, part, _ in events:
        progress.begin(str(part), f"part {part}")
    lines: list[tuple[float, str]] = []
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
    return [f"{time.now - at:g} {line}" for at, line in lines]


def seconds_of(line: str) -> float | None:
    found = re.search(r"(?:about|more than) ([\d.]+) (s|min|h) left", line)
    return float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]] if found else None


@pytest.mark.parametrize(("parts", "workers"), [(1, 1), (3, 2), (66, 16), (66, 64), (300, 4)])
@pytest.mark.parametrize(
    ("startup", "first", "case_of"),
    [(32, 24, 2), (12, 2, 2), (4, 48, 4), (0, 4, 4), (8, 4, 8)],
    ids=["compiles", "imports", "compiles long", "all alike", "slower later"],
)
def test_the_first_estimate_comes_after_the_first_case_and_holds(
    parts: int, workers: int, startup: float, first: float, case_of: float
) -> None:
    lines = simulated(parts, workers, startup=startup, first=first, case_of=case_of)
    told = [(float(line.split()[0]), seconds_of(line), line) for line in lines]
    begun = next(place for place, (_, _, line) in enumerate(told) if "case 2 of" in line)
    assert all(guess is None for _, guess, _ in told[:begun])
    guesses = [guess for _, guess, _ in told[begun:] if guess is not None]
    assert len(guesses) == len(told) - begun - 1, "all but the last line, at which nothing is left"
    assert max(guesses) < 3 * guesses[0]
    truth = told[begun][0]
    assert truth / 5 < guesses[0] < 8 * truth, (guesses[0], truth)
