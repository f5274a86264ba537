"""Runs kernels in processes of their own. The worker process judges their results.

If the op is one that `verify` ships, the worker judges and never imports the target. A definition by like= is part of
the target's module. A third process then imports that module and judges. It does not call the kernel.
"""

import contextlib
import faulthandler
import functools
import importlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import torch

from verify import backends
from verify.declare import promises
from verify.declare.declaration import Kernel
from verify.declare.discovery import load, reach
from verify.declare.requests import Describe, Forget, ListKernels
from verify.declare.target import Target
from verify.errors import InternalError, JudgeFailed, KernelError, UsageError
from verify.measure import call
from verify.measure.autotuners import choose_by_key
from verify.measure.case_runner import MOST_ENDED
from verify.measure.judge import demand_known_answers
from verify.measure.kernel import measure_kernel
from verify.measure.remote_call import RemoteKernel
from verify.measure.requests import CallKernel, ListSideEffects, Measure, Time
from verify.measure.state import ProcessState
from verify.ops.graph import decompositions
from verify.records.record import RESULT_STATUSES, UNPROVEN, Gap, KernelRun, Printed, SideEffect
from verify.workers.calls import FOREIGN, BeginKernel, outcome_of, receive, send, serve, watch
from verify.workers.channel import Channel
from verify.workers.fork_server import Fork, ForkServer, flush
from verify.workers.phases import phase
from verify.workers.requests import Died, KernelWanted, Late, OnProgress, Outcome, Who, demand_reply, kind_of

# importing these takes about a second
SHARED_BY_LAWS = ("verify.laws.suite", "torch._dynamo", "torch.testing._internal.optests")
_SUITE = rb"\blaws_for\b"  # such a file imports the laws: 0.4 s, else in each fork
_DEFINITION = rb"\blike\s*="  # kernels of a file with such an op need a judge that imports it
CALLS = 4  # a call counts as hung after the kernel's time divided by this
FIRST = 2  # the same of the first call in a process: it may import packages, or compile
# The share of the kernel's time after which its process is ended. If the worker is still late then, the judge is to
# blame.
LAST = 0.95
LEAST = 5.0  # seconds: laws that have less are not begun, because a loaded machine takes that long for the first calls
CHANGED = "it must leave the process as it was"


@dataclass(frozen=True)
class RequestHandler:
    """Reads and answers requests. Every process of the worker uses the same one."""

    read: Callable[[bytes | msgspec.Raw], Any]
    answer: Callable[[Any, backends.Backend, OnProgress], Any]


class ForkSetup(msgspec.Struct):
    """Holds the backend and the role of a new fork. Without a backend, the fork selects one itself."""

    backend: dict[str, str] | None = None
    imports: tuple[str, ...] = ()
    judges: bool = False  # True: the fork judges, and another process calls the kernel
    traces: bool = False  # True: the target has a definition by `like=`


