"""Kernels in processes of their own, beside the worker that judges them.

Where the op is one of verify's own, the worker judges and never imports the target. An op that a user defines stands
in the target's module: then a third process imports that and judges, and calls no kernel.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import torch

from verify import backends
from verify.backends import Backend
from verify.declare.declaration import Kernel
from verify.declare.discovery import load, reach
from verify.declare.requests import Describe, ListKernels
from verify.declare.target import Target
from verify.errors import KernelError
from verify.measure.elsewhere import runner
from verify.measure.judge import demand_known_answers
from verify.measure.kernel import measure_kernel
from verify.measure.requests import CallKernel, Leaves, Measure
from verify.measure.state import State
from verify.records.record import KernelRun, Left
from verify.workers.forks import GONE, Channel, Fork, ForkServer, flush
from verify.workers.process import OnProgress
from verify.workers.requests import Event, WorkerDied
from verify.workers.serving import serve, watch

SHARED_BY_LAWS = ("verify.laws.suite", "torch._dynamo", "torch.testing._internal.optests")  # a second of imports
CHANGED = "it must leave the process as it was"


@dataclass(frozen=True)
class Answering:
    """How requests are answered in whatever process: read, done, and whether the process can go on afterwards."""

    read: Callable[[bytes | msgspec.Raw], Any]
    answer: Callable[[Any, Backend, OnProgress], Any]
    usable: Callable[[Backend], bool]


class _Given(msgspec.Struct):
    """What a fork is told."""

    backend: dict[str, str]
    imports: tuple[str, ...]


class Kernels:
    """The targets of a worker, each in a fork of its own, which ends when another one is asked for."""

    def __init__(self, requested: str | None, ready: Callable[[], Backend], answering: Answering, pipe: int) -> None:
        self._answering = answering
        torch.set_num_threads(1)
        _import_triton(requested)
        self._server = ForkServer(self._serve, _share, closed=[pipe])
        try:
            self.backend = ready()
        except Exception:
            self._server.stop()
            raise
        if self.backend.name != "cuda":  # with all that the interpreter changes; nothing has initialised CUDA
            self._server.stop()
            self._server = ForkServer(self._serve, _share, closed=[pipe])
        self._targets: list[str] = []
        self._kernel: Fork | None = None

    def answer(self, request: msgspec.Raw, progress: OnProgress) -> Any:
        """The reply to a request: of its target's process, or of this one where it has no target."""
        asked = self._answering.read(request)
        targets = targets_of(asked)
        if not targets:
            return self._answering.answer(asked, self.backend, progress)
        kernel = self._process(targets, laws=bool(getattr(asked, "law", "") or getattr(asked, "laws", "")))
        said = not isinstance(asked, ListKernels)  # what a module prints is said with each of its kernels
        try:
            if isinstance(asked, Measure):
                return self._measure(asked, kernel, progress)
            return kernel.exchange(request, progress=progress)[0]
        except Exception:
            said = True
            raise
        finally:
            printed = kernel.printed()
            if said and printed:
                with contextlib.suppress(OSError):  # of a pipe that nobody reads any more
                    print(printed.text, end="", file=sys.stderr, flush=True)

    def _process(self, targets: list[str], *, laws: bool) -> Fork:
        if self._kernel is None or not self._kernel.alive or self._targets != targets:
            if self._kernel is not None:
                self._kernel.stop()
            self._targets, self._kernel = targets, self._fork(laws=laws)
        return self._kernel

    def _fork(self, *, laws: bool = False, kernel: Fork | None = None) -> Fork:
        # some of what laws import asks for a GPU, after which no fork could use one
        imports = SHARED_BY_LAWS if laws and self.backend.name != "cuda" else ()
        given = msgspec.json.encode(_Given(asdict(self.backend), imports))
        return self._server.fork(given, None if kernel is None else kernel.channel)

    def _measure(self, request: Measure, kernel: Fork, progress: OnProgress) -> KernelRun:
        """What this process judges, then the laws tried in the kernel's own, then what it left and printed."""
        description = kernel.ask(Describe(request.target))
        alone = msgspec.structs.replace(request, laws="")
        if description.own_op:
            done = measured(Kernel.of_description(description.kernel), alone, self.backend, progress, kernel)
        else:
            judge = self._fork(kernel=kernel)
            try:
                done = judge.ask(alone, progress=progress, beside=kernel)
            finally:
                judge.stop()
        if done.status == "crashed":
            done = msgspec.structs.replace(done, message=done.message.replace(GONE, str(kernel.died())))
        elif request.laws and done.status in ("ok", "wrong"):
            try:
                tried = kernel.ask(msgspec.structs.replace(request, accuracy=False), progress=progress)
                status = tried.status if tried.status == "wrong" else done.status
                seconds = round(done.seconds + tried.seconds, 3)
                differs = done.unrepeatable or tried.unrepeatable
                done = msgspec.structs.replace(
                    done, laws=tried.laws, status=status, seconds=seconds, unrepeatable=differs
                )
            except (WorkerDied, KernelError) as error:
                failed = "crashed" if isinstance(error, WorkerDied) else "error"
                done = msgspec.structs.replace(done, status=failed, message=f"while laws were tried: {error}")
        left = kernel.ask(Leaves(request.target)) if kernel.alive else []
        breaks = "; ".join(each.text for each in left if each.breaks)
        if breaks and done.status == "ok":
            done = msgspec.structs.replace(done, status="error", message=f"{CHANGED}; it {breaks}")
        return msgspec.structs.replace(done, left=left, printed=kernel.printed())

    def _serve(self, channel: Channel, other: Channel | None, given: bytes) -> None:
        """Be a fork: call the kernels of one target or, with `other`, judge what comes from there."""
        faulthandler.enable(all_threads=False)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()
        backend = Backend(**msgspec.json.decode(given, type=_Given).backend)
        backends.activate(backend)
        subject = _Subject(self._answering, backend, None if other is None else Fork(other))

        def emit(event: Event, beside: Sequence[memoryview] = ()) -> None:
            flush()
            channel.send(msgspec.json.encode(event), beside)

        while (message := channel.receive()) is not None:
            serve(message[0], emit, subject.answer, lambda: self._answering.usable(backend))


