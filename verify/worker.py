"""The worker's side of `verify.workers.process`: reads requests, runs kernels, answers on its own pipe.

Start: python -m verify.worker FD [BACKEND]. One JSON request per line on stdin:
{"do": "environment" | "list" | "measure" | "replay" | "certify" | ...}.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from verify.errors import KernelError, TruthError, UsageError
from verify.workers.frames import roomy

WATCH_SECONDS = 0.5

Emit = Callable[[dict[str, Any]], None]


def main(arguments: list[str]) -> int:
    """Serve requests until stdin ends."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    pipe = os.fdopen(int(arguments[0]), "wb", buffering=0)
    requested = arguments[1] if len(arguments) > 1 else None
    # torch.compile would start a process for every core, in each of the workers
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

    def emit(event: dict[str, Any]) -> None:
        pipe.write(msgspec.json.encode(event) + b"\n")

    backend: Any = None
    for line in sys.stdin.buffer:
        try:
            if backend is None:
                from verify import backends

                backend = backends.select(requested)
                backends.activate(backend)
                import torch

                # the order of a sum must not depend on the machine, and the workers share its cores
                torch.set_num_threads(1)
            request = msgspec.json.decode(line)
            emit(roomy(_HANDLERS[request["do"]], request, backend, emit))
        except UsageError as error:
            emit({"usage": error.message, "hint": error.hint or ""})
        except TruthError as error:
            emit({"truth": str(error)})
        except KernelError as error:
            emit({"failure": str(error)})
        except MemoryError:
            emit({"failure": "out of memory"})
        except Exception as error:
            traceback.print_exc()
            emit({"internal": f"{type(error).__name__}: {error}"})
    return 0