class KernelProcesses:
    """Holds a fork for the current target of a worker.

    A request about another target ends that fork and starts a new one. Forks close their copy of `channel`, the
    worker's own.
    """

    def __init__(
        self,
        requested: str | None,
        ready: Callable[[], backends.Backend],
        handler: RequestHandler,
        channel: Channel | None = None,
    ) -> None:
        self._handler, self._ready = handler, ready
        torch.set_num_threads(1)
        compiles = _import_triton(requested)
        self._server = ForkServer(self._serve, _share, channel)
        # The fork for the first target creates its GPU context while this process creates its own.
        self._first = self._server.fork(msgspec.json.encode(ForkSetup())) if compiles else None
        try:
            self.backend = ready()
        except Exception:
            self._end_server()
            raise
        if self.backend.forks:  # forks must inherit the interpreter's changes; CUDA is not initialised here
            self._end_server()
            self._server = ForkServer(self._serve, _share, channel)
        self._targets: list[str] = []
        self._kernel: Fork | None = None
        self._judge: Fork | None = None  # begins on the GPU while the targets are listed
        self._ending: list[Fork] = []  # told to end
        self._listed = False  # True: the process has only imported the module of its targets
        self._traces = False  # True: the targets have a definition by `like=`

    def answer(self, request: msgspec.Raw, progress: OnProgress) -> Any:
        """Returns the reply to a request.

        The target's process answers it, or this process if the request has no target.
        """
        asked = self._handler.read(request)
        targets = targets_of(asked)
        if isinstance(asked, Forget) and self._kernel is not None:
            self._kernel.stop()
            self._kernel = None
        if not targets:
            return self._handler.answer(asked, self.backend, progress)
        beside = list(asked.beside) if isinstance(asked, Time) else []
        kernel = self._process(beside or targets, laws=bool(getattr(asked, "law", "") or getattr(asked, "laws", "")))
        self._listed = self._listed and asked.lists
        if not isinstance(asked, ListKernels):
            if not isinstance(asked, Measure):
                self._end_judge()
            self._await_ended()
        # the output of a module is printed with each of its kernels, not when they are listed
        said = not isinstance(asked, ListKernels)
        try:
            if isinstance(asked, Measure):
                return self._measure(asked, kernel, progress)
            reply = demand_reply(kernel.call(request, progress=progress)).value
            if beside and any(each.kind == "mode" for each in kernel.ask(ListSideEffects(targets[0]))):
                kernel.stop()  # the next kernels are timed in a process with PyTorch's default settings
            return reply
        except Exception as error:
            said = True
            # a usage error is an answer: this kernel lacks the request's subject
            self._listed = self._listed and isinstance(error, UsageError)
            raise
        finally:
            if said and (printed := kernel.output.taken()):
                with contextlib.suppress(OSError):  # the reader of the pipe has closed it
                    print(printed.text, end="", file=sys.stderr, flush=True)

    def _end_server(self) -> None:
        if self._first is not None:  # a fork that outlives its parent ends its whole session
            self._first.stop(at_once=True)
            self._first = None
        self._server.stop()

    def _process(self, targets: list[str], *, laws: bool) -> Fork:
        """Returns the process of these targets: the current one if it fits, else a new fork."""
        shared = laws and self.backend.forks  # a new process has already imported the modules of the laws
        before, files = ({Target.parse(each).source for each in some} for some in (self._targets, targets))
        same = self._targets == targets or (self._listed and not shared and before == files)
        if self._kernel is None or not self._kernel.alive or not same:
            self._end_soon(self._kernel, self._judge)
            self._traces = _have(_DEFINITION, targets)
            first, self._first = self._first, None
            if first is not None and first.ended:
                first.stop()
                first = None
            self._kernel = first or self._fork(laws=laws, suites=_have(_SUITE, targets))
            self._judge = self._fork(who="judge") if self._traces and not self.backend.forks else None
            self._listed = True
        self._targets = targets
        return self._kernel

    def _end_soon(self, *forks: Fork | None) -> None:
        """Tells processes to end. The next request that is no listing waits for that, as their memory may be needed."""
        self._await_ended(but=2)
        for fork in forks:
            if fork is not None and fork.alive:
                fork.begin_stop()
                self._ending.append(fork)

    def _end_judge(self) -> None:
        self._end_soon(self._judge)
        self._judge = None

    def _await_ended(self, but: int = 0) -> None:
        while len(self._ending) > but:
            self._ending.pop(0).stop()

    def _fork(self, *, laws: bool = False, suites: bool = False, who: Who = "kernel") -> Fork:
        """Starts a fork with this backend, for a kernel or for a judge."""
        # some modules of the laws initialise the GPU; no later fork could use it
        imports = SHARED_BY_LAWS[: None if laws else 1] if (laws or suites) and self.backend.forks else ()
        backend = {"name": self.backend.name, **asdict(self.backend)}
        setup = ForkSetup(backend, imports, who == "judge", self._traces)
        return self._server.fork(msgspec.json.encode(setup), who)

    def stop(self) -> None:
        """Ends all processes."""
        if self._kernel is not None:
            self._kernel.stop(at_once=True)
        self._end_judge()
        self._await_ended()
        self._end_server()

    def _measure(self, request: Measure, kernel: Fork, progress: OnProgress) -> KernelRun:
        """Measures a kernel: a process without the kernel judges, the kernel's own process tries the laws.

        Adds the side effects and the output of the kernel's process to the record. If a kernel ends its process, a new
        process replaces it, up to MOST_ENDED processes in all.
        """
        until = time.monotonic() + (request.seconds + request.judging) * LAST
        description = kernel.ask(Describe(request.target), deadline=until)  # this call imports the module
        alone = msgspec.structs.replace(request, laws="")
        if description.own_op or description.contained:
            self._end_judge()

        def heard(text: str) -> None:
            """Passes progress on. The time of the kernel's process is longer by the time that a judge waits."""
            nonlocal until
            until += getattr(text, "waited", 0.0)
            progress(text)

        texts = list[Printed | None]()
        called: Fork | None = None  # the process of the last call

        def replace_ended() -> bool:
            """Starts a new process if the last one ended. False if the kernel has used up its processes."""
            nonlocal kernel
            if kernel.ended and len(texts) < MOST_ENDED - 1:
                kernel.stop()
                texts.append(kernel.output.taken())
                kernel = self._kernel = self._fork(laws=bool(request.laws))
            return not kernel.ended

        def call_kernel(asked: bytes | msgspec.Raw, most: int) -> Outcome:
            nonlocal called
            if not replace_ended():
                return Died("the process of the kernel has ended")
            seconds, called = request.seconds / (CALLS if called is kernel else FIRST), kernel
            return kernel.call(asked, most=most, deadline=min(time.monotonic() + seconds, until))

        if description.own_op:
            declared = Kernel.of_description(description.kernel)
            begin = functools.partial(functools.partial, call_kernel)
            run = RemoteKernel(declared, request.target, self.backend.device, begin).__call__  # this process calls it
            done = measure_kernel(declared, alone, self.backend, progress=heard, run=run)
        else:
            judge = kernel if description.contained else self._judge or self._fork(who="judge")
            self._judge = None
            try:
                done = judge.ask(alone, progress=heard, kernel=None if description.contained else call_kernel)
            except Died as died:
                raise JudgeFailed(f"the judge died: {died}") from None
            finally:
                if judge is not kernel:
                    self._end_soon(judge)
        lives = replace_ended()
        wanted = bool(request.laws) or any(description.kernel[name] for name in promises.LAWS)
        if wanted and request.fail_fast and done.status == "wrong":
            done.notes.append("the laws were not tried: a result is wrong, and --fail-fast stops there")
        elif wanted and lives and done.status in RESULT_STATUSES:
            done = self._with_laws(done, request, kernel, until, progress)
        try:
            left = [] if kernel.ended else kernel.ask(ListSideEffects(request.target))
        except InternalError:  # the answer of a kernel's process to another question, or its own words
            left, done = [], msgspec.structs.replace(done, status="error", message=FOREIGN)
        breaks = "; ".join(each.text for each in left if each.breaks)
        if breaks and done.status in ("ok", *UNPROVEN):
            done = msgspec.structs.replace(done, status="error", message=f"{CHANGED}; it {breaks}")
        parts = [each for each in (*texts, kernel.output.taken()) if each]
        printed = functools.reduce(Printed.plus, parts) if parts else None
        return msgspec.structs.replace(done, left=left, printed=printed)

    def _with_laws(
        self, done: KernelRun, request: Measure, kernel: Fork, until: float, progress: OnProgress
    ) -> KernelRun:
        """Adds the laws, which the kernel's own process tries until a time of `time.monotonic()`."""
        if until - time.monotonic() < min(LEAST, (request.seconds + request.judging) / CALLS):
            text = f"{done.name}: the laws were not tried: measuring took the time"
            return msgspec.structs.replace(done, gaps=[*done.gaps, Gap("out of time", text, request.target)])
        try:
            of_laws = msgspec.structs.replace(request, accuracy=False)
            tried = kernel.ask(of_laws, progress=progress, deadline=until)
            return msgspec.structs.replace(  # the kernel's own process adds only these fields
                done,
                laws=[*done.laws, *tried.laws],
                status=tried.status if tried.status == "wrong" else done.status,
                seconds=round(done.seconds + tried.seconds, 3),
                unrepeatable=done.unrepeatable or tried.unrepeatable,
                gaps=[*done.gaps, *tried.gaps],
                notes=[*done.notes, *tried.notes],
            )
        except (Died, KernelError) as error:
            failed = "crashed" if isinstance(error, Died) else "error"
            return msgspec.structs.replace(done, status=failed, message=f"while laws were tried: {error}")
        except (Late, JudgeFailed) as error:  # kernel and judge share this process: either may be the cause
            gap = Gap("judge failed", f"{done.name}: the laws have no verdict: {error}", request.target)
            return msgspec.structs.replace(done, gaps=[*done.gaps, gap])

    def _serve(self, channel: Channel, given: bytes) -> None:
        """Runs a fork. It calls the kernels of one target, or judges their results."""
        faulthandler.enable(all_threads=False)
        # torch replaces its pool of threads after a fork, and aborts if two threads of gradients do so at a time
        torch.set_num_threads(1)
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
        if setup.judges and not backend.forks:  # the first request repeats the answers, and reports an error
            _begin_beside(lambda: demand_known_answers(backend.device))
        subject = _Subject(self._handler, backend, call_over(channel) if setup.judges else None)
        serve(channel, subject.answer, backend.usable, flush)


