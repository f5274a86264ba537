"""Times a solution by the clock of the judge, which the process of the solution cannot reach.

The judge sends a key and waits for the last key of a chain of calls (chain.py). The time between the two is an upper
bound: the first key makes the inputs, and all answers make the last key. It includes work of the judge, such as making
the inputs. The judge times this work in its own process, and the reference too.
"""

import itertools
import math
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verify.backends import Backend
from verify.cases import case_of, inputs_of
from verify.declare.declaration import Kernel
from verify.errors import KernelError, Refused, TruthError, UsageError
from verify.measure.effort import turn
from verify.measure.findings import BASELINE, KERNEL
from verify.measure.kernel import judged_results
from verify.records.record import Result
from verify.referee import chain
from verify.referee.host import TimedChain
from verify.referee.judging import excused, largest
from verify.referee.plan import CallTime
from verify.referee.problem import Solution, is_finite

ROUNDS = 6
# Rounds that do not count: the first loads and compiles, the second tells how many calls a chain may have.
WARM_UP = 2
REPEATED = 2  # chains of the reference in each round: they take less time than those of the solution
CHAIN_SECONDS = 0.1  # of one chain
MOST_CALLS, FEWEST_CALLS = 64, 2
CHAIN_BYTES = 1 << 28  # of the inputs and answers of one chain
# A clock agrees with the judge's if it is no further from it than these shares of its time and of the judge's own work.
NOISE, AGREES = 0.05, 0.25
OWN, HARD = "normal", ("mean 1e3", "outlier")  # the numbers that inputs of chains are drawn from: recipes
# Times a limit: two answers of an honest solution, of which one is right, are no further apart than rounding errors.
FAR = 2
DEVIATES = "answers otherwise while it is timed"
CHANGES = "changes an answer after the clock stopped"

Tensors = dict[str, Tensor]


def timed(kernel: Kernel, backend: Backend, seconds: float, judges: int) -> CallTime:
    """Returns the time of a call of a solution beside that of the reference. Nothing begins after `seconds`.

    Some answers are judged, `judges` at a time.
    """
    solution = kernel.function
    assert isinstance(solution, Solution)
    name, clock = solution.problem.name, None
    try:
        clock = _Clock(kernel, solution, backend)
        with torch.no_grad():
            clock.run(time.monotonic() + seconds)
            return clock.found(judges)
    except (KernelError, UsageError, TruthError, RuntimeError, TypeError, ValueError) as error:
        tricks = clock.tricks if clock else {}
        return CallTime(name, reason=str(error).partition("\n")[0], tricks=tricks, failed=type(error) is KernelError)