class _Subject:
    """The target of a fork, and what its module and its kernels left."""

    def __init__(self, answering: Answering, backend: Backend, kernel: Fork | None) -> None:
        self._answering, self._backend, self._kernel = answering, backend, kernel
        self._began: State | None = None
        self._imported: list[Left] = []

    def answer(self, request: msgspec.Raw, progress: OnProgress) -> Any:
        """The reply to a request about the target."""
        asked = self._answering.read(request)
        if self._began is None:
            self._began = self._load([Target.parse(each) for each in targets_of(asked)])
        if isinstance(asked, Leaves):
            return self._left()
        judges = not isinstance(asked, ListKernels | Describe | CallKernel)  # else nobody does, or another process
        if judges:
            self._demand_judges()
        if self._kernel is not None and isinstance(asked, Measure):
            (kernel,) = load(Target.parse(asked.target))
            reply: Any = measured(kernel, asked, self._backend, progress, self._kernel)
        else:
            reply = self._answering.answer(asked, self._backend, progress)
        if judges:
            self._demand_judges()
        return reply

    def _load(self, targets: Sequence[Target]) -> State:
        for target in targets:
            reach(target)
        before = State.now()
        for target in targets:
            load(target)
        self._imported = before.left("import")
        return State.now()

    def _left(self) -> list[Left]:
        return [*self._imported, *(self._began.left("call") if self._began else ())]

    def _demand_judges(self) -> None:
        """A verdict of this process is worth nothing once something that decides it was replaced or left changed."""
        left = self._left()
        if replaced := [each.text for each in left if each.kind == "judge"]:
            raise KernelError(f"{CHANGED}; it {'; '.join(replaced)}")
        try:
            demand_known_answers(self._backend.device)
        except Exception as error:
            changed = "; ".join(each.text for each in left if each.breaks)
            raise KernelError(f"{CHANGED}; it {changed}" if changed else str(error)) from None


def targets_of(asked: Any) -> list[str]:
    """The targets whose modules a request needs."""
    target = getattr(getattr(asked, "space", asked), "target", "")
    return list(getattr(asked, "targets", [target] if target else []))


def measured(
    kernel: Kernel, request: Measure, backend: Backend, progress: OnProgress, process: Fork | None = None
) -> KernelRun:
    """The judged kernel, called here or in its own process."""
    return measure_kernel(
        kernel,
        request.target,
        backend,
        seed=request.seed,
        dtypes=request.dtypes,
        accuracy=request.accuracy,
        cases_of=request.plan,
        progress=progress,
        run=None if process is None else runner(kernel, request.target, backend.device, process.exchange),
    )


def _import_triton(requested: str | None) -> None:
    """Where Triton compiles, once for all forks; where it interprets, it has to be told before."""
    with contextlib.suppress(Exception):
        # asks the driver's library, not the driver: nothing of CUDA is initialised
        if requested != "interpreter" and "TRITON_INTERPRET" not in os.environ and torch.cuda._device_count_nvml() > 0:
            importlib.import_module("triton")


def _share(given: bytes) -> None:
    for name in msgspec.json.decode(given, type=_Given).imports:
        importlib.import_module(name)
