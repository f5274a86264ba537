"""Kernels in processes of their own, beside the worker that judges them.

Where the op is one of verify's own, the worker judges and never imports the target. A definition by like= stands
in the target's module: then a third process imports that and judges, and calls no kernel.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch

from verify import backends
from verify.backends import Backend
from verify.declare.declaration import Kernel
from verify.declare.discovery import load, reach
from verify.declare.requests import Describe, ListKernels
from verify.declare.target import Target
from verify.errors import JudgeFailed, KernelError, UsageError
from verify.measure import call
from verify.measure.autotuners import choose_by_key
from verify.measure.judge import demand_known_answers
from verify.measure.kernel import MOST_ENDED, measure_kernel
from verify.measure.remote_call import runner
from verify.measure.requests import CallKernel, ListSideEffects, Measure, Time
from verify.measure.state import State
from verify.records.record import RESULT_STATUSES, UNPROVEN, Gap, KernelRun, Printed, SideEffect
from verify.workers.calls import AskKernel, receive, send
from verify.workers.fork_server import Fork, ForkServer, flush
from verify.workers.phases import phase
from verify.workers.requests import (
    Died,
    KernelWanted,
    Late,
    OnProgress,
    Outcome,
    Replied,
    Reply,
    Who,
    demand_reply,
    kind_of,
)
from verify.workers.serving import serve, watch

SHARED_BY_LAWS = ("verify.laws.suite", "torch._dynamo", "torch.testing._internal.optests")  # a second of imports
CALLS = 4  # a call that takes a quarter of the time for a kernel hangs
LAST = 0.95  # of that time, after which its process is ended: what is late then is the judge
CHANGED = "it must leave the process as it was"


@dataclass(frozen=True)
class RequestHandler:
    """Reads and answers requests, in whatever process."""

    read: Callable[[bytes | msgspec.Raw], Any]
    answer: Callable[[Any, Backend, OnProgress], Any]


class ForkSetup(msgspec.Struct):
    """Tells a fork its backend and its role. Without a backend it selects one itself."""

    backend: dict[str, str] | None = None
    imports: tuple[str, ...] = ()
    judges: bool = False  # it judges, and another process calls the kernel


class KernelProcesses:
    """The targets of a worker, each in a fork of its own, which ends when another one is asked for.

    Forks do not get `connection`, that of the worker.
    """

    def __init__(
        self,
        requested: str | None,
        ready: Callable[[], Backend],
        handler: RequestHandler,
        connection: Connection | None = None,
    ) -> None:
        self._handler, self._ready, self._worker = handler, ready, connection
        torch.set_num_threads(1)
        compiles = _import_triton(requested)
        self._server = ForkServer(self._serve, _share, connection)
        # its context on the GPU is made while this process makes its own
        self._begun = self._server.fork(msgspec.json.encode(ForkSetup())) if compiles else None
        try:
            self.backend = ready()
        except Exception:
            self._end_server()
            raise
        if self.backend.forks:  # with all that the interpreter changes; nothing has initialised CUDA
            self._end_server()
            self._server = ForkServer(self._serve, _share, connection)
        self._targets: list[str] = []
        self._kernel: Fork | None = None
        self._listed = False  # the process has done no more than import the module of its targets
        self._tests = False  # the targets' modules make tests of the laws

    def answer(self, request: msgspec.Raw, progress: OnProgress) -> Any:
        """The reply to a request: of its target's process, or of this one where it has no target."""
        asked = self._handler.read(request)
        targets = targets_of(asked)
        if not targets:
            return self._handler.answer(asked, self.backend, progress)
        beside = list(asked.beside) if isinstance(asked, Time) else []
        kernel = self._process(beside or targets, laws=bool(getattr(asked, "law", "") or getattr(asked, "laws", "")))
        self._listed = self._listed and asked.lists
        said = not isinstance(asked, ListKernels)  # what a module prints is said with each of its kernels
        try:
            if isinstance(asked, Measure):
                return self._measure(asked, kernel, progress)
            reply = demand_reply(kernel.call(request, progress=progress)).value
            if beside and any(each.kind == "mode" for each in kernel.ask(ListSideEffects(targets[0]))):
                kernel.stop()  # the next ones are timed in a process that computes as PyTorch does by default
            return reply
        except Exception as error:
            said = not getattr(asked, "quiet", False)
            self._listed = self._listed and isinstance(error, UsageError)  # an answer: that kernel has none of it
            raise
        finally:
            if said and (printed := kernel.output.taken()):
                with contextlib.suppress(OSError):  # of a pipe that nobody reads any more
                    print(printed.text, end="", file=sys.stderr, flush=True)

    def _end_server(self) -> None:
        if self._begun is not None:  # one that outlives its parent ends its whole session
            self._begun.stop(at_once=True)
            self._begun = None
        self._server.stop()

    def _process(self, targets: list[str], *, laws: bool) -> Fork:
        shared = laws and self.backend.forks  # a new process has what laws import
        same = self._targets == targets or (self._listed and not shared and _files(self._targets) == _files(targets))
        if self._kernel is None or not self._kernel.alive or not same:
            if self._kernel is not None:
                self._kernel.stop()
            self._tests = any(map(_tests_laws, map(Target.parse, targets)))
            self._kernel, self._begun = self._begun or self._fork(laws=laws), None
            self._listed = True
        self._targets = targets
        return self._kernel

    def _fork(self, *, laws: bool = False, who: Who = "kernel") -> Fork:
        # some of what laws import asks for a GPU, after which no fork could use one
        imports = SHARED_BY_LAWS if laws else SHARED_BY_LAWS[:1] if self._tests else ()
        imports = imports if self.backend.forks else ()
        backend = {"name": self.backend.name, **asdict(self.backend)}
        setup = ForkSetup(backend, imports, who == "judge")
        return self._server.fork(msgspec.json.encode(setup), who)

    def stop(self) -> None:
        """Ends all processes."""
        if self._kernel is not None:
            self._kernel.stop(at_once=True)
        self._end_server()

    def _measure(self, request: Measure, kernel: Fork, progress: OnProgress) -> KernelRun:
        """Has a process without the kernel judge it, tries laws in the kernel's own, and adds side effects and output.

        A kernel that ends its process gets another one, MOST_ENDED in all.
        """
        until = time.monotonic() + request.seconds * LAST
        description = kernel.ask(Describe(request.target), deadline=until)  # imports the module
        alone = msgspec.structs.replace(request, laws="")
        said = list[Printed | None]()

        def replace_ended() -> bool:
            """False where the kernel has ended as many processes as it may."""
            nonlocal kernel
            if kernel.ended and len(said) < MOST_ENDED - 1:
                kernel.stop()
                said.append(kernel.output.taken())
                kernel = self._kernel = self._fork(laws=bool(request.laws))
            return not kernel.ended

        def call_kernel(asked: bytes | msgspec.Raw, most: int) -> Outcome:
            if not replace_ended():
                return Died("the process of the kernel has ended")
            return kernel.call(asked, most=most, deadline=min(time.monotonic() + request.seconds / CALLS, until))

        if description.own_op:
            declared = Kernel.of_description(description.kernel)
            run = runner(declared, request.target, self.backend.device, call_kernel)
            done = measure_kernel(declared, alone, self.backend, progress=progress, run=run)
        else:
            judge = self._fork(who="judge")
            try:
                done = judge.ask(alone, progress=progress, kernel=call_kernel)
            except Died as died:
                raise JudgeFailed(f"the judge died: {died}") from None
            finally:
                judge.stop()
        lives = replace_ended()
        if request.laws and lives and done.status in RESULT_STATUSES:
            try:
                of_laws = msgspec.structs.replace(request, accuracy=False)
                tried = kernel.ask(of_laws, progress=progress, deadline=until)
                done = msgspec.structs.replace(  # a kernel's own process adds nothing else to its record
                    done,
                    laws=[*done.laws, *tried.laws],
                    status=tried.status if tried.status == "wrong" else done.status,
                    seconds=round(done.seconds + tried.seconds, 3),
                    unrepeatable=done.unrepeatable or tried.unrepeatable,
                    gaps=[*done.gaps, *tried.gaps],
                )
            except (Died, KernelError) as error:
                failed = "crashed" if isinstance(error, Died) else "error"
                done = msgspec.structs.replace(done, status=failed, message=f"while laws were tried: {error}")
            except (Late, JudgeFailed) as error:  # kernel and judge share the process: either may be the cause
                gap = Gap("judge failed", f"{done.name}: the laws have no verdict: {error}", request.target)
                done = msgspec.structs.replace(done, gaps=[*done.gaps, gap])
        left = [] if kernel.ended else kernel.ask(ListSideEffects(request.target))
        breaks = "; ".join(each.text for each in left if each.breaks)
        if breaks and done.status in ("ok", *UNPROVEN):
            done = msgspec.structs.replace(done, status="error", message=f"{CHANGED}; it {breaks}")
        said.append(kernel.output.taken())
        printed = [each for each in said if each]
        return msgspec.structs.replace(
            done, left=left, printed=functools.reduce(Printed.plus, printed) if printed else None
        )

    def _serve(self, connection: Connection, given: bytes) -> None:
        """Runs a fork, which calls the kernels of one target, or judges their results."""
        faulthandler.enable(all_threads=False)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()
        setup = msgspec.json.decode(given, type=ForkSetup)
        if setup.backend is None:
            backend = self._ready()
            with phase("kernel: begin on the GPU"):
                torch.zeros(1, device=backend.device)
        else:
            backend = backends.named(setup.backend.pop("name"))(**setup.backend)
            backends.activate(backend)
        subject = _Subject(self._handler, backend, call_over(connection) if setup.judges else None)
        serve(connection, subject.answer, backend.usable, flush)


