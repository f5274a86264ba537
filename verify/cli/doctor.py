"""Show the backend, versions, settings, and what is missing.

Show which backend runs kernels here, the versions and settings that every record carries, and what is
missing with the step to get it.

    verify doctor
    verify doctor --json -

--backend
--json: what was found
"""

import argparse
import importlib.util
import shutil
from typing import Any

import msgspec

from verify import backends
from verify.cli import exits, sinks
from verify.workers import process
from verify.workers.requests import Environment

# Name, purpose, how to get it.
_TOOLS = (
    ("nvcc", "builds the CUDA C++ kernels", "install the CUDA toolkit"),
    ("compute-sanitizer", "checks memory accesses on a GPU", "install the CUDA toolkit"),
    ("g++", "torch.compile needs a C++ compiler on a CPU", "apt-get install g++"),
)
_PACKAGES = (
    ("torch", "holds tensors, and defines what a kernel computes", "pip install torch"),
    ("triton", "runs Triton kernels", "pip install triton"),
    ("flint", "Arb: the second route to every exact value", "pip install python-flint"),
    ("gmpy2", "makes mpmath faster", "pip install gmpy2"),
    ("pytest", "tries laws as tests", "pip install pytest"),
    ("distributed", "spreads work over a Dask cluster", "pip install distributed"),
)
_NEEDED = ("torch", "flint")


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    wants_triton = backends.named(options.backend).triton if options.backend else backends.gpu_expected()
    needed = (*_NEEDED, "triton") if wants_triton else _NEEDED
    lacking = [each for each in _PACKAGES if importlib.util.find_spec(each[0]) is None]
    lacking += [each for each in _TOOLS if shutil.which(each[0]) is None]
    missing = [{"name": name, "why": why, "how": how, "needed": name in needed} for name, why, how in lacking]
    about: dict[str, Any] = {"backend": None}
    broken = any(item["needed"] for item in missing)
    if not broken:
        with process.Worker(options.backend) as worker:
            about = msgspec.to_builtins(worker.ask(Environment(), timeout=process.START_SECONDS))
    # a file of the assertion library of that name
    about["other_verify"] = importlib.util.find_spec("verify.base") is not None
    sinks.deliver_data(options, {**about, "missing": missing}, _lines(about, missing))
    return exits.INCOMPLETE if broken else exits.PASS


def _lines(about: dict[str, Any], missing: list[dict[str, Any]]) -> list[str]:
    lines = [f"backend   {about['backend'] or 'none'}" + (f" on {about['device']}" if about["backend"] else "")]
    for name, value in about.get("environment", {}).items():
        if isinstance(value, dict):
            lines += [name, *(f"    {key:<34} {item}" for key, item in value.items())]
        else:
            lines.append(f"{name:<9} {value}")
    if about["other_verify"]:
        lines.append("another distribution, verify, is installed in the same folder: each replaces files of the other")
    for item in missing:
        mark = "MISSING " if item["needed"] else "optional"
        lines.append(f"{mark}  {item['name']}: {item['why']}. Get it: {item['how']}")
    if about["backend"] == backends.Interpreter.name:
        lines.append("No GPU: kernels run on the Triton interpreter, and results are labelled so.")
    if about["backend"] == backends.Cpu.name:
        lines.append("PyTorch code runs on the CPU, and results are labelled so. Triton kernels need triton or a GPU.")
    needed = [item["how"] for item in missing if item["needed"]]
    if needed:
        return lines + sinks.ending("incomplete: something needed is missing", needed[0])
    return lines + sinks.ending("ready", "verify run")
