"""Calls a solution in a separate process, and records its behaviour. This process never imports the solution.

The process of a solution starts as a copy of this one before the problem was imported. It gets the arguments of each
call as bits and answers with bits. Only its answers are judged; its other behaviour does not reach the verdict.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from verify.errors import KernelError, Refused
from verify.records.files import write_atomically
from verify.referee.messages import (
    KEY_BYTES,
    MOST,
    PIECE,
    Answer,
    Asked,
    Build,
    Built,
    Call,
    Chained,
    Form,
    Tensors,
    bytes_of,
    form_of,
    send,
    tensor_of,
)
from verify.referee.plan import Observed
from verify.referee.sandbox import NEVER_WRITTEN, PROCESSES
from verify.workers import process_tree

EXTRA = 3  # each judged call has fewer additional calls than this
LARGE_BYTES = 1 << 24  # of arguments; three of four such calls have no additional call
LOOK_SECONDS = 0.1
SLOW = 2.4  # factor of the time limit for the first call, which compiles
SCRATCH_BYTES = 1 << 30
ALIKE = 2.0**-6  # answers of the reference that are no further apart, in parts of the largest number
TELLING = 8  # equal answers of so few different numbers may be chance
KEPT_BYTES = 1 << 20  # of the tensors of a call that are kept
HEAD = 1 << 20  # bytes of an answer without its tensors
UNFORGEABLE = "it wrote into the connection of its own process: what arrived is no answer to the call"


class SolutionProcess:
    """Starts the process of a solution. It is idle until the first request, which imports the solution."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # no fork could use the GPU
                code = (
                    "from verify.referee import runner; runner.main(runner.Connection(int(__import__('sys').argv[1])))"
                )
                paths = os.pathsep.join(path for path in sys.path if path)
                self.pid = subprocess.Popen(
                    [sys.executable, "-c", code, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                ).pid
            else:
                from verify.referee import runner  # imported before the fork

                process_tree.adopt_orphans()
                sys.stdout.flush()
                sys.stderr.flush()
                self.pid = os.fork()
                if not self.pid:
                    runner.main(theirs)
        self._folders: tuple[str, ...] = ()
        self.first: threading.Thread | None = None  # waits for the first answers, while this process does other work

    def ask(self, request: Asked, tensors: Sequence[Tensor], seconds: float) -> list[bytes]:
        """Returns the messages of the answer. Raises KernelError with the reason if there is none."""
        if isinstance(request, Build):
            self._folders = request.folder, request.extensions
        with self._answering():
            sender = threading.Thread(target=self._send, args=(request, tensors), daemon=True)
            sender.start()
            return self._received(seconds)

    def time_chain(self, key: int, seconds: float) -> tuple[float, bytes, list[bytes]]:
        """Sends the key of a chain that is ready. Returns the seconds until the last key came, this key, the answer."""
        with self._answering():
            began = time.perf_counter()
            self._connection.send_bytes(key.to_bytes(KEY_BYTES))
            self._wait(time.monotonic() + seconds, seconds)
            last = self._connection.recv_bytes(KEY_BYTES)
            return time.perf_counter() - began, last, self._received(seconds)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Raises KernelError with the reason if the process gives no answer."""
        try:
            yield
        except (EOFError, ConnectionError):
            raise KernelError(f"its process {self._ended()}") from None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            self.stop()
            raise KernelError(UNFORGEABLE) from None

    def _received(self, seconds: float) -> list[bytes]:
        deadline = time.monotonic() + seconds
        self._wait(deadline, seconds)
        found, most = [self._connection.recv_bytes(HEAD)], MOST
        for _ in msgspec.json.decode(found[0], type=_Counted).tensors:
            self._wait(deadline, seconds)
            found.append(self._connection.recv_bytes(most))
            most -= len(found[-1])
        return found

    def _send(self, request: Asked, tensors: Sequence[Tensor]) -> None:
        with suppress(OSError):  # the wait for the answer reports it
            send(self._connection, request, tensors, most=PIECE)

    def _wait(self, deadline: float, seconds: float) -> None:
        while not self._connection.poll(LOOK_SECONDS):
            reason = f"gave no answer within {seconds:g} s" if time.monotonic() > deadline else self._exceeds()
            if reason:
                self.stop()
                raise KernelError(f"its process {reason}; stopped")

    def _exceeds(self) -> str:
        """Returns the exceeded limit among those that the kernel of this machine does not enforce; "" if none."""
        if len(process_tree.living({self.pid}, "")) > PROCESSES:
            return f"started more than {PROCESSES} processes"
        used = 0
        for path, _, names in itertools.chain.from_iterable(map(os.walk, self._folders)):
            for name in names:
                with suppress(OSError):
                    used += os.lstat(os.path.join(path, name)).st_blocks * 512
        return f"wrote more than {SCRATCH_BYTES >> 20} MiB of files" if used > SCRATCH_BYTES else ""

    def _ended(self) -> str:
        until, mine = time.monotonic() + process_tree.END_SECONDS, self.pid
        while mine and time.monotonic() < until:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(mine, os.WNOHANG)
                if pid:
                    self.pid = 0
                    code = os.waitstatus_to_exitcode(status)
                    self.stop()
                    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            time.sleep(0.005)
        self.stop()
        return "closed its connection and went on"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the process and everything that it started for a while: its threads would slow the reference."""
        theirs = set[int]()
        while self.pid and (more := process_tree.living({self.pid}, "") - theirs):  # it may have forked meanwhile
            _signal(more, signal.SIGSTOP)
            theirs |= more
        try:
            yield
        finally:
            _signal(theirs, signal.SIGCONT)

    def stop(self) -> None:
        """Ends the process and everything that it started."""
        pid, self.pid = self.pid, 0  # another thread may end it too, and 0 would be this process's own group
        if pid:
            process_tree.kill(pid, "")
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        _signal(process_tree.living({os.getpid()}, ""), signal.SIGKILL)
        self._connection.close()


def _signal(pids: Iterable[int], kind: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, kind)


class _Counted(msgspec.Struct):
    """The part of an answer that says how many tensors follow."""

    tensors: tuple[Form, ...] = ()


@dataclass(frozen=True)
class TimedChain:
    """A chain of calls: seconds of one call by the judge's clock and by that of the solution, answers, the last key."""

    seconds: float
    own_seconds: float
    answers: list[list[Tensor]]
    last: int


@dataclass(frozen=True)
class _Answered:
    """A call that was answered: its number, a digest of its tensors, and these (arguments, state) if they are small."""

    number: int
    inputs: bytes
    given: tuple[Tensors, Tensors] | None


class Host:
    """Holds a solution, the observations of its calls, and the file that passes these to the parent."""

    def __init__(
        self, process: SolutionProcess, build: Build, notes: Path, seconds: float, build_seconds: float
    ) -> None:
        self._process, self._build, self._notes = process, build, notes
        self._seconds, self._build_seconds = seconds, build_seconds
        self.observed = Observed()
        self.state: tuple[Form, ...] = ()
        self._built = False
        self._random = random.Random(secrets.randbits(64))
        self.reference: Callable[[str], Callable[..., list[Tensor]]] | None = None  # by device
        self._answers: dict[bytes, _Answered] = {}  # by digests of results

    def begin(self, first: Callable[[], None]) -> None:
        """Runs `first` in a thread. Its requests come before all others."""
        self._process.first = threading.Thread(target=first, daemon=True)
        self._process.first.start()

    def build(self, tensors: Sequence[Tensor]) -> None:
        """Makes the process import the solution. Raises KernelError if that fails."""
        if (first := self._process.first) is not None and first is not threading.current_thread():
            first.join()
        self._demand()
        if self._built:
            return
        try:
            (answer,) = self._process.ask(self._build, tensors, self._build_seconds)
            try:
                built = msgspec.json.decode(answer, type=Built)
            except msgspec.ValidationError:
                raise KernelError(msgspec.json.decode(answer, type=Answer).raised or UNFORGEABLE) from None
        except (KernelError, msgspec.DecodeError) as error:
            self.observed.failed = f"it could not be built: {error}"
            self._save()
            raise KernelError(self.observed.failed) from None
        self._built = True
        self.state = built.state
        self.observed.holds, self.observed.lacks = built.holds, built.lacks
        self._save()

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
        forms = tuple(form_of(name, value) for name, value in given.items())
        again, watched = self._random.random() < 0.5, seen.calls % 8 == 2
        request = Call(secrets.randbits(50), forms, tuple(state), again, watched)  # a solution cannot guess the number
        tensors = list(given.values())
        try:
            answer, results = self._answer(request, tensors)
        except KernelError as error:
            if str(error) == UNFORGEABLE:
                seen.forged = UNFORGEABLE
            seen.failed = str(error)
            self._save()
            raise
        seen.late |= answer.late
        seen.changed = tuple(dict.fromkeys((*seen.changed, *answer.changed)))
        seen.lazy = seen.lazy or answer.lazy
        if answer.raised or answer.lazy:
            self._save()
            raise Refused(answer.raised) if answer.raised else KernelError(f"it returned {answer.lazy}")
        self._compare(state, arguments, results)
        seen.functions, seen.modes = answer.functions or seen.functions, answer.modes or seen.modes
        seen.replaced = answer.replaced or seen.replaced
        self._save()
        return results

    def _answer(self, request: Call, tensors: Sequence[Tensor]) -> tuple[Answer, list[Tensor]]:
        seconds = self._seconds * (SLOW if self.observed.calls == 1 else 1)
        return self._read(request.number, self._process.ask(request, tensors, seconds))

    def _read(self, number: int, messages: Sequence[bytes]) -> tuple[Answer, list[Tensor]]:
        head, *parts = messages
        try:
            answer = msgspec.json.decode(head, type=Answer)
            if answer.number != number:
                raise ValueError("an answer to another call")
            return answer, [tensor_of(form, part) for form, part in zip(answer.tensors, parts, strict=True)]
        except (msgspec.DecodeError, ValueError, KeyError, RuntimeError):
            self._process.stop()
            raise KernelError(UNFORGEABLE) from None

    def paused(self) -> AbstractContextManager[None]:
        """Stops the solution for a while."""
        return self._process.paused()

    def chain(self, state: Tensors, stored: Tensors, varied: Sequence[str], key: int, count: int) -> TimedChain:
        """Has the solution run a chain of calls. Raises KernelError unless it answers each of them."""
        self._demand()
        forms = tuple(form_of(name, value) for name, value in (*state.items(), *stored.items()))
        asked = Chained(secrets.randbits(50), forms, tuple(state), tuple(varied), count)
        ready, _ = self._read(
            asked.number, self._process.ask(asked, (*state.values(), *stored.values()), self._seconds)
        )
        if ready.raised:
            raise KernelError(ready.raised)
        seconds, last, messages = self._process.time_chain(key, self._seconds)
        answer, results = self._read(asked.number, messages)
        if answer.raised or answer.lazy or len(results) % count:
            raise KernelError(answer.raised or f"it returned {answer.lazy or 'other results in each call'}")
        each = len(results) // count
        answers = [results[place : place + each] for place in range(0, len(results), each)] if each else []
        return TimedChain(seconds / count, answer.seconds, answers, int.from_bytes(last, signed=True))

    def _compare(self, state: Tensors, arguments: Tensors, results: Sequence[Tensor]) -> None:
        """Compares answers with earlier ones and with the arguments, and records what they share."""
        seen, number = self.observed, self.observed.calls
        inputs = _digest((*state.values(), *arguments.values()))
        small = sum(each.nbytes for each in (*state.values(), *arguments.values())) <= KEPT_BYTES
        own = _Answered(number, inputs, (_on_host(arguments), _on_host(state)) if small else None)
        first = self._answers.setdefault(_digest(results), own)
        if first.inputs != inputs and any(map(_tells, results)) and not self._agree(first, own):
            seen.replayed = f"call {number} was answered with the bits of call {first.number}, whose arguments differ"
        same = [name for name, value in arguments.items() if results and bytes_of(value) == bytes_of(results[0])]
        alike = {
            float(each.reshape(-1)[0]) if bool((each == each.reshape(-1)[0]).all()) else None
            for each in results
            if each.numel()
        }
        constant = repr(alike.pop()) if len(alike) == 1 and None not in alike else ""
        narrow = next((kind for kind in ("bfloat16", "float16") if _fits(results, getattr(torch, kind))), "")
        if number == 1:
            seen.copies, seen.constant, seen.narrow = same[0] if same else "", constant, narrow
        seen.copies = seen.copies if seen.copies in same else ""
        seen.constant = seen.constant if seen.constant == constant else ""
        seen.narrow = seen.narrow if seen.narrow == narrow else ""
        unwritten = sum(map(_unwritten, results))
        seen.unwritten += unwritten
        seen.constant = "" if unwritten else seen.constant

    def _agree(self, first: _Answered, second: _Answered) -> bool:
        """True if the reference answers both calls nearly alike: tiny arguments beside a bias, constant ones."""
        if self.reference is None or first.given is None or second.given is None:
            return False
        with suppress(Exception), torch.no_grad():
            call = self.reference("cpu")
            pairs = zip(*(call(*each.given) for each in (first, second)), strict=True)  # type: ignore[misc]
            return all(float((a - b).abs().max()) <= ALIKE * float(a.abs().max()) for a, b in pairs)
        return False

    def lack(self, names: Sequence[str], numbers: int) -> None:
        """Records that the solution's module has no place for some parameters."""
        self.observed.dropped = tuple(names)
        self.observed.places = sum(math.prod(form.shape) for form in self.state), numbers
        self._save()

    def _save(self) -> None:
        write_atomically(self._notes, msgspec.json.encode(self.observed))


def _on_host(tensors: Tensors) -> Tensors:
    return {name: each.cpu() for name, each in tensors.items()}


def _digest(tensors: Sequence[Tensor]) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(bytes_of(each)).digest() for each in tensors)).digest()


def _tells(result: Tensor) -> bool:
    """True if equal bits of two answers cannot be chance: finite numbers, of which many differ.

    A wrong sum of six numbers can have the same bits for x and y in the other order.
    """
    return bool(torch.isfinite(result).all()) and torch.unique(result).numel() > TELLING


def _fits(results: Sequence[Tensor], kind: torch.dtype) -> bool:
    """True if a 16-bit format holds all of the float32 numbers, which does not happen by chance."""
    wide = [each for each in results if each.dtype == torch.float32 and each.numel() > 16]
    return bool(wide) and all(bool(torch.equal(each.to(kind).to(each.dtype), each)) for each in wide)


def _unwritten(result: Tensor) -> int:
    raw = result.contiguous().reshape(-1)
    if not result.is_floating_point() or not raw.numel():
        return 0
    size = result.element_size()
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return int((raw.view(kind) == int.from_bytes([NEVER_WRITTEN] * size, signed=True)).sum())
