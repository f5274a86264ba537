"""Runs a worker process: reads requests and answers them over one connection.

The command is `start.py verify.worker FD [BACKEND [forks]]`; with `forks` the process starts workers.
`verify.workers.requests` has the form of requests and events. The module `requests` of each room has its requests.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.metadata
import importlib.util
import math
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Union

import msgspec

from verify import backends
from verify.declare import requests as declare
from verify.declare.target import Declared, Target
from verify.diagnose import requests as diagnose
from verify.errors import InternalError, UsageError
from verify.measure import requests as measure
from verify.records.record import KernelRun
from verify.referee.plan import TimeSolution
from verify.search.hunt import requests as hunts
from verify.search.sweep import requests as sweeps
from verify.workers import process_tree
from verify.workers.calls import WithBytes, serve, watch
from verify.workers.channel import Channel
from verify.workers.fork_server import forked
from verify.workers.machine import usable_cores
from verify.workers.phases import phase
from verify.workers.process import import_torch
from verify.workers.requests import About, CountGpus, Environment, OnProgress, Request

if TYPE_CHECKING:
    from verify.backends import Backend
    from verify.cases import Case
    from verify.declare.declaration import Kernel
    from verify.measure.apart import KernelProcesses

_COLLECT_AFTER = 20_000  # new objects


def main(arguments: list[str]) -> int:
    """Serves requests until the other side closes the connection. Each target has a process of its own."""
    channel, requested = Channel(int(arguments[0])), next(iter(arguments[1:]), "") or None
    if arguments[2:]:
        with suppress(Exception):  # each worker tries again and reports the error
            load(requested)
        channel = forked(channel)
    answerer = Answerer(requested, channel)
    parent = os.getppid()
    try:
        with suppress(Exception):  # the first request tries again and gets the error
            if not load(requested):  # on a GPU only a request makes contexts: a spare worker may get none
                answerer.begin()
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
        serve(channel, answerer.respond, answerer.usable)
    finally:  # processes that outlived this one would hold the connection open, and the other side would wait
        answerer.end()
    return 0


class Answerer:
    """Answers requests. With a `channel`, each target has a process of its own; these forks must not use it."""

    def __init__(self, requested: str | None, channel: Channel | None = None) -> None:
        # torch.compile would start a process for every core in each worker
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        self._requested, self._channel = requested, channel
        self._backend: Backend | None = None
        self._kernels: KernelProcesses | None = None

    def begin(self) -> Backend:
        """Starts what answers requests, at the first call."""
        if self._backend is None and self._channel is not None:
            from verify.measure.apart import KernelProcesses, RequestHandler

            handler = RequestHandler(_read, lambda asked, *how: HANDLERS[type(asked)](asked, *how))
            self._kernels = KernelProcesses(self._requested, lambda: _ready(self._requested), handler, self._channel)
            self._backend = self._kernels.backend
            # judging makes many small objects: the collector then skips what was imported, and runs less often
            gc.freeze()
            gc.set_threshold(_COLLECT_AFTER)
        elif self._backend is None:
            self._backend = _ready(self._requested)
        return self._backend

    def respond(self, request: msgspec.Raw, progress: OnProgress) -> Any:
        """Returns the reply to a request in JSON."""
        backend = self.begin()
        return answer(request, backend, progress) if self._kernels is None else self._kernels.answer(request, progress)

    def usable(self) -> bool:
        """True if this process can answer another request."""
        return self._backend is None or self._backend.usable()

    def end(self) -> None:
        """Ends the processes of targets."""
        if self._kernels is not None:
            self._kernels.stop()


def load(requested: str | None) -> bool:
    """Imports what every request needs. Returns True if Triton may compile here."""
    # Triton may be imported before torch reports whether there is a GPU
    visible = os.environ.get(backends.Cuda.visible, "0").replace(",", "")
    compiles = backends.may_compile(requested) and visible.isdigit() and backends.gpu_expected()
    with phase("worker: import torch"):
        import_torch(identifies_triton=compiles)
        gc.disable()  # imported objects stay: walking them is a tenth of the time
        try:
            import numpy.ma  # noqa: F401  # numpy.unique imports it, which would be in each fork anew

            from verify.measure import apart  # noqa: F401
        finally:
            gc.enable()  # before the first fork
    return compiles


def answer(request: msgspec.Raw | bytes, backend: Backend, progress: OnProgress) -> Any:
    """Returns the reply to a request in JSON, computed in this process."""
    asked = _read(request)
    return HANDLERS[type(asked)](asked, backend, progress)


def _read(request: msgspec.Raw | bytes) -> Any:
    try:
        return msgspec.json.decode(request, type=Union[tuple(HANDLERS)])  # noqa: UP007
    except msgspec.ValidationError as error:
        raise InternalError(f"no worker knows this request: {error}") from error


def _ready(requested: str | None) -> Backend:
    """Returns the backend, activated, with everything set that figures must not depend on."""
    with phase("select and activate the backend"):
        backend = backends.select(requested)
        backends.activate(backend)
    import torch

    # the order of a sum must not depend on the machine, and the workers share its cores
    torch.set_num_threads(1)
    return backend


@functools.cache
def _environment_of(backend: Backend) -> Future[dict[str, Any]]:
    """Probes the environment once, in a thread, because it takes a while.

    It does not change while the process lives.
    """

    def probed() -> dict[str, Any]:
        from verify.backends import probes
        from verify.declare import config
        from verify.records import commit

        with phase("worker: probe the environment"):
            found = probes.probe(backend.device)
            fingerprint = found.pop("fingerprint")  # the record has it beside the probes
            return {**fingerprint, **backend.environment(), **commit.current(config.find().root), "probes": found}

    return ThreadPoolExecutor(1).submit(probed)


def _environment(request: Environment, backend: Backend, progress: OnProgress) -> About:
    probing = None if request.probed is None else _environment_of(backend)
    environment = probing.result() if probing and request.probed else {}
    return About(backend.name, backend.device, environment, backend.workers(usable_cores()), backend.count())


def _one(named: str) -> Kernel:
    from verify.declare.discovery import load

    target = Target.parse(named)
    kernels = load(target)
    if len(kernels) > 1:
        names = ", ".join(item.name for item in kernels)
        raise UsageError(f"{named} declares several kernels: {names}; name one with ::KERNEL")
    return kernels[0]


def _measure(request: measure.Measure, backend: Backend, progress: OnProgress) -> KernelRun:
    from verify.measure.kernel import measure_kernel

    kernel = _one(request.target)
    done = measure_kernel(kernel, request, backend, progress=progress)
    if request.laws or not request.accuracy:
        from verify.laws.suite import with_laws  # imports Hypothesis

        done = with_laws(done, kernel, backend, request, progress)
    return done


def _call(request: measure.CallKernel, backend: Backend, progress: OnProgress) -> WithBytes:
    from verify.measure.call import run_judged
    from verify.measure.effort import give_back
    from verify.measure.remote_call import bits_of_results, let_go

    let_go(backend)
    if not request.case:
        return WithBytes(measure.Bits([], ()), ())
    kernel, case = _one_case(request.target, request.case, backend)
    _compile_anew(case.dtype)
    reply = bits_of_results(run_judged(kernel, case, backend.device, again=request.again))
    give_back(backend)
    return reply


_dtype_called = ""


def _compile_anew(dtype: str) -> None:
    """Drops the programs that torch.compile made for another dtype.

    After one dtype, torch.compile compiles for any sizes, which changes the rounding. A figure must not depend on the
    dtypes that the same process measured before.
    """
    global _dtype_called
    if _dtype_called not in ("", dtype) and "torch._dynamo" in sys.modules:
        import torch

        torch.compiler.reset()
    _dtype_called = dtype


def _time(request: measure.Time, backend: Backend, progress: OnProgress) -> list[measure.Timed]:
    import torch

    from verify.measure import timing
    from verify.measure.autotuners import launched

    if not backend.clock:
        raise UsageError(f"speed is measured on a GPU; this is the {backend.name}")
    contenders = {target: _one(target) for target in request.targets}
    try:
        with launched(timed=True):
            clock = timing.CudaClock(backend.device)
            return timing.time_together(contenders, request, backend.device, clock, progress)
    finally:
        torch.cuda.empty_cache()  # other processes may need what it holds for later calls


def _one_case(target: str, text: str, backend: Backend) -> tuple[Kernel, Case]:
    """Returns the kernel and the case of a request. Raises UsageError if the case does not fit the kernel."""
    from verify.cases import Case
    from verify.measure.effort import total_memory
    from verify.truth.formats import named

    kernel, case = _one(target), Case.from_json(text)
    extra = [name for name in kernel.absent if name not in case.absent]
    if extra:
        fields = ",".join(f'"{name}"' for name in sorted({*case.absent, *extra}))
        said = f"kernel {kernel.name!r} takes no {' and no '.join(extra)}, and the case has one"
        raise UsageError(said, hint=f'add "absent":[{fields}] to the case')
    shapes = kernel.op.shapes(case.dims, kernel.op.resolve(case.params))
    held, room = sum(map(math.prod, shapes.values())) * named(case.dtype).bits // 8, total_memory(backend)
    if held > room:
        said = f"the operands of the case take {held:,} bytes, and {backend.device} has {room:,}"
        raise UsageError(said, hint="copy the case from the failure message or from the report")
    return kernel, case


def _replay(request: diagnose.ReplayElement, backend: Backend, progress: OnProgress) -> diagnose.Replay:
    from verify.diagnose.replay import replay, replay_smaller

    kernel, case = _one_case(request.target, request.case, backend)
    again = replay_smaller if request.shrink else replay
    return again(kernel, request.target, backend, case, result=request.result, index=request.index)


def _settings(request: diagnose.FindSettings, backend: Backend, progress: OnProgress) -> diagnose.SameBits:
    """Divides the settings of a kernel into classes of equal bits."""
    from verify.cases import Case
    from verify.diagnose.same import proved, settings_of, subject_of
    from verify.laws.bits import cases_of

    kernel = _one(request.target)
    given = [Case.from_json(request.case)] if request.case else cases_of(subject_of(kernel, backend, request.dtype))
    found = settings_of(kernel, backend, request.dtype, given, progress, request.without)
    texts = proved(kernel, backend, given[0], request.target) if request.order else {}
    named = [msgspec.structs.replace(each, proved=texts.get(each.setting, "")) for each in found.settings]
    return msgspec.structs.replace(found, settings=named)


def _explain(request: diagnose.Explain, backend: Backend, progress: OnProgress) -> diagnose.Explanation:
    """Divides the error of one element among the steps that lead to it."""
    from verify.diagnose.explain import explain, worst_place
    from verify.laws import registry
    from verify.laws.law import Broken, Subject

    kernel, case = _one_case(request.target, request.case, backend)
    result, index = request.result, request.index
    if request.law:
        try:
            registry.get(request.law).check(Subject(kernel, case.dtype, backend, None, request.target), case)
        except Broken as broken:
            result, index = result or broken.result, broken.index if index is None else index
    result = result or "y"
    if index is None:
        index = worst_place(kernel, backend, case, result)
    return explain(kernel, request.target, backend, case, result=result, index=index)


def _law(request: diagnose.ReplayLaw, backend: Backend, progress: OnProgress) -> diagnose.LawReplayed:
    from verify.diagnose.replay import replay_law
    from verify.laws import registry

    kernel, case = _one_case(request.target, request.case, backend)
    found, smaller = replay_law(registry.get(request.law), kernel, case, backend, request.target, shrink=request.shrink)
    return diagnose.LawReplayed(found, kernel.name, smaller)


def _describe(request: declare.Describe, backend: Backend, progress: OnProgress) -> declare.Description:
    from verify.ops.op import is_shipped

    kernel = _one(request.target)
    contained = getattr(kernel.function, "contained", False)
    return declare.Description(kernel.described(), is_shipped(kernel.op), contained=contained)


def _contenders(request: measure.ListContenders, backend: Backend, progress: OnProgress) -> list[measure.Contender]:
    from verify.declare.discovery import load
    from verify.measure.timing import comparable

    target = Target.parse(request.target)
    return [measure.Contender(Declared.of(item, target.source), repr(comparable(item))) for item in load(target)]


def _ops(request: declare.ListOps, backend: Backend, progress: OnProgress) -> list[declare.OpAbout]:
    from verify import ops

    return [
        declare.OpAbout(
            name=op.name,
            summary=op.summary,
            operands=[o.name + ("?" if o.optional else "") for o in op.operands],
            outputs=[name + ("?" if name in op.optional_outputs else "") for name in op.all_outputs],
            gradients=list(op.gradients),
            params={k: repr(v) for k, v in op.params.items()},
            choices={k: [repr(item) for item in v] for k, v in op.choices.items()},
            gate=op.gate,
        )
        for op in map(ops.get, [request.op] if request.op else ops.names())
    ]


def _in(module: str) -> Any:
    """Imports a module of verify at the first request that needs it: a worker starts without most of them."""
    return importlib.import_module(f"verify.{module}")


# By request: its answer from the request itself, the backend and a function that reports progress.
HANDLERS: dict[type[Request[Any]], Callable[[Any, Any, OnProgress], Any]] = {
    Environment: _environment,
    CountGpus: lambda it, on, say: importlib.import_module("torch").cuda.device_count(),
    # the facts of the environment name the commit; `KernelProcesses` ends the process of the target
    declare.Forget: lambda it, on, say: _environment_of.cache_clear(),
    declare.ListKernels: lambda it, on, say: it.answer(),
    declare.ListOps: _ops,
    declare.Describe: _describe,
    measure.Measure: _measure,
    measure.CallKernel: _call,
    measure.ListSideEffects: lambda it, on, say: [],  # this process calls no kernel: see `verify.measure.apart`
    measure.ListContenders: _contenders,
    measure.Time: _time,
    TimeSolution: lambda it, on, say: _in("referee.clock").timed(_one(it.target), on, it.seconds, it.judges),
    diagnose.ReplayElement: _replay,
    diagnose.ReplayLaw: _law,
    diagnose.Explain: _explain,
    diagnose.FindContract: lambda it, on, say: _in("diagnose.contracts").contract_of_target(
        _one(it.target), it.layer, on, it.dtype, it.gradients
    ),
    diagnose.FindDrift: lambda it, on, say: _in("diagnose.drift").drift_of(
        _one(it.target), on, it.dtype, it.layers, say
    ),
    diagnose.FindSettings: _settings,
    diagnose.FindOrders: lambda it, on, say: _in("diagnose.order").orders_of(
        _one(it.target), on, it.dtype, it.case, say, it.target
    ),
    sweeps.ListSpaces: lambda it, on, say: _in("search.sweep.serve").spaces(it, on),
    sweeps.SweepChunks: lambda it, on, say: _in("search.sweep.serve").chunks(it, on, say),
    sweeps.RecordSweep: lambda it, on, say: _in("search.sweep.serve").record(it),
    hunts.ListHunts: lambda it, on, say: _in("search.hunt.serve").allowed(_one(it.target), it.dtypes, it.results),
    hunts.DoHunt: lambda it, on, say: _in("search.hunt.serve").serve(_one(it.target), it, on, say),
    hunts.Pin: lambda it, on, say: _in("search.hunt.serve").pin(_one(it.target), it, on),
}


if __name__ == "__main__":
    process_tree.adopt_orphans()
    sys.exit(main(sys.argv[1:]))