def call_over(channel: Channel) -> BeginKernel:
    """Returns a function that asks the process at the other end to call the kernel."""

    def begin(request: bytes | msgspec.Raw, most: int) -> Callable[[], Outcome]:
        def end() -> Outcome:
            return outcome_of(*receive(channel, most))

        send(channel, KernelWanted(msgspec.Raw(request), most))
        return end

    return begin


class _Subject:
    """Answers requests about the target of a fork. Keeps the state before the import, to find side effects later."""

    def __init__(self, handler: RequestHandler, backend: backends.Backend, kernel: BeginKernel | None) -> None:
        self._handler, self._backend, self._kernel = handler, backend, kernel
        self._began: ProcessState | None = None
        self._imported: list[SideEffect] = []

    def answer(self, request: msgspec.Raw, progress: OnProgress) -> Any:
        """Returns the reply to a request about the target."""
        asked = self._handler.read(request)
        if self._began is None:
            with phase("kernel: import its module"):
                self._began = self._load([Target.parse(each) for each in targets_of(asked)])
        if isinstance(asked, ListSideEffects):
            return self._left()
        judges = not isinstance(asked, ListKernels | Describe | CallKernel)  # these three requests judge nothing
        if judges:
            self._demand_judges()
        with phase(f"kernel: {kind_of(asked)} of {', '.join(targets_of(asked)[:1])}"):
            if self._kernel is not None and isinstance(asked, Measure):
                (kernel,) = load(Target.parse(asked.target))
                run = RemoteKernel(kernel, asked.target, self._backend.device, self._kernel)
                try:
                    reply: Any = measure_kernel(kernel, asked, self._backend, progress=progress, run=run)
                finally:
                    run.end()
            else:
                reply = self._handler.answer(asked, self._backend, progress)
        if isinstance(asked, ListKernels) and not self._backend.forks:
            _begin_beside(lambda: torch.zeros(1, device=self._backend.device))
        if judges:
            self._demand_judges()
        return reply

    def _load(self, targets: Sequence[Target]) -> ProcessState:
        """Imports the modules of the targets.

        Returns the state of the process after that, and keeps their side effects.
        """
        for target in targets:
            reach(target)
        before = ProcessState.now()
        for target in targets:
            load(target, [])  # a refused declaration is the answer of a request that asks for it
        began = ProcessState.now()
        self._imported = before.left("import", began)
        # this default device applies to the kernel's calls, not to verify's own
        if (device := torch.get_default_device()) != torch.device("cpu"):
            torch.set_default_device(None)
            call.device_of_module, began = device, ProcessState.now()
        return began

    def _left(self) -> list[SideEffect]:
        return [*self._imported, *(self._began.left("call") if self._began else ())]

    def _demand_judges(self) -> None:
        """Raises KernelError if the kernel replaced or changed something that decides verdicts in this process."""
        left = self._left()
        if replaced := [each.text for each in left if each.kind == "judge"]:
            raise KernelError(f"{CHANGED}; it {'; '.join(replaced)}")
        try:
            with phase("kernel: known answers"):
                # after an illegal access the CPU shows whether the judge is as it was
                demand_known_answers(self._backend.device if self._backend.usable() else "cpu")
        except Exception as error:
            changed = "; ".join(each.text for each in left if each.breaks)
            raise KernelError(f"{CHANGED}; it {changed}" if changed else str(error)) from None


