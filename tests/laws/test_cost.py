"""What a case of a law costs besides the kernel: torch operations on the device, and waits for its answer.

Times belong to `tests.benchmarks.overhead`, these counts are the same on every machine. On a GPU an operation is a
launch (5 to 10 us of the host's time), a question is a wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import pytest
from torch.utils._python_dispatch import _disable_current_modes

from tests.benchmarks.overhead import Clock, counted, spread, subjects, watched
from verify import backends, measure
from verify.cases import values
from verify.laws import accuracy, compare, guard, registry, special
from verify.laws.engine import PROFILES, attempt
from verify.laws.law import Subject

# At most so many operations, and questions, of a plain case (with a stride where the law is about strides).
LIMITS = {
    "accuracy": (10, 2),
    "mixed dtypes": (10, 2),
    "special values": (5, 2),
    "layout independence": (24, 4),
    "memory bounds": (36, 4),
    "initialised memory": (56, 3),
    "nothing overwritten": (18, 4),
    "no stale results": (25, 3),
    "batch invariance": (30, 5),
    "determinism": (36, 6),
    "error contract": (40, 6),
    "autocast": (12, 4),
}


@contextmanager
def as_on_a_gpu(questions: list[str]) -> Iterator[None]:
    """Do not count what is done in the memory of the host wherever a small case runs; note each joined comparison."""

    def asked(function: Any) -> Any:
        def run(*args: Any) -> Any:
            questions.append(function.__name__)
            with _disable_current_modes():
                return function(*args)

        return run

    def on_the_host(function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return function(*args, **kwargs)

        return run

    with (
        mock.patch.object(values, "_small", on_the_host(values._small)),
        mock.patch.object(special, "inputs_of", on_the_host(special.inputs_of)),
        mock.patch.object(special, "upstream_of", on_the_host(special.upstream_of)),
        mock.patch.object(special, "plant", on_the_host(special.plant)),
        mock.patch.object(accuracy, "judge_known", on_the_host(accuracy.judge_known)),
        mock.patch.object(special, "judge_known", on_the_host(special.judge_known)),
        mock.patch.object(accuracy, "evaluate", on_the_host(accuracy.evaluate)),
        mock.patch.object(measure, "same_bits", asked(measure.same_bits)),
        mock.patch.object(compare, "same_bits", asked(compare.same_bits)),
        mock.patch.object(guard, "same_bits", asked(guard.same_bits)),
        mock.patch.object(guard, "_full_of", asked(guard._full_of)),
    ):
        yield


@pytest.mark.parametrize("law", LIMITS)
def test_a_case_takes_few_operations_and_few_questions(law: str) -> None:
    backend = backends.select("interpreter")  # no GPU needed: what would be done on one is counted
    clock = Clock(lambda: None, lambda: 0.0)
    found = []
    for kernel in subjects(clock):
        subject = Subject(kernel, "bfloat16", backend, PROFILES["ci"].sizes[backend.name])
        chosen = registry.get(law)
        if chosen.applies(subject) is None:
            case = chosen.fixed(subject)[-1]
            asked: list[str] = []
            with watched(clock), as_on_a_gpu(asked):
                operations, waits = counted(partial(attempt, chosen, subject, case), clock, backend.device)
            found.append((operations, waits + len(asked)))
    most = max(operations for operations, _ in found), max(questions for _, questions in found)
    assert most[0] <= LIMITS[law][0] and most[1] <= LIMITS[law][1], most


def test_where_time_is_short_the_first_cases_come_from_everywhere() -> None:
    for count in range(41):
        assert sorted(spread(list(range(count)))) == list(range(count))
    first = spread(list(range(40)))[:4]
    assert max(first) - min(first) >= 20
