"""Runs compute-sanitizer on a kernel: tools of the CUDA toolkit that observe every memory access on the GPU.

The guard bands of the memory laws find writes outside of a tensor. They cannot find a read outside of a tensor, a race
in shared memory or a barrier that some threads miss. compute-sanitizer instruments the kernel's machine code and finds
them. It runs a separate process, which calls the kernel, forward and backward, on a few shapes around the edges of
blocks and in a few layouts. This module starts that process and reads the report.

PyTorch's caching allocator would hide most errors. It returns parts of large allocations, so a read past the end of a
tensor reads another tensor, and memory counts as initialised after its first use. So the process runs without it.
Operands are made on the CPU and copied, so that only the kernel's own launches are instrumented.

The command of the process is `python -m verify.diagnose.sanitize REQUEST.json ANSWER.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from verify.ops.geometry import ByGeometry, Shapes
from verify.workers import process_tree, start

if TYPE_CHECKING:
    from torch import Tensor

    from verify.cases import Case
    from verify.declare.declaration import Kernel

TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONFAULTHANDLER": "1"}
PRINTED = 100  # the tool prints at most this many findings, and counts all of them


@dataclass(frozen=True)
class Finding:
    """Holds one finding of a tool, with the first place where it occurred. `times` counts equal findings."""

    tool: str
    what: str
    kernel: str
    location: str
    thread: str = ""
    address: str = ""
    times: int = 1


@dataclass(frozen=True)
class Report:
    """Holds the content of a tool's log. `total` is the tool's own count, None if the summary is missing."""

    findings: tuple[Finding, ...]
    total: int | None
    remarks: tuple[str, ...]  # lines of the tool about itself


@dataclass(frozen=True)
class Outcome:
    """Holds the outcome of one tool on one kernel."""

    kernel: str
    tool: str
    status: Literal["clean", "findings", "incomplete"]
    findings: tuple[Finding, ...]
    cases: int
    message: str = ""
    seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """Returns the outcome as a JSON object."""
        return asdict(self)


# -- reading a log -------------------------------------------------------------------------------------

_LINE = re.compile(r"^=========(?: (?P<indent> *)(?P<text>\S.*))?$")
_SUMMARY = re.compile(r"(?:ERROR|INITCHECK|SYNCCHECK|MEMCHECK) SUMMARY: (\d+) errors?$")
_RACES = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")
_KINDS = re.compile(
    r"^(?:(?:Error|ERROR|Warning|WARNING|Info|INFO): )?"
    r"(?:Invalid |Uninitialized |Barrier error|Race reported|Potential |Malloc/Free|Unused |Program hit |Leaked )"
    r"|(?:is misaligned|hardware exception|Illegal instruction|Out-of-range|stack overflow)",
    re.IGNORECASE,
)
_ABOUT_ITSELF = re.compile(r"^(?:Error|ERROR|Internal|Fatal|Target application|Warning|WARNING|Unable|Failed)")
_PLACE = re.compile(r"(?:^|access )at (?P<place>.+?)(?: and (?:Read|Write|Atomic) access.*)?(?: \[\d+ hazards?\])?$")


def parse(tool: str, log: str) -> Report:
    """Returns the findings in a log of compute-sanitizer. Equal findings are merged."""
    found: dict[tuple[str, str, str], Finding] = {}
    pending: list[str] = []
    total: int | None = None
    remarks: list[str] = []

    def close() -> None:
        if not pending:
            return
        finding = _finding(tool, pending)
        key = (finding.what, finding.kernel, finding.location)
        known = found.get(key)
        found[key] = finding if known is None else replace(known, times=known.times + 1)
        pending.clear()

    for line in log.splitlines():
        match = _LINE.match(line.rstrip())
        if match is None:
            continue
        text, indented = match["text"] or "", len(match["indent"] or "") > 0
        if pending and (indented or text.startswith(("at ", "by thread", "Address", "and "))):
            pending.append(text)
            continue
        close()
        summary = _SUMMARY.search(text) or _RACES.search(text)
        if summary is not None:
            total = (total or 0) + int(summary[1])
        elif _KINDS.search(text):
            pending.append(text)
        elif _ABOUT_ITSELF.match(text):
            remarks.append(text)
    close()
    return Report(tuple(found.values()), total, tuple(remarks))


def _finding(tool: str, lines: Sequence[str]) -> Finding:
    what = re.sub(r"^(?:Error|ERROR|Warning|WARNING): ", "", lines[0])
    kernel, location = "", ""
    for line in lines:
        match = _PLACE.search(line)
        if match is not None:
            kernel, location = _placed(match["place"])
            break
    frames = [line.partition("Device Frame:")[2].strip() for line in lines if "Device Frame:" in line]
    if frames:  # the place above may be an inlined function; the last frame is the kernel
        kernel = _placed(frames[-1])[0] or kernel
    thread = next((line.removeprefix("by ") for line in lines if line.startswith("by thread")), "")
    address = next((line.removeprefix("Address ") for line in lines if line.startswith("Address")), "")
    what = what.split(" at ")[0]
    if what.startswith("Race"):
        accesses = re.findall(r"(Read|Write|Atomic) access", " ".join(lines))
        what = f"Race between {' and '.join(item.lower() for item in accesses[:2])} access"
    return Finding(tool, what, kernel, location, thread, address)


def _placed(place: str) -> tuple[str, str]:
    """Returns (kernel, location) of a place in a log.

    Examples are "kernel(args)+0x130 in file.cu:8" and "0x160 in file.cu:8:kernel(args)".
    """
    head, _, tail = place.partition(" in ")
    offset = re.match(r"^0x[0-9a-fA-F]+$", head)
    if offset:
        file = re.match(r"^(?P<where>.+?:\d+):(?P<kernel>.+)$", tail)
        if file:
            return file["kernel"], f"{file['where']} ({head})"
        return tail, head
    name = re.match(r"^(?P<kernel>.+?)(?:\+|:)(?P<offset>0x[0-9a-fA-F]+)$", head)
    if name:
        return name["kernel"], f"{tail} (+{name['offset']})" if tail else f"+{name['offset']}"
    return head, tail


# -- running a tool ------------------------------------------------------------------------------------


def executable() -> str | None:
    """Returns the path of compute-sanitizer, found on PATH or in the CUDA toolkit; None if it is missing."""
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    places = [os.path.join(home, "bin") for home in homes if home]
    places += [os.path.join(home, "compute-sanitizer") for home in homes if home]
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(places))


def command(program: str, tool: str, log: str, child: Sequence[str]) -> list[str]:
    """Returns the command line of one tool."""
    options = ["--tool", tool, "--log-file", log, "--print-limit", str(PRINTED), "--show-backtrace", "no"]
    options += ["--target-processes", "application-only"]
    if tool == "memcheck":
        options += ["--report-api-errors", "no"]  # PyTorch asks the driver for features that may not exist
    return [program, *options, *child]


def check(
    program: str, tool: str, target: str, kernel: str, *, dtypes: Sequence[str] = (), timeout: float = 600.0
) -> Outcome:
    """Runs one tool on one kernel."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="verify-sanitize-") as folder:
        request, answer, log = (Path(folder) / name for name in ("request.json", "answer.json", "log.txt"))
        request.write_text(json.dumps({"target": target, "dtypes": list(dtypes)}))
        child = start.command("verify.diagnose.sanitize", str(request), str(answer))
        code, errors = _run(command(program, tool, str(log), child), timeout)
        report = parse(tool, log.read_text(errors="replace") if log.exists() else errors)
        done = json.loads(answer.read_text()) if answer.exists() else None
    outcome = _outcome(kernel, tool, report, done, code, errors, timeout)
    return replace(outcome, seconds=time.monotonic() - started)