def _watch(parent: int) -> None:
    """End with the parent: one that was killed cannot stop its worker, which would go on with a kernel for nobody."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os.killpg(0, signal.SIGKILL)  # the worker leads a group of its own, with everything that it started


@functools.cache
def _environment_of(device: str) -> dict[str, Any]:
    """Probed once: nothing of it changes while the process lives, and probing takes a while."""
    from verify.backends import probes
    from verify.declare import config
    from verify.records import commit

    found = msgspec.to_builtins(probes.probe(device))
    found.pop("fingerprint", None)  # it stands beside the probes
    return {**probes.fingerprint(), **commit.current(config.find().root), "probes": found}


def _environment(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    return {
        "backend": backend.name,
        "device": backend.device,
        "room": _room(backend),
        "environment": _environment_of(backend.device),
    }


SHARE = 4 << 30  # bytes of a GPU for one of several workers: its context, and a case with its truth


def _room(backend: Any) -> int:
    """How many workers measure side by side: one per core, as exact verdicts are the CPU's work, if they fit a GPU."""
    import torch

    cores = os.cpu_count() or 1
    if backend.name != "cuda":
        return cores
    return max(1, min(cores, torch.cuda.get_device_properties(backend.device).total_memory // SHARE))


def _gpus(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    import torch

    return {"gpus": torch.cuda.device_count()}


def _list(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    from verify.declare.discovery import load
    from verify.declare.sources import sources_of
    from verify.declare.target import Target

    kernels = load(Target.parse(request["target"]))
    return {
        "sources": sources_of(kernels[0]),
        "kernels": [
            {
                "name": item.name,
                "op": item.op.name,
                "kind": item.op.kind,
                "params": dict(item.params),
                "promise": item.promise,
                "summary": item.summary,
                "peer": item.peer,
                "backends": list(item.backends),
                "dtypes": list(item.dtypes),
                "lacking": list(item.lacking),
            }
            for item in kernels
        ],
    }


def _one(request: dict[str, Any]) -> Any:
    from verify.declare.discovery import load
    from verify.declare.target import Target

    target = Target.parse(request["target"])
    if target.kernel is None:
        kernels = load(target)
        if len(kernels) > 1:
            names = ", ".join(item.name for item in kernels)
            raise UsageError(f"{request['target']} declares several kernels: {names}; name one with ::KERNEL")
        return kernels[0]
    return load(target)[0]


def _measure(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    from verify.measure.kernel import measure_kernel

    kernel, dtypes = _one(request), tuple(request.get("dtypes", ()))

    def say(text: str) -> None:
        emit({"progress": text})

    done = measure_kernel(
        kernel,
        request["target"],
        backend,
        seed=request["seed"],
        dtypes=dtypes,
        accuracy=request.get("accuracy", True),
        cases_of=request.get("plan", ""),
        progress=say,
    )
    if request.get("laws"):
        from verify.laws.suite import with_laws  # Hypothesis loads with it

        done = with_laws(done, kernel, backend, request["laws"], seed=request["seed"], dtypes=dtypes, progress=say)
    return {"run": msgspec.to_builtins(done)}


def _contenders(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """The kernels of a target with what `verify bench` has to know before it measures them."""
    from verify.declare.discovery import load
    from verify.declare.target import Target
    from verify.measure.timing import comparable

    source = request["target"].partition("::")[0]
    return {
        "contenders": [
            {
                "target": f"{source}::{item.name}",
                "name": item.name,
                "op": item.op.name,
                "params": dict(item.params),
                "promise": item.promise,
                "group": repr(comparable(item)),
                "dtypes": list(item.dtypes),
                "backends": list(item.backends),
                "lacking": list(item.lacking),
                "peer": item.peer,
            }
            for item in load(Target.parse(request["target"]))
        ]
    }


def _time(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    from verify.measure import timing

    if backend.name != "cuda":
        raise UsageError(f"speed is measured on a GPU; this is the {backend.name}")
    contenders = {target: _one({"target": target}) for target in request["targets"]}
    found = timing.time_together(
        contenders,
        request["dtype"],
        request["shape"],
        request["directions"],
        backend.device,
        timing.CudaClock(backend.device),
        rounds=request["rounds"],
        seed=request["seed"],
        progress=lambda text: emit({"progress": text}),
    )
    return {"timed": [msgspec.to_builtins(item) for item in found]}


def _one_case(request: dict[str, Any]) -> tuple[Any, Any]:
    """The kernel and the case of a request, which must be a case of this kernel."""
    from verify.cases import Case

    kernel, case = _one(request), Case.from_json(request["case"])
    extra = [name for name in kernel.absent if name not in case.absent]
    if extra:
        fields = ",".join(f'"{name}"' for name in sorted({*case.absent, *extra}))
        raise UsageError(
            f"kernel {kernel.name!r} takes no {' and no '.join(extra)}, and the case has one",
            hint=f'add "absent":[{fields}] to the case',
        )
    return kernel, case


def _replay(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """One element again; made smaller, and as a script, where that is asked for."""
    from verify.diagnose.replay import replay, replay_smaller
    from verify.diagnose.snippet import snippet, too_long

    kernel, case = _one_case(request)
    place = {"result": request["result"], "index": request["index"]}
    script, smaller = request.get("snippet", False), request.get("shrink", False)
    found = (replay_smaller if smaller else replay)(kernel, request["target"], backend, case, **place)
    if script and not smaller and not found.judged <= found.limit and too_long(kernel, case, backend):
        found = replay_smaller(kernel, request["target"], backend, case, **place)
    answer = {"replay": msgspec.to_builtins(found)}
    if script:
        answer["snippet"] = snippet(kernel, backend, found)
    return answer


def _law(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """Try one law on one case again."""
    from verify.diagnose.replay import replay_law
    from verify.laws import registry

    kernel, case = _one_case(request)
    found, smaller = replay_law(
        registry.get(request["law"]), kernel, case, backend, request["target"], shrink=request.get("shrink", False)
    )
    return {
        "law": msgspec.to_builtins(found),
        "kernel": kernel.name,
        "smaller": None if smaller is None else msgspec.to_builtins(smaller),
    }


def _laws(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """All laws in the order in which they are tried, and in how many rounds a profile tries them."""
    from verify.laws import engine, registry

    rounds = engine.rounds(engine.profile_named(request["profile"]))
    return {"laws": [law.name for law in registry.ALL], "rounds": len(rounds)}


def _try_law(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """One round of one law on one kernel in one dtype."""
    from verify.laws import engine, registry
    from verify.laws.shrink import shrink_law

    rounds = engine.rounds(engine.profile_named(request["profile"], request["seed"] or None))
    found = engine.try_law(
        registry.get(request["law"]),
        _one(request),
        request["dtype"],
        backend,
        rounds[request["round"]],
        request["target"],
        pinned=None if request["round"] == 0 else (),
        shrink=shrink_law,
    )
    return {"law": msgspec.to_builtins(found), "healthy": found.status == "ok" or _healthy(backend)}


def _healthy(backend: Any) -> bool:
    """Whether this process can still use its GPU: after an illegal access it cannot, whatever it tries."""
    import torch

    if backend.name != "cuda":
        return True
    try:
        torch.cuda.synchronize(backend.device)
        return bool(torch.zeros(1, device=backend.device).sum() == 0)
    except Exception:
        return False


def _explain(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """Divide the error of one element among the steps that lead to it."""
    from verify.diagnose.explain import explain, worst_place
    from verify.laws import registry
    from verify.laws.law import Broken, Subject

    kernel, case = _one_case(request)
    result, index = request["result"], request["index"]
    if request["law"]:
        try:
            registry.get(request["law"]).check(Subject(kernel, case.dtype, backend, None, request["target"]), case)
        except Broken as broken:
            result, index = result or broken.result, broken.index if index is None else index
    result = result or "y"
    if index is None:
        index = worst_place(kernel, backend, case, result)
    found = explain(kernel, request["target"], backend, case, result=result, index=index)
    return {"explanation": msgspec.to_builtins(found)}


def _certify(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    from verify.measure.certify import certify
    from verify.sweep.certify import certify_fused

    def say(text: str) -> None:
        emit({"progress": text})

    entries = certify(request["ops"], device=backend.device, seed=request["seed"], progress=say)
    entries += certify_fused(request["ops"], device=backend.device, seed=request["seed"], progress=say)
    return {"entries": msgspec.to_builtins(entries)}


def _selftest(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """Each law on its seeded bug and on the twin."""
    from dataclasses import asdict

    from verify.laws.selftest import trials

    found = trials.run(backend, request["laws"], progress=lambda text: emit({"progress": text}))
    return {
        "backend": backend.name,
        "trials": [asdict(trial) for trial in found.trials],
        "selftest": msgspec.to_builtins(found.record),
        "passed": found.passed,
    }


def _ops(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    from verify import ops

    chosen = [ops.get(request["op"])] if request.get("op") else [ops.get(name) for name in ops.names()]
    return {
        "ops": [
            {
                "name": op.name,
                "summary": op.summary,
                "operands": [o.name + ("?" if o.optional else "") for o in op.operands],
                "outputs": [name + ("?" if name in op.optional_outputs else "") for name in op.all_outputs],
                "gradients": list(op.gradients),
                "params": {k: repr(v) for k, v in op.params.items()},
                "choices": {k: [repr(item) for item in v] for k, v in op.choices.items()},
                "gate": op.gate,
            }
            for op in chosen
        ]
    }


def _hunts(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """Which results of a kernel can be hunted."""
    from verify.hunt.serve import allowed

    return allowed(_one(request), request["dtypes"], request["results"])


def _hunt(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """Search for the worst input of one result."""
    from verify.hunt.serve import serve

    return serve(_one(request), request, backend, emit)


def _corpus(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """List or remove pinned cases."""
    from verify.hunt.pinning import entries, unpin

    return {"entries": unpin(request["ids"]) if request["action"] == "remove" else entries()}


def _pin(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """Try a case and add it to the corpus."""
    from verify.hunt.pinning import pin

    return pin(_one(request), request, backend)


def _sweep(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    from verify.sweep import serve

    steps = {"sweep spaces": serve.spaces, "sweep chunks": serve.chunks, "sweep record": serve.record}
    return steps[request["do"]](request, backend, emit)


_HANDLERS: dict[str, Callable[[dict[str, Any], Any, Emit], dict[str, Any]]] = {
    "environment": _environment,
    "gpus": _gpus,
    "list": _list,
    "ops": _ops,
    "measure": _measure,
    "contenders": _contenders,
    "time": _time,
    "replay": _replay,
    "law": _law,
    "laws": _laws,
    "try law": _try_law,
    "explain": _explain,
    "certify": _certify,
    "sweep spaces": _sweep,
    "sweep chunks": _sweep,
    "sweep record": _sweep,
    "hunts": _hunts,
    "hunt": _hunt,
    "corpus": _corpus,
    "pin": _pin,
    "selftest": _selftest,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