@dataclass(frozen=True)
class _Answer:
    """One timed call: the numbers that it was drawn from, inputs, answer, and how far this is from the reference's."""

    fill: str
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
        own = {name: problem.tensors[name].to(backend.device) for name in problem.arguments if name in problem.tensors}
        self._varied = chain.varied(own, problem.structures)
        if not self._varied:
            raise UsageError("no argument is a tensor of numbers that can differ in each call")
        self._stored = {OWN: own}
        held = {problem.state[name]: each for name, each in problem.tensors.items() if name in problem.state}
        self._state: Tensors = held or solution.weights()
        self._reference = problem.reference(backend.device)  # it is timed; answers are compared with another one
        self._beside = problem.reference(backend.device, problem.layout) if backend.gpu else self._reference
        # seconds of one call in each round that counts
        self._seconds: dict[str, list[float]] = {"solution": [], "own clock": [], "work": [], "reference": []}
        self._furthest: dict[str, _Answer] = {}  # by the numbers that inputs were drawn from
        self._any: _Answer | None = None
        self.tricks: dict[str, str] = {}
        self._count, self._calls = FEWEST_CALLS, 0

    def run(self, until: float) -> None:
        """Times the reference, the judge's own work and the solution in turns. Two rounds count in any case."""
        self._solution.host.build(list(self._solution.problem.made.values()))
        hard = dict(zip(secrets.SystemRandom().sample(range(1, WARM_UP + 2), len(HARD)), HARD, strict=True))
        with turn(self._backend, math.inf):  # without another judge that uses much of the GPU
            for number in range(ROUNDS):
                if number > WARM_UP + 1 and time.monotonic() > until:
                    break
                with self._solution.host.process.paused():
                    for _ in range(REPEATED):
                        answer = self._time_reference()
                        # the judge's own work: a chain whose calls do nothing
                        seconds, _, _ = self._time_here(lambda inputs: answer)  # noqa: B023
                        self._seconds["work"].append(seconds)
                done = self._chain(OWN)
                self._seconds["solution"].append(done.seconds)
                self._seconds["own clock"].append(done.own_seconds)
                self._calls += self._count
                if number in hard:
                    self._try_hard(hard[number])
                if number < WARM_UP:
                    slowest = max(self._seconds["solution"][-1], self._seconds["reference"][-1], 1e-9)
                    of_one = sum(each.nbytes for each in (*self._stored[OWN].values(), *answer))
                    fits = min(MOST_CALLS, CHAIN_BYTES // max(of_one, 1), int(CHAIN_SECONDS / slowest))
                    self._count = max(FEWEST_CALLS, fits)
                    for each in self._seconds.values():
                        each.clear()

    def _time_here(self, call: chain.Call) -> tuple[float, float, list[list[Tensor]]]:
        """Runs a chain in this process. Returns seconds of a call with the judge's work and without it, and answers."""
        watch, secret, own = chain.Watch(self._backend.device), secrets.randbits(63), self._stored[OWN]
        raw = {name: chain.sealed(each, secret) for name, each in own.items()}
        watch.wait()
        began = time.perf_counter()
        opened = {name: chain.opened(each, own[name].dtype, own[name].shape, secret) for name, each in raw.items()}
        inputs = chain.chain_inputs(opened, self._varied)
        found, _ = chain.run(call, inputs, secrets.randbits(63), self._count, watch)
        return (time.perf_counter() - began) / self._count, watch.seconds(), found

    def _time_reference(self) -> list[Tensor]:
        """Returns one answer of the reference."""
        _, seconds, found = self._time_here(self._reference)
        self._seconds["reference"].append(seconds)
        if not all(map(is_finite, found[0])):
            raise UsageError("the reference has no finite answer to other inputs of the problem's numbers")
        return found[0]

    def _try_hard(self, fill: str) -> None:
        """Has a chain answered whose inputs are hard. The solution cannot know that it does not count."""
        kernel = self._kernel
        if fill not in self._stored:
            case = case_of(kernel, kernel.dtypes[0], dims=kernel.op.geometry.examples[0], fill=fill, upstream="")
            drawn = inputs_of(kernel.op, case, self._backend.device)
            self._stored[fill] = {
                name: each.to(own.dtype) if own.is_floating_point() and (each := drawn[name]) is not None else own
                for name, own in self._stored[OWN].items()
            }
        with suppress(Refused):  # the reference may refuse such numbers too
            self._chain(fill)

    def _chain(self, fill: str) -> TimedChain:
        """Has a chain answered, and looks at its answers. A call of it that fails where another succeeds is a trick.

        Raises Refused if the reference, too, raises with the arguments of this call.
        """
        key, host, stored = secrets.randbits(63), self._solution.host, self._stored[fill]
        try:
            done = host.chain(self._state, stored, self._varied, key, self._count)
        except KernelError as error:
            raise self._failed(error, stored) from None
        last = self._look(fill, key, done)
        if not done.raised:
            return done
        inputs = chain.chain_inputs(stored, self._varied)(torch.tensor(last, device=self._backend.device))
        self._wanted(inputs)
        raise self._failed(KernelError(done.raised), inputs)

    def _wanted(self, inputs: Tensors) -> list[Tensor]:
        """Returns the answer of the reference. Raises Refused if it has none."""
        try:
            return self._beside({name: each.clone() for name, each in inputs.items()})
        except Exception as error:
            raise Refused(f"the reference raises {error}") from None

    def _failed(self, error: KernelError, inputs: Tensors) -> KernelError:
        """Returns the error of a chain. Raises another one if a call that is not timed fails with these inputs."""
        if "memory" not in str(error):
            self._solution.host.call(self._state, inputs, alone=True)
            self.tricks[DEVIATES] = f"{error}, and answers a call that is not timed"
        return error

    def _look(self, fill: str, key: int, done: TimedChain) -> int:
        """Follows the chain again with the answers that came, and compares each with the reference's, on the device.

        Returns the key behind them.
        """
        given, device = list[Tensors](), self._backend.device
        placed = [[each.to(device) for each in answer] for answer in done.answers]
        answers = iter(placed)

        def call(inputs: Tensors) -> Sequence[Tensor]:
            given.append(inputs)
            return next(answers)

        inputs_by = chain.chain_inputs(self._stored[fill], self._varied)
        _, last = chain.run(call, inputs_by, key, len(placed), chain.Watch(device))
        if last != done.last and not done.raised:
            self.tricks[CHANGES] = "the bits of its answers are not those by which it made the next inputs"
        for place, (inputs, results) in enumerate(zip(given, placed, strict=True), 1):
            try:
                theirs = self._wanted(inputs)
            except Refused:
                if fill == OWN:
                    raise
                continue
            if fill != OWN and not all(map(is_finite, theirs)):
                continue
            answer = _Answer(fill, inputs, results, theirs, _apart(results, theirs))
            if fill not in self._furthest or not answer.apart <= self._furthest[fill].apart:
                self._furthest[fill] = answer
            if fill == OWN and secrets.randbelow(self._calls + place) == 0:  # each answer so far with equal chances
                self._any = answer
        return last

    def found(self, judges: int) -> CallTime:
        """Judges some answers exactly, `judges` at a time, and returns the times."""
        answers, wrong = [*self._furthest.values(), *([self._any] if self._any else [])], ""
        for answer, (reason, far) in zip(answers, self._wrong(answers, judges), strict=True):
            if reason:
                again = replace(answer, results=self._solution.host.call(self._state, answer.inputs, alone=True))
                if not far or self._wrong([again], judges)[0][0]:
                    wrong = f"{reason}, with numbers of the problem's own inputs"
                else:
                    self.tricks[DEVIATES] = f"{reason}, and right in a call that is not timed"
        most, own, work, reference = map(min, self._seconds.values())
        # a clock that shows less than the judge's own allows is not taken
        least = max(own, most - (1 + AGREES) * work) if own > 0 else max(most - work, NOISE * most)
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
            tricks=self.tricks,
        )

    def _wrong(self, answers: Sequence[_Answer], judges: int) -> list[tuple[str, bool]]:
        """Returns why each answer is wrong where PyTorch's is not as wrong, or "", and if it is far off."""
        kernel, asked, own = self._kernel, [], dict(self._solution.problem.tensors)
        alike = [[x.shape for x in each.results] == [x.shape for x in each.theirs] for each in answers]
        for answer in itertools.compress(answers, alike):
            sides = (KERNEL, answer.results), (BASELINE, answer.theirs)
            named = {
                by: dict(zip(kernel.outputs, (value.to(self._backend.device) for value in each), strict=True))
                for by, each in sides
            }
            asked.append(({name: (own | answer.inputs)[name] for name in kernel.operands}, named, answer.fill))
        judged, found = iter(judged_results(kernel, self._backend, asked, judges)), []
        for same in alike:
            wrong = [each for each in next(judged) if each.status == "wrong" and not excused(each)] if same else []
            reason = next((each.reason for each in wrong), "") if same else "its results have other shapes"
            found.append((reason, not same or any(map(_is_far, wrong))))
        return found


def _is_far(result: Result) -> bool:
    """True if an error is more than FAR times its limit, or has none."""
    errors = [(largest(each.figures, result.gate), each.limit) for each in result.classes if each.reason]
    return any(limit is None or not error <= FAR * limit for error, limit in errors)


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
