"""Calls a solution in a separate process, and records its behaviour. This process never imports the solution.

The process of a solution starts as a copy of this one before the problem was imported. It gets the arguments of each
call as bits and answers with bits. Only its answers are judged; its other behaviour does not reach the verdict.
"""

import functools
import math
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from verify.errors import InternalError, KernelError, Refused
from verify.measure.requests import Form
from verify.measure.tensors import LARGE, Loans, announced, form_of, tensors_in, view_of
from verify.records.files import write_atomically
from verify.referee import chain, messages
from verify.referee.messages import Tensors
from verify.referee.plan import GAVE_NONE, RULES, SAYS, Observed
from verify.truth.ulp import raw
from verify.workers.calls import Parts
from verify.workers.requests import Failure, Late, R, Reply, Request
from verify.workers.sandbox.confine import NEVER_WRITTEN
from verify.workers.sandbox.process import UNFORGEABLE, ConfinedProcess

EXTRA = 3  # each judged call has fewer additional calls than this
LARGE_BYTES = 1 << 24  # of arguments; three of four such calls have no additional call
CHAIN = 2  # times the limit of a call, for a chain
SLOW = 2.4  # factor of the time limit for the first call, which compiles
FREE_BYTES = 1 << 26  # of an answer whose size is not compared with the reference's
UNKNOWN_BYTES = 1 << 30  # of an answer whose size the reference does not tell
ALIKE = 2.0**-6  # answers of the reference that are no further apart, in parts of the largest number
TELLING, TELLING_WHOLE = 8, 32  # equal answers of so few different numbers, or whole numbers, may be chance
KEPT_BYTES = 1 << 20  # of the tensors of a call that are kept
MOST_WORDS = 500  # characters
PROBED = 1 << 16  # elements of a result that nearly always show enough different numbers


class SolutionProcess(ConfinedProcess):
    """The process of a solution. Its first request imports the solution."""

    first: threading.Thread | None = None  # waits for the first answers, while this process does other work

    def ask(
        self,
        request: Request[R],
        parts: Parts,
        seconds: float,
        most: Callable[[int], int] = lambda size: 0,
        device: str = "cpu",
        **more: Any,
    ) -> tuple[R, list[Tensor]]:
        """Returns the reply with its tensors. Raises Refused with what the solution raised, KernelError if it has none.

        Args:
            parts: the bytes of the request's tensors that are not lent
            most: returns the limit of the bytes of the tensors, for the size that is announced
            device: where tensors are lent
            more: see `call`
        """
        self.confined()
        deadline = time.monotonic() + seconds
        outcome = self.call(msgspec.json.encode(request), parts, deadline=deadline, most=most, **more)
        if isinstance(outcome, Failure):
            raise Refused(f"{SAYS}{outcome.text[:MOST_WORDS]}")
        if not isinstance(outcome, Reply):
            late = isinstance(outcome, Late)
            raise KernelError(f"its process {GAVE_NONE} {seconds:g} s; stopped" if late else str(outcome))
        try:
            reply = request.read(outcome.value)
            if getattr(reply, "number", None) != getattr(request, "number", None):
                raise ValueError("an answer to another call")
            return reply, tensors_in(getattr(reply, "tensors", ()), outcome.parts, device, most)
        except (InternalError, ValueError, KeyError, RuntimeError):
            self.stop()
            raise KernelError(UNFORGEABLE) from None


@dataclass(frozen=True)
class TimedChain:
    """A chain of calls: seconds of one call by the judge's clock and by that of the solution, answers, the last key.

    `raised` is what the call after these answers raised.
    """

    seconds: float
    own_seconds: float
    answers: list[list[Tensor]]
    last: int
    raised: str = ""


@dataclass(frozen=True)
class _Answered:
    """A call that was answered: its number, fingerprints of its tensors, and these (arguments, state) if small."""

    number: int
    inputs: tuple[int, ...]
    given: list[Tensors]


