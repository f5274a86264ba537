"""What a run says while it goes on."""

from __future__ import annotations

from verify.measure.progress import Progress, clock
from verify.workers.requests import Step


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_follows_from_what_is_done() -> None:
    time = Clock()
    progress = Progress(3, laws=False, clock=time)
    assert progress.begin("a", "gelu float32") == "0 of 3 done; running: gelu float32"
    time.now += 10
    assert progress.left() is None, "nothing is known of how far it is"
    assert progress.at("a", Step("gelu float32, case 6 of 10", "case", 6, 10)).startswith(
        "0 of 3 done, about 50 s left; running: gelu float32,"
    )
    progress.end("kept of an earlier run")
    assert progress.left() == 30, "of which nothing was left to do"
    time.now += 10
    assert progress.end("a") == "2 of 3 done, about 20 s left"
    progress.begin("b", Step("slow, case 1 of 10", "case", 1, 10))
    time.now += 80
    assert progress.at("b", Step("slow, case 2 of 10", "case", 2, 10)).startswith("2 of 3 done, about 12 min left"), (
        "its own pace"
    )
    assert progress.end("b") == "3 of 3 done"


def test_laws_come_after_the_cases() -> None:
    time = Clock()
    progress = Progress(1, laws=True, clock=time)
    progress.begin("a", "gelu")
    time.now += 65
    progress.at("a", Step("gelu float32, law 15 of 28: strides", "law", 15, 28))
    left = progress.left()
    assert left is not None and abs(left - 35) < 1e-6


def test_a_guess_is_rounded() -> None:
    assert [clock(seconds) for seconds in (1, 42, 300, 9000)] == ["5 s", "40 s", "5 min", "2.5 h"]
