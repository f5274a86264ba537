"""What Triton compiles for a GPU, without one: in a process where the interpreter is not asked for."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

ROOT = pathlib.Path(__file__).parents[2]
# Bytes of shared memory that a program can have: CUDA programming guide, technical specifications by capability.
SHARED = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}


# Forks of it run the scripts: what each would import for two seconds, and Triton's key of its own files, is there.
_SERVE = """
import gc, json, os, sys, traceback
from triton.runtime.cache import triton_key
from kernels import geglu, gelu, hopper_product, layer_norm, linear_act, linear_geglu, linear_weight, swiglu

triton_key()
gc.disable()  # half of a compiler's objects live until it is done
for line in sys.stdin:
    code, folder, arguments = json.loads(line)
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            for name, stream in (("printed", 1), ("errors", 2)):
                os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            os.environ["TRITON_CACHE_DIR"], sys.argv = f"{folder}/cache", ["-c", *arguments]
            exec(compile(code, "<script>", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Compiler:
    """A process that compiles: it imported Triton without the interpreter."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        environment |= {"PYTHONPATH": str(ROOT), "TRITON_DISABLE_LINE_INFO": "1"}  # lines change no code, but take time
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0,
        )  # fmt: skip

    def printed(self, code: str, folder: pathlib.Path, timeout: float, *arguments: str) -> str:
        """What a script prints that imports kernels; Triton's cache is in the folder, and no other script's."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([code, str(folder), arguments]).encode() + b"\n")
        if not select.select([process.stdout], [], [], timeout)[0]:
            self.stop()
            self._begin()
            raise subprocess.TimeoutExpired("<script>", timeout)
        status, errors = process.stdout.readline().decode().strip(), folder / "errors"
        assert status == "0", f"exit code {status or None}: {errors.read_text()[-2000:] if errors.exists() else ''}"
        return (folder / "printed").read_text()

    def stop(self) -> None:
        """End it with what it runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Compiled(NamedTuple):
    kernel: str
    options: str  # constants that are no flags, and warps
    registers: int
    spilled: int  # bytes that are stored and loaded again
    shared: int


@contextlib.contextmanager
def compiled_for(arch: int) -> Iterator[list[Compiled]]:
    """What is compiled for the launches made meanwhile, as if tensors of the CPU were on such a GPU; none is made.

    The Hopper kernel has tests of its own and is not chosen."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import JITFunction, driver

    from kernels import gelu, hopper_product
    from kernels.launch import MANY_FLOAT64
    from kernels.layer_norm import launch as norms

    made: list[Compiled] = []
    run = JITFunction.run

    def compiling(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as log:
            compiled = run(kernel, *args, grid=grid, warmup=True, **options)
        if log.getvalue():  # else it was compiled before
            counted = [re.search(p, log.getvalue()) for p in (r"Used (\d+) registers", r"(\d+) bytes spill stores")]
            constants = {k: v for k, v in options.items() if isinstance(v, int) and v > 1}
            what = " ".join(f"{k}={v}" for k, v in constants.items())
            numbers = [int(found[1]) for found in counted]
            made.append(Compiled(kernel.fn.__name__, what, *numbers, compiled.metadata.shared))

    class Driver:
        get_current_device = staticmethod(lambda: arch)
        get_current_stream = staticmethod(lambda device: 0)
        get_current_target = staticmethod(lambda: GPUTarget("cuda", arch, 32))

    forward, backward = norms.planned_forward, norms.planned_backward
    here = contextlib.nullcontext()
    replaced = (
        (JITFunction, "run", compiling),
        (triton.knobs.nvidia, "dump_ptxas_log", True),
        (gelu, "few_float64", lambda device: divmod(arch, 10) not in MANY_FLOAT64),
        (hopper_product, "transposed_operands", lambda *operands: None),
        (norms, "_on_device_of", lambda tensor: here),
        (norms, "planned_forward", lambda call: forward(call)),
        (norms, "planned_backward", lambda call, shared: backward(call, SHARED[arch])),
        (torch.cuda, "device_of", lambda tensor: here),
    )
    before = driver._active
    driver.set_active(Driver())
    try:
        with contextlib.ExitStack() as stack:
            for where, name, what in replaced:
                stack.enter_context(patch.object(where, name, what))
            yield made
    finally:
        driver._active = before