def _run(arguments: Sequence[str], timeout: float) -> tuple[int | None, str]:
    """Runs a command. Returns its exit code and output; the code is None if the time ran out."""
    mark = process_tree.new_mark()
    process = subprocess.Popen(
        arguments,
        env=start.environment({**os.environ, **ENVIRONMENT, process_tree.MARK: mark}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=timeout)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        process_tree.end(process, mark)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return None, process.communicate(timeout=process_tree.END_SECONDS)[0]
        return None, ""


def _outcome(
    kernel: str,
    tool: str,
    report: Report,
    done: dict[str, Any] | None,
    code: int | None,
    said: str,
    timeout: float,
) -> Outcome:
    """Combines the log, the process's own answer and its exit code. "clean" needs all three."""
    cases = 0 if done is None else int(done["cases"])
    findings = report.findings
    if report.total and not findings:
        findings = (Finding(tool, f"{report.total} findings that were not printed", "", ""),)
    if findings:
        return Outcome(kernel, tool, "findings", findings, cases)
    tail = next((line for line in reversed(said.splitlines()) if line.strip()), "no output")
    if code is None:
        reason = f"no end within {timeout:g} s; stopped"
    elif report.total is None:
        reason = f"{tool} gave no summary: {'; '.join(report.remarks) or tail}"
    elif done is None:
        reason = f"the process that calls the kernel ended with exit code {code} before it was done: {tail}"
    elif done["failure"]:
        reason = str(done["failure"])
    elif not cases:
        reason = "no case was run"
    else:
        return Outcome(kernel, tool, "clean", (), cases)
    return Outcome(kernel, tool, "incomplete", (), cases, reason)


# -- the process that calls the kernel -----------------------------------------------------------------

# Below, at and beyond the usual sizes of blocks; the last block is never full.
_DIMS: ByGeometry[Shapes] = ByGeometry(
    elementwise=((1,), (1023,), (1025,), (7, 129), (3, 5, 33)),
    rowwise=((3, 1), (5, 127), (2, 1025), (2, 4097)),
    contraction=((17, 33, 9), (65, 129, 33)),
)
_LAYOUTS = ("padded", "transposed", "offset")


def cases_of(kernel: Kernel, dtype: str) -> list[Case]:
    """Returns every shape, contiguous. Adds one shape in other layouts if the kernel promises to accept them."""
    from verify.cases import case_of
    from verify.cases.sizes import shapes_for

    def case(dims: tuple[int, ...], layouts: dict[str, str]) -> Case:
        return case_of(kernel, dtype, dims=dims, layouts=layouts)

    dims = shapes_for(kernel, _DIMS, 1 << 12)
    cases = [case(item, {}) for item in dims]
    arriving = ["d" + output for output in kernel.outputs] if kernel.differentiable else []
    matrix = next((item for item in dims if len(item) > 1), dims[-1])
    if arriving:
        cases.append(case(matrix, dict.fromkeys(arriving, "expanded last")))
    if kernel.layouts == "any":
        cases += [case(matrix, dict.fromkeys([*kernel.operands, *arriving], layout)) for layout in _LAYOUTS]
    return cases


def exercise(kernel: Kernel, dtypes: Sequence[str], device: str) -> int:
    """Calls a kernel on all its cases, forward and backward. Returns the number of cases."""
    import torch

    from verify.cases import inputs_of, upstream_of
    from verify.measure.call import call_tensors, gradients_of

    count = 0
    for dtype in dtypes or kernel.dtypes:
        for case in cases_of(kernel, dtype):
            made = inputs_of(kernel.op, case, "cpu")
            inputs = {name: None if value is None else moved(value, device) for name, value in made.items()}
            graph = call_tensors(kernel, inputs, case.params, differentiate=bool(case.upstream))
            like = {name: torch.empty_like(value, device="cpu") for name, value in graph.values.items()}
            upstream = {name: moved(value, device) for name, value in upstream_of(kernel.op, case, like).items()}
            gradients_of(kernel, graph, upstream)
            if device != "cpu":
                torch.cuda.synchronize()
            count += 1
    return count


def moved(tensor: Tensor, device: str) -> Tensor:
    """Returns a tensor on a device with its strides and its offset, and no memory behind its last element."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.as_strided((tensor.storage_offset() + reach + 1,), (1,), 0)
    return memory.to(device, copy=True).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def main(arguments: list[str]) -> int:
    """Runs in the process under the tool: calls the kernel, and writes how many cases it finished."""
    from verify import backends
    from verify.declare.discovery import load
    from verify.declare.target import Target
    from verify.errors import VerifyError

    request = json.loads(Path(arguments[0]).read_text())
    backend = backends.select("cuda")
    backends.activate(backend)
    answer: dict[str, Any] = {"cases": 0, "failure": ""}
    try:
        [kernel] = load(Target.parse(request["target"]))
        wanted = [dtype for dtype in kernel.dtypes if not request["dtypes"] or dtype in request["dtypes"]]
        answer["cases"] = exercise(kernel, wanted, backend.device) if wanted else 0
    except VerifyError as error:
        answer["failure"] = str(error)
    Path(arguments[1]).write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
