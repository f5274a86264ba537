"""Times a solution by the clock of the judge, which the process of the solution cannot reach.

The judge sends a key and waits for the last key of a chain of calls (chain.py). The time between the two is an upper
bound: the first key makes the inputs, and all answers make the last key. It includes work of the judge, such as making
the inputs. The judge times this work in its own process, and the reference too.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.backends import Backend
from verify.declare.declaration import Kernel
from verify.errors import KernelError, TruthError, UsageError
from verify.measure.budget import turn
from verify.measure.kernel import judged_results
from verify.referee import chain
from verify.referee.host import TimedChain
from verify.referee.judging import excused
from verify.referee.problem import Solution
from verify.referee.requests import CallTime

ROUNDS = 6
# Rounds that do not count: the first loads and compiles, the second tells how many calls a chain may have.
WARM_UP = 2
REPEATED = 2  # chains of the reference in each round: they take less time than those of the solution
CHAIN_SECONDS = 0.1  # of one chain
MOST_CALLS, FEWEST_CALLS = 64, 2
CHAIN_BYTES = 1 << 28  # of the inputs and answers of one chain
# A clock agrees with the judge's if it is no further from it than these shares of its time and of the judge's own work.
NOISE, AGREES = 0.05, 0.25
DEVIATES = "answers otherwise while it is timed"
CHANGES = "changes an answer after the clock stopped"

Tensors = dict[str, Tensor]


def timed(kernel: Kernel, backend: Backend, seconds: float) -> CallTime:
    """Returns the time of a call of a solution beside that of the reference. Nothing begins after `seconds`."""
    solution = kernel.function
    assert isinstance(solution, Solution)
    name = solution.problem.name
    try:
        clock = _Clock(kernel, solution, backend)
        with torch.no_grad():
            clock.run(time.monotonic() + seconds)
            return clock.found()
    except (KernelError, UsageError, TruthError, RuntimeError, TypeError, ValueError) as error:
        return CallTime(name, reason=str(error).partition("\n")[0])


@dataclass(frozen=True)
class _Answer:
    """One timed call: its inputs, the answer, and how far that is from the reference's."""

    inputs: Tensors
    results: list[Tensor]
    theirs: list[Tensor]
    apart: float


