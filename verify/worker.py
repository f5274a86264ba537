"""The worker's side of `verify.isolate`: reads requests, runs kernels, answers on its own pipe.

Start: python -m verify.worker FD [BACKEND]. One JSON request per line on stdin:
{"do": "environment" | "list" | "measure" | "replay" | "certify" | ...}.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from verify.errors import KernelError, TruthError, UsageError

Emit = Callable[[dict[str, Any]], None]


def main(arguments: list[str]) -> int:
    """Serve requests until stdin ends."""
    pipe = os.fdopen(int(arguments[0]), "wb", buffering=0)
    requested = arguments[1] if len(arguments) > 1 else None

    def emit(event: dict[str, Any]) -> None:
        pipe.write(msgspec.json.encode(event) + b"\n")

    backend: Any = None
    for line in sys.stdin.buffer:
        try:
            if backend is None:
                from verify import backends

                backend = backends.select(requested)
                backends.activate(backend)
                if backend.name != "cuda":
                    import torch

                    torch.set_num_threads(1)  # the order of a sum must not depend on the machine
            request = msgspec.json.decode(line)
            emit(_HANDLERS[request["do"]](request, backend, emit))
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


def _environment(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    from verify.backends import probes

    found = msgspec.to_builtins(probes.probe(backend.device))
    found.pop("fingerprint", None)  # it stands beside the probes
    return {
        "backend": backend.name,
        "device": backend.device,
        "environment": {**probes.fingerprint(), "probes": found},
    }


def _gpus(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    import torch

    return {"gpus": torch.cuda.device_count()}


def _list(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    from verify.declaration import Target, load

    kernels = load(Target.parse(request["target"]))
    return {
        "kernels": [
            {
                "name": item.name,
                "op": item.op.name,
                "params": dict(item.params),
                "promise": item.promise,
                "summary": item.summary,
                "peer": item.peer,
                "backends": list(item.backends),
                "dtypes": list(item.dtypes),
                "lacking": list(item.lacking),
            }
            for item in kernels
        ]
    }


def _one(request: dict[str, Any]) -> Any:
    from verify.declaration import Target, load

    target = Target.parse(request["target"])
    if target.kernel is None:
        kernels = load(target)
        if len(kernels) > 1:
            names = ", ".join(item.name for item in kernels)
            raise UsageError(f"{request['target']} declares several kernels: {names}; name one with ::KERNEL")
        return kernels[0]
    return load(target)[0]


def _measure(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    from verify.run import measure_kernel

    done = measure_kernel(
        _one(request),
        request["target"],
        backend,
        seed=request["seed"],
        dtypes=tuple(request.get("dtypes", ())),
        laws=request.get("laws", ""),
        progress=lambda text: emit({"progress": text}),
    )
    return {"run": msgspec.to_builtins(done)}


def _replay(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    from verify.cases import Case
    from verify.replay import replay

    found = replay(
        _one(request),
        request["target"],
        backend,
        Case.from_json(request["case"]),
        result=request["result"],
        index=request["index"],
    )
    return {"replay": msgspec.to_builtins(found)}


def _law(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    """Try one law on one case again."""
    from verify.cases import Case
    from verify.laws import engine, registry

    kernel = _one(request)
    case = Case.from_json(request["case"])
    found = engine.replay_law(registry.get(request["law"]), kernel, case, backend, request["target"])
    return {"law": msgspec.to_builtins(found), "kernel": kernel.name}


def _certify(request: dict[str, Any], backend: Any, emit: Emit) -> dict[str, Any]:
    from verify.truth.certify import certify

    entries = certify(
        request["ops"],
        device=backend.device,
        seed=request["seed"],
        progress=lambda text: emit({"progress": text}),
    )
    return {"entries": msgspec.to_builtins(entries)}


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


_HANDLERS: dict[str, Callable[[dict[str, Any], Any, Emit], dict[str, Any]]] = {
    "environment": _environment,
    "gpus": _gpus,
    "list": _list,
    "ops": _ops,
    "measure": _measure,
    "replay": _replay,
    "law": _law,
    "certify": _certify,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