def call_over(connection: Connection) -> AskKernel:
    """Returns a function that asks the process at the other end to call the kernel."""

    def call(request: bytes | msgspec.Raw, most: int) -> Outcome:
        send(connection, KernelWanted(msgspec.Raw(request), most))
        event, parts = receive(connection, most)
        return Reply(event.reply, parts) if isinstance(event, Replied) else event.failure  # type: ignore[union-attr]

    return call


class _Subject:
    """The target of a fork, and what its module and its kernels left."""

    def __init__(self, handler: RequestHandler, backend: Backend, kernel: AskKernel | None) -> None:
        self._handler, self._backend, self._kernel = handler, backend, kernel
        self._began: State | None = None
        self._imported: list[SideEffect] = []

    def answer(self, request: msgspec.Raw, progress: OnProgress) -> Any:
        """The reply to a request about the target."""
        asked = self._handler.read(request)
        if self._began is None:
            with phase("kernel: import its module"):
                self._began = self._load([Target.parse(each) for each in targets_of(asked)])
        if isinstance(asked, ListSideEffects):
            return self._left()
        judges = not isinstance(asked, ListKernels | Describe | CallKernel)  # else nobody does, or another process
        if judges:
            self._demand_judges()
        with phase(f"kernel: {kind_of(asked)} of {', '.join(targets_of(asked)[:1])}"):
            if self._kernel is not None and isinstance(asked, Measure):
                (kernel,) = load(Target.parse(asked.target))
                run = runner(kernel, asked.target, self._backend.device, self._kernel)
                reply: Any = measure_kernel(kernel, asked, self._backend, progress=progress, run=run)
            else:
                reply = self._handler.answer(asked, self._backend, progress)
        if judges:
            self._demand_judges()
        return reply

    def _load(self, targets: Sequence[Target]) -> State:
        for target in targets:
            reach(target)
        before = State.now()
        for target in targets:
            load(target)
        began = State.now()
        self._imported = before.left("import", began)
        if (device := torch.get_default_device()) != torch.device("cpu"):  # of the kernel's calls, not of verify's
            torch.set_default_device(None)
            call.device_of_module, began = device, State.now()
        return began

    def _left(self) -> list[SideEffect]:
        return [*self._imported, *(self._began.left("call") if self._began else ())]

    def _demand_judges(self) -> None:
        """A verdict of this process is worth nothing once something that decides it was replaced or left changed."""
        left = self._left()
        if replaced := [each.text for each in left if each.kind == "judge"]:
            raise KernelError(f"{CHANGED}; it {'; '.join(replaced)}")
        try:
            with phase("kernel: known answers"):
                demand_known_answers(self._backend.device)
        except Exception as error:
            changed = "; ".join(each.text for each in left if each.breaks)
            raise KernelError(f"{CHANGED}; it {changed}" if changed else str(error)) from None


def _files(targets: Sequence[str]) -> set[str]:
    return {Target.parse(each).source for each in targets}


def targets_of(asked: Any) -> list[str]:
    """The targets whose modules a request needs."""
    target = getattr(getattr(asked, "space", asked), "target", "")
    return list(getattr(asked, "targets", [target] if target else []))


def _import_triton(requested: str | None) -> bool:
    """Whether Triton compiles here: then it is imported once for all forks; to interpret it has to be told before."""
    with contextlib.suppress(Exception):
        # asks the driver's library, not the driver: nothing of CUDA is initialised
        if backends.may_compile(requested) and torch.cuda._device_count_nvml() > 0:
            with phase("worker: import triton"):
                choose_by_key()
            return True
    return False


def _tests_laws(target: Target) -> bool:
    """Whether a file calls `verify.laws_for`, which imports Hypothesis and pytest: 0.3 s in each of its processes."""
    with contextlib.suppress(OSError):
        return target.file is not None and b"laws_for" in target.file.read_bytes()
    return False


def _share(given: bytes) -> None:
    for name in msgspec.json.decode(given, type=ForkSetup).imports:
        importlib.import_module(name)