def targets_of(asked: Any) -> list[str]:
    """Returns the targets whose modules a request needs."""
    target = getattr(getattr(asked, "space", asked), "target", "")
    return list(getattr(asked, "targets", [target] if target else []))


def _import_triton(requested: str | None) -> bool:
    """Imports Triton once for all forks if it compiles here, and returns True.

    The interpreter needs its environment variable before the import, so Triton is not imported here for it.
    """
    with contextlib.suppress(Exception):
        # this asks the driver's library, not the driver: CUDA is not initialised
        if backends.may_compile(requested) and torch.cuda._device_count_nvml() > 0:
            with phase("worker: import triton"):
                choose_by_key()
            return True
    return False


def _begin_beside(first: Callable[[], object]) -> None:
    """Starts a thread that uses the GPU first. Making a context takes half a second; the caller imports meanwhile."""

    def begin() -> None:
        with contextlib.suppress(Exception), phase("begin on the GPU beside an import"):
            first()

    threading.Thread(target=begin, daemon=True).start()


def _have(pattern: bytes, targets: Sequence[str]) -> bool:
    """True if a pattern is in a target's file. Nothing is imported for that."""
    files = [target.file for target in map(Target.parse, targets) if target.file is not None]
    with contextlib.suppress(OSError):
        return any(re.search(pattern, file.read_bytes()) for file in files)
    return False


def _share(given: bytes) -> None:
    setup = msgspec.json.decode(given, type=ForkSetup)
    for name in setup.imports:
        importlib.import_module(name)
    if setup.traces:
        decompositions.table()  # 0.3 s, else in each fork