class _Clock:
    """Times one solution, and keeps the two answers that are judged: the furthest from the reference, and any."""

    def __init__(self, kernel: Kernel, solution: Solution, backend: Backend) -> None:
        problem = solution.problem
        if not problem.tensors:
            raise UsageError("a declaration has no inputs of its own")
        self._kernel, self._solution, self._backend = kernel, solution, backend
        own = {name: each for name, each in problem.tensors.items() if name not in problem.state}
        self._varied = chain.varied(own)
        if not self._varied:
            raise UsageError("no argument is a tensor of numbers that can differ in each call")
        # in another order, so that nothing recognises the problem's own inputs
        self._stored = {
            name: solution.host.rolled(each) if name in self._varied else each for name, each in own.items()
        }
        self._placed = {name: each.to(backend.device) for name, each in self._stored.items()}
        self._state = {problem.state[name]: each for name, each in problem.tensors.items() if name in problem.state}
        self._reference = problem.reference(backend.device)
        # seconds of one call in each round that counts
        self._seconds: dict[str, list[float]] = {"solution": [], "own clock": [], "work": [], "reference": []}
        self._furthest: _Answer | None = None
        self._any: _Answer | None = None
        self._tricks: dict[str, str] = {}
        self._count, self._calls = FEWEST_CALLS, 0

    def run(self, until: float) -> None:
        """Times the reference, the judge's own work and the solution in turns. Two rounds count in any case."""
        self._solution.host.build(list(self._solution.problem.made.values()))
        with turn(self._backend, math.inf):  # without another judge that uses much of the GPU
            for number in range(ROUNDS):
                if number > WARM_UP + 1 and time.monotonic() > until:
                    break
                with self._solution.host.paused():
                    for _ in range(REPEATED):
                        answer = self._time_reference()
                        self._time_work(answer)
                self._time_solution()
                if number < WARM_UP:
                    slowest = max(self._seconds["solution"][-1], self._seconds["reference"][-1], 1e-9)
                    of_one = sum(each.nbytes for each in (*self._stored.values(), *answer))
                    fits = min(MOST_CALLS, CHAIN_BYTES // max(of_one, 1), int(CHAIN_SECONDS / slowest))
                    self._count = max(FEWEST_CALLS, fits)
                    for each in self._seconds.values():
                        each.clear()

    def _time_here(self, call: chain.Call) -> tuple[float, float, list[list[Tensor]]]:
        """Runs a chain in this process. Returns seconds of a call with the judge's work and without it, and answers."""
        watch = chain.Watch(self._backend.device)
        watch.wait()
        began = time.perf_counter()
        found, _ = chain.run(call, self._placed, self._varied, secrets.randbits(63), self._count, watch)
        return (time.perf_counter() - began) / self._count, watch.seconds(), found

    def _time_reference(self) -> list[Tensor]:
        """Returns one answer of the reference."""
        _, seconds, found = self._time_here(self._reference)
        self._seconds["reference"].append(seconds)
        if not all(bool(torch.isfinite(each).all()) for each in found[0] if each.is_floating_point()):
            raise UsageError("the reference has no finite answer to inputs with other mantissas")
        return found[0]

    def _time_work(self, answer: list[Tensor]) -> None:
        """Times the judge's own work in a chain whose calls do nothing."""
        seconds, _, _ = self._time_here(lambda inputs: answer)
        self._seconds["work"].append(seconds)

    def _time_solution(self) -> None:
        key = secrets.randbits(63)
        done = self._solution.host.chain(self._state, self._stored, self._varied, key, self._count)
        self._seconds["solution"].append(done.seconds)
        self._seconds["own clock"].append(done.own_seconds)
        self._calls += self._count
        self._look(key, done)

    def _look(self, key: int, done: TimedChain) -> None:
        """Follows the chain again with the answers that came, and compares each with the reference's, on the device."""
        inputs, device = list[Tensors](), self._backend.device
        placed = [[each.to(device) for each in answer] for answer in done.answers]
        answers = iter(placed)

        def call(given: Tensors) -> Sequence[Tensor]:
            inputs.append(given)
            return next(answers)

        _, last = chain.run(call, self._placed, self._varied, key, len(placed), chain.Watch(device))
        if last != done.last:
            self._tricks[CHANGES] = "the bits of its answers are not those by which it made the next inputs"
        for place, (given, results) in enumerate(zip(inputs, placed, strict=True), 1):
            theirs = self._reference({name: each.clone() for name, each in given.items()})
            answer = _Answer(given, results, theirs, _apart(results, theirs))
            if self._furthest is None or not answer.apart <= self._furthest.apart:
                self._furthest = answer
            if secrets.randbelow(self._calls - self._count + place) == 0:  # each answer so far with equal chances
                self._any = answer

    def found(self) -> CallTime:
        """Judges two answers exactly, and returns the times."""
        wrong = ""
        for answer in (self._furthest, self._any):
            assert answer is not None
            if reason := self._wrong(answer, answer.results):
                again = self._solution.host.call(self._state, answer.inputs, alone=True)
                if self._wrong(answer, again):
                    wrong = f"{reason}, with the exponents of the problem's own inputs"
                else:
                    self._tricks[DEVIATES] = f"{reason}, and right in a call that is not timed"
        most, own, work, reference = map(min, self._seconds.values())
        agrees = most - work <= own * (1 + NOISE) + AGREES * work
        least = own if agrees else most - work
        return CallTime(
            problem=self._solution.problem.name,
            milliseconds=least * 1e3,
            at_most=most * 1e3,
            own_clock=own * 1e3,
            reference=reference * 1e3,
            times_as_fast=reference / least,
            at_least=reference / most,
            calls=self._calls,
            wrong=wrong,
            tricks=self._tricks,
        )

    def _wrong(self, answer: _Answer, results: list[Tensor]) -> str:
        """Returns why results are wrong where PyTorch's are not as wrong; empty if they are right."""
        if [each.shape for each in results] != [each.shape for each in answer.theirs]:
            return "its results have other shapes"
        kernel, tensors = self._kernel, {**self._solution.problem.tensors, **answer.inputs}
        mine, theirs = (dict(zip(kernel.outputs, each, strict=True)) for each in (results, answer.theirs))
        given = {name: tensors[name] for name in kernel.operands}
        found = judged_results(kernel, self._backend, given, mine, theirs)
        return next((each.reason for each in found if each.status == "wrong" and not excused(each)), "")


def _apart(results: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Returns how far results are from the reference's, relative to its largest number; NaN is further than all."""
    if [each.shape for each in results] != [each.shape for each in theirs]:
        return math.inf
    found = [0.0]
    for mine, wanted in zip(results, theirs, strict=True):
        if wanted.is_floating_point() and wanted.numel():
            size = wanted.double().abs().max().clamp_min(1e-300)
            found.append(float(((mine.double() - wanted.double()).abs().max() / size).nan_to_num(nan=math.inf)))
    return max(found)