class Host:
    """Holds a solution, the observations of its calls, and the file that passes these to the parent."""

    def __init__(
        self, process: SolutionProcess, build: messages.Build, notes: Path, seconds: float, build_seconds: float
    ) -> None:
        self.process, self._build, self._notes = process, build, notes
        self._seconds, self._build_seconds = seconds, build_seconds
        self.observed = Observed()
        self.state: tuple[Form, ...] = ()
        self.prepared: tuple[str, ...] = ()
        self._built = False
        self._random = random.Random(secrets.randbits(64))
        self.reference: Callable[[str], Callable[..., list[Tensor]]] | None = None  # by device
        self.lends = False  # True: its tensors are large and on a GPU, and can stay there
        self._answers: dict[tuple[int, ...], _Answered] = {}  # by fingerprints of results
        self._secret = secrets.randbits(63)  # of fingerprints

    def build(self, tensors: Sequence[Tensor]) -> None:
        """Makes the process import the solution. Raises KernelError if that fails."""
        if (first := self.process.first) is not None and first is not threading.current_thread():
            first.join()
        self._demand()
        if self._built:
            return
        self.observed.limits = self.process.confined()
        self.lends = self.lends and self._can_lend()
        try:
            built, _ = self.process.ask(self._build, [view_of(each) for each in tensors], self._build_seconds)
        except KernelError as error:
            self.observed.failed = f"it could not be built: {error}"
            self._save()
            raise KernelError(self.observed.failed) from None
        self._built = True
        self.state, self.prepared = built.state, built.prepared
        self._save()

    def _can_lend(self) -> bool:
        """True if the process, which imported nothing yet, lends a tensor back that is lent to it."""
        device = self._build.device
        with suppress(Exception), Loans() as loans:
            own = torch.arange(LARGE // 8, device=device)
            asked = messages.Lend(0, device, (form_of("own", own, loans.add(own)),))
            reply, [back] = self.process.ask(asked, (), self._build_seconds, lambda size: 2 * LARGE, device)
            return bool(reply.tensors[0].lent) and torch.equal(own, back)
        return False

    def _demand(self) -> None:
        if self.observed.failed:
            raise KernelError(self.observed.failed)

    def call(self, state: dict[str, Tensor], arguments: dict[str, Tensor], *, alone: bool = False) -> list[Tensor]:
        """Returns the results of a call. Unless it is alone, some calls that are not judged come before it."""
        large = sum(each.nbytes for each in arguments.values()) > LARGE_BYTES
        extra = self._random.randrange(EXTRA + 1) // EXTRA if large else self._random.randrange(EXTRA)
        for _ in range(0 if alone else extra):
            with suppress(Refused):  # the reference may refuse these numbers too
                self._one(state, {name: self.rolled(value) for name, value in arguments.items()})
        return self._one(state, arguments)

    def rolled(self, value: Tensor) -> Tensor:
        """Returns the numbers of a tensor in another order."""
        return value.reshape(-1).roll(self._random.randrange(1, max(value.numel(), 2))).reshape(value.shape)

    def _one(self, state: dict[str, Tensor], arguments: dict[str, Tensor]) -> list[Tensor]:
        self._demand()
        seen = self.observed
        seen.calls += 1
        given = {**state, **arguments}
        again, watched = self._random.random() < 0.5, seen.calls % 8 == 2
        most = functools.partial(self._honest_bytes, arguments, state, 1)
        seconds = self._seconds * (SLOW if seen.calls == 1 else 1)
        try:
            with Loans(on=self.lends) as loans:
                forms, parts = announced(given.items(), loans.add)
                # a solution cannot guess the number
                request = messages.Call(secrets.randbits(50), forms, tuple(state), again, watched)
                answer, results = self.process.ask(request, parts, seconds, most, self._build.device)
        except KernelError as error:
            if not isinstance(error, Refused):
                seen.forged = UNFORGEABLE if str(error) == UNFORGEABLE else seen.forged
                seen.failed = str(error)
            self._save()
            raise
        seen.late |= answer.late
        seen.changed = tuple(dict.fromkeys((*seen.changed, *answer.changed)))
        lazy = f"{SAYS}{answer.lazy[:MOST_WORDS]}" if answer.lazy else ""
        seen.lazy = seen.lazy or lazy
        if lazy:
            self._save()
            raise KernelError(f"it returned {lazy}")
        self._compare(state, arguments, results)
        seen.functions, seen.modes = answer.functions or seen.functions, answer.modes or seen.modes
        seen.replaced = judging_functions(answer.replaced) or seen.replaced
        self._save()
        return results

    def _honest_bytes(self, arguments: Tensors, state: Tensors, calls: int, size: int) -> int:
        """Returns the most bytes of an honest answer: those of the reference, if a result has twice its precision."""
        if size <= FREE_BYTES:
            return FREE_BYTES
        with suppress(Exception), torch.no_grad():
            assert self.reference is not None
            device = self._build.device
            placed = [{name: each.to(device, copy=True) for name, each in of.items()} for of in (arguments, state)]
            return 2 * calls * sum(each.nbytes for each in self.reference(device)(*placed))
        # the reference refuses these numbers, or the problem is a declaration
        return max(UNKNOWN_BYTES, 16 * calls * sum(each.nbytes for each in arguments.values()))

    def chain(self, state: Tensors, stored: Tensors, varied: chain.Varied, key: int, count: int) -> TimedChain:
        """Has the solution run a chain of calls, up to one that raises. Raises KernelError if it does not answer."""
        self._demand()
        secret = secrets.randbits(63)
        sealed = {name: chain.sealed(value, secret) for name, value in stored.items()}
        of_stored = tuple(form_of(name, value) for name, value in stored.items())
        kinds = {name: tuple(names) for name, names in varied.items()}
        began, ended, text = math.nan, math.nan, ""

        def give(request: bytes | msgspec.Raw, most: int) -> Reply:
            nonlocal began
            began = began if began == began else time.perf_counter()
            return Reply(msgspec.Raw(msgspec.json.encode((secret, key))))

        def hear(last: str) -> None:
            nonlocal ended, text
            ended, text = time.perf_counter(), last

        most = functools.partial(self._honest_bytes, stored, state, count)
        with Loans(on=self.lends) as loans:
            forms, parts = announced((*state.items(), *sealed.items()), loans.add)
            asked = messages.Chained(secrets.randbits(50), forms, tuple(state), of_stored, kinds, count)
            own = {"kernel": give, "progress": hear}
            answer, results = self.process.ask(asked, parts, CHAIN * self._seconds, most, self._build.device, **own)
        if not ended > began or not re.fullmatch(r"-?[0-9]{1,19}", text):
            self.process.stop()
            raise KernelError(UNFORGEABLE)
        raised = f"{SAYS}{answer.raised[:MOST_WORDS]}" if answer.raised else ""
        each, rest = divmod(len(results), min(max(answer.answered, 1), count) if raised else count)
        if answer.lazy or rest:
            raise KernelError(f"it returned {answer.lazy or 'other results in each call'}")
        answers = [results[place : place + each] for place in range(0, len(results), each)] if each else []
        return TimedChain((ended - began) / count, answer.seconds, answers, int(text), raised)

    def _compare(self, state: Tensors, arguments: Tensors, results: Sequence[Tensor]) -> None:
        """Compares answers with earlier ones and with the arguments, and records what they share."""
        seen, number = self.observed, self.observed.calls
        inputs = tuple(self._mark(each) for each in (arguments or state).values())
        marks = tuple(map(self._mark, results))
        small = sum(each.nbytes for each in (*state.values(), *arguments.values())) <= KEPT_BYTES
        kept: list[Tensors] = [{name: each.cpu() for name, each in of.items()} for of in (arguments, state) if small]
        own = _Answered(number, inputs, kept)
        first = self._answers.setdefault(marks, own)
        # an honest solution may ignore what differs, if not every argument does
        differ = all(mine != theirs for mine, theirs in zip(inputs, first.inputs, strict=True))
        if differ and any(map(_tells, results)) and not self._agree(first, own):
            seen.replayed = f"call {number} was answered with the bits of call {first.number}, whose arguments differ"
        flat = [each.reshape(-1) for each in results if each.numel()]
        alike = {float(each[0]) if bool((each == each[0]).all()) else None for each in flat}
        kinds = [kind for kind in ("bfloat16", "float16") if _fits(results, getattr(torch, kind))]
        copied = [name for name, mark in zip(arguments, inputs, strict=False) if mark in marks[:1]]
        constant = repr(alike.pop()) if len(alike) == 1 and None not in alike else ""
        shown = {"copies": next(iter(copied), ""), "constant": constant, "narrow": next(iter(kinds), "")}
        for name, text in shown.items():  # all answers must show the same
            setattr(seen, name, text if number == 1 or getattr(seen, name) == text else "")
        unwritten = sum(map(_unwritten, results))
        seen.unwritten += unwritten
        seen.constant = "" if unwritten else seen.constant

    def _mark(self, tensor: Tensor) -> int:
        return chain.fingerprint(tensor, self._secret)

    def _agree(self, first: _Answered, second: _Answered) -> bool:
        """True if the reference answers both calls nearly alike, or most numbers of an argument are the same.

        The first are tiny arguments beside a bias, and constant ones.
        """
        if self.reference is None or not first.given or not second.given:
            return False
        pairs = [(a, second.given[0][name]) for name, a in first.given[0].items()]
        if any(a.shape == b.shape and a.numel() and float((a == b).double().mean()) > 0.5 for a, b in pairs):
            return True
        with suppress(Exception), torch.no_grad():
            call = self.reference("cpu")
            answers = zip(*(call(*each.given) for each in (first, second)), strict=True)
            return all(float((a - b).abs().max()) <= ALIKE * float(a.abs().max()) for a, b in answers)
        return False

    def lack(self, names: Sequence[str], numbers: int, *, by_seed: bool) -> None:
        """Records that the solution's module has no place for some parameters, or that a seed makes its weights."""
        here = sum(math.prod(form.shape) for form in self.state)
        self.observed.by_seed = by_seed
        if here < numbers:
            self.observed.dropped = f"no place for {', '.join(names)}: {here:,} of {numbers:,} numbers"
        self._save()

    def _save(self) -> None:
        write_atomically(self._notes, msgspec.json.encode(self.observed))


def judging_functions(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns the replaced functions with which a harness judges. Others are no evidence."""
    names = (name for text in texts for name in re.split(r"[\s,]+", text))
    return tuple(name for name in names if name in RULES["judges"]["names"] or name.startswith("verify."))


def _tells(result: Tensor) -> bool:
    """True if equal bits of two answers cannot be chance: finite numbers, of which many differ, more if all are whole.

    A wrong sum of six numbers can have the same bits for x and y in the other order, and one of ones for other ones.
    """
    fractions = result.is_floating_point() and bool((result != result.round()).any())
    most = TELLING if fractions else TELLING_WHOLE
    differ = (torch.unique(part).numel() > most for part in (result.reshape(-1)[:PROBED], result))
    return bool(torch.isfinite(result).all()) and any(differ)


def _fits(results: Sequence[Tensor], kind: torch.dtype) -> bool:
    """True if a 16-bit format holds all of the float32 numbers, which does not happen by chance."""
    finite = (each[torch.isfinite(each)] for each in results if each.dtype == torch.float32)
    wide = [each for each in finite if each.numel() > 16]
    return bool(wide) and all(bool(torch.equal(each.to(kind).to(each.dtype), each)) for each in wide)


def _unwritten(result: Tensor) -> int:
    if not result.is_floating_point() or not result.numel():
        return 0
    return int((raw(result) == int.from_bytes([NEVER_WRITTEN] * result.element_size(), signed=True)).sum())
