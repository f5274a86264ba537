"""Runs a kernel under compute-sanitizer: tools of the CUDA toolkit that observe every memory access on the GPU.

The guard bands of the memory laws find writes outside of a tensor. They cannot find a read outside of a tensor, a race
in shared memory or a barrier that some threads miss. compute-sanitizer instruments the kernel's machine code and finds
them. It runs a process of its own, `python -m verify.diagnose.sanitize TARGET [CASE]`, which calls the kernel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from verify.ops.geometry import ByGeometry, Shapes
from verify.workers import process_tree, start

if TYPE_CHECKING:
    from torch import Tensor

    from verify.cases import Case
    from verify.declare.declaration import Kernel

TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")
# PyTorch's caching allocator would hide most errors. It returns parts of large allocations, so a read past the end of a
# tensor reads another tensor, and memory counts as initialised after its first use.
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONFAULTHANDLER": "1"}
_SUMMARY = re.compile(r"SUMMARY: (\d+) (?:errors?$|hazards? displayed)", re.MULTILINE)
# Below, at and beyond the usual sizes of blocks; the last block is never full.
_DIMS: ByGeometry[Shapes] = ByGeometry(
    elementwise=((1,), (1023,), (1025,), (7, 129), (3, 5, 33)),
    rowwise=((3, 1), (5, 127), (2, 1025), (2, 4097)),
    contraction=((17, 33, 9), (65, 129, 33)),
)


class Outcome(NamedTuple):
    """Holds the outcome of one tool: its own report of what it found, or the reason why there is no verdict."""

    tool: str
    status: Literal["clean", "findings", "incomplete"]
    report: str = ""


def executable() -> str | None:
    """Returns the path of compute-sanitizer, found on PATH or in the CUDA toolkit; None if it is missing."""
    homes = filter(None, [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"])
    places = [os.path.join(home, folder) for home in homes for folder in ("bin", "compute-sanitizer")]
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(places))


def check(program: str, tool: str, target: str, case: str = "", *, timeout: float = 600.0) -> Outcome:
    """Runs one tool on one kernel. "clean" needs the tool's summary, and that the kernel's process came to its end."""
    with tempfile.TemporaryDirectory(prefix="verify-sanitize-") as folder:
        log = Path(folder) / "log.txt"
        options = ["--tool", tool, "--log-file", str(log), "--show-backtrace", "no", "--print-limit", "10"]
        if tool == "memcheck":
            options += ["--report-api-errors", "no"]  # PyTorch asks the driver for features that may not exist
        child = start.command("verify.diagnose.sanitize", target, *filter(None, [case]))
        mark = process_tree.new_mark()
        with subprocess.Popen(
            [program, *options, *child],
            env=start.environment({**os.environ, **ENVIRONMENT, process_tree.MARK: mark}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process_tree.end(process, mark)
                return Outcome(tool, "incomplete", f"no end within {timeout:g} s; stopped")
        report = log.read_text(errors="replace") if log.exists() else ""
    counts = [int(each) for each in _SUMMARY.findall(report)]
    if any(counts):
        return Outcome(tool, "findings", "\n".join(re.findall("^=========(.*)$", report, re.MULTILINE)).rstrip())
    if counts and process.returncode == 0:
        return Outcome(tool, "clean")
    last = next((line for line in reversed((report + printed).splitlines()) if line.strip()), "no output")
    missing = "it ended without a summary" if not counts else f"its process ended with exit code {process.returncode}"
    return Outcome(tool, "incomplete", f"{missing}: {last}")


# -- the process that calls the kernel -----------------------------------------------------------------


def cases_of(kernel: Kernel) -> list[Case]:
    """Returns cases at both sides of a block in every dtype."""
    from verify.cases import case_of
    from verify.cases.sizes import shapes_for

    shapes = shapes_for(kernel, _DIMS, 1 << 12)
    return [case_of(kernel, dtype, dims=dims) for dtype in kernel.dtypes for dims in shapes]


def call(kernel: Kernel, case: Case, device: str) -> None:
    """Calls a kernel on a case, forward and backward.

    Operands are made on the CPU and copied, so that only the kernel's own launches are instrumented.
    """
    import torch

    from verify.cases import inputs_of, upstream_of
    from verify.measure.call import call_tensors, gradients_of

    made = inputs_of(kernel.op, case, "cpu")
    inputs = {name: None if value is None else moved(value, device) for name, value in made.items()}
    graph = call_tensors(kernel, inputs, case.params, differentiate=bool(case.upstream))
    like = {name: torch.empty_like(value, device="cpu") for name, value in graph.values.items()}
    upstream = {name: moved(value, device) for name, value in upstream_of(kernel.op, case, like).items()}
    gradients_of(kernel, graph, upstream)
    if device != "cpu":
        torch.cuda.synchronize()


def moved(tensor: Tensor, device: str) -> Tensor:
    """Returns a tensor on a device with its strides and its offset, and no memory behind its last element."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.as_strided((tensor.storage_offset() + reach + 1,), (1,), 0)
    return memory.to(device, copy=True).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def main(target: str, *cases: str) -> None:
    """Runs in the process under the tool. An error ends it with its message as the last line."""
    from verify import backends
    from verify.cases import Case
    from verify.declare.discovery import load
    from verify.declare.target import Target
    from verify.errors import VerifyError

    try:
        backend = backends.select("cuda")
        backends.activate(backend)
        [kernel] = load(Target.parse(target))
        for case in [Case.from_json(each) for each in cases] or cases_of(kernel):
            call(kernel, case, backend.device)
    except VerifyError as error:
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    main(*sys.argv[1:])
