"""Measures how a machine treats numbers: flush-to-zero, TF32, reduced-precision sums; and its fingerprint.

>>> probe("cpu")["torch_flushes_results"]
False

A flag shows a setting, a product shows the behaviour, so behaviour is measured if possible. No probe raises: a missing
value is the string "absent", with the reason if there is one.
"""

from __future__ import annotations

import operator
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from verify.backends import architecture
from verify.backends.backend import triton_interprets

ABSENT = "absent"
#: A measurement, or the reason why there is none.
Seen = bool | str


def probe(device: str = "cpu") -> dict[str, Any]:
    """Returns the numerical environment of one device, in plain values that are ready for JSON.

    The Triton figures belong to the backend that is active in this process.
    """
    import torch

    pairs = [_attempt(lambda: _flushes(device, operator.mul)), _attempt(lambda: _triton_flushes(device))]
    of_torch, of_triton = (pair if isinstance(pair, tuple) else (pair, pair) for pair in pairs)  # a reason for both

    def flag(name: str) -> Seen:
        value = _attempt(lambda: getattr(torch.backends.cuda.matmul, name))
        return value if isinstance(value, bool) else str(value)

    return {
        "device": device,
        "torch_flushes_inputs": of_torch[0],
        "torch_flushes_results": of_torch[1],
        "triton_flushes_inputs": of_triton[0],
        "triton_flushes_results": of_triton[1],
        "tf32_allowed": flag("allow_tf32"),
        "tf32_measured": _attempt(lambda: _tf32_measured(device)),
        "matmul_precision": str(_attempt(torch.get_float32_matmul_precision)),
        "bf16_reduced_precision_reduction": flag("allow_bf16_reduced_precision_reduction"),
        "fp16_reduced_precision_reduction": flag("allow_fp16_reduced_precision_reduction"),
        "fingerprint": fingerprint(device),
    }


def fingerprint(device: str = "cpu") -> dict[str, str]:
    """Returns names and versions of everything that can change a result."""
    import torch

    gpu = torch.device(device if device.startswith("cuda") else "cuda") if torch.cuda.is_available() else None
    entries: dict[str, Callable[[], Any]] = {
        "gpu": lambda: gpu and torch.cuda.get_device_name(gpu),
        "arch": lambda: gpu and architecture(gpu),
        "driver": _driver,
        "cuda": lambda: torch.version.cuda,
        "torch": lambda: torch.__version__,
        "triton": lambda: metadata.version("triton"),
        "numpy": lambda: metadata.version("numpy"),
        "python": platform.python_version,
        "platform": platform.platform,
        "cpu": _cpu,
    }
    return {name: str(_attempt(entry)) for name, entry in entries.items()}


def _attempt(measure: Callable[[], Any]) -> Any:
    """Returns the value, or "absent: why", because a failed probe must not stop a run."""
    try:
        value = measure()
    except Exception as error:
        line = str(error).strip().splitlines()
        return f"{ABSENT}: {type(error).__name__}{f': {line[0][:120]}' if line else ''}"
    return ABSENT if value is None else value


# -- measurements ---------------------------------------------------------------------------------

#: (factor, factor): a subnormal argument with a normal product, and normal arguments with a subnormal one.
_SUBNORMAL_INPUT = (2.0**-140, 2.0**20)
_SUBNORMAL_RESULT = (2.0**-100, 2.0**-40)


def _triton_flushes(device: str) -> tuple[Seen, Seen]:
    """Returns whether Triton flushes subnormal inputs, and subnormal results."""
    if not device.startswith("cuda") and not triton_interprets():
        how = "Triton is not imported" if triton_interprets() is None else "Triton compiles"
        reason = f"{ABSENT}: {how} in this process and {device} is not a GPU"
        return reason, reason
    import torch

    from verify.backends.probe_kernel import multiply

    def product(x: Any, y: Any) -> Any:
        out = torch.empty_like(x)
        multiply[(1,)](x, y, out, N=2)
        return out

    return _flushes(device, product)


def _flushes(device: str, multiply: Callable[[Any, Any], Any]) -> tuple[bool, bool]:
    """Returns whether a product of a subnormal input is zero, and one with a subnormal result."""
    import torch

    # Made from bits: in flush mode, a conversion from Python floats could already flush the numbers.
    pairs = zip(_SUBNORMAL_INPUT, _SUBNORMAL_RESULT, strict=True)
    bits = [torch.tensor(struct.unpack("<2i", struct.pack("<2f", *pair)), dtype=torch.int32) for pair in pairs]
    first, second = multiply(*(each.to(device).view(torch.float32) for each in bits)).view(torch.int32).tolist()
    return first == 0, second == 0


def _tf32_measured(device: str) -> bool:
    """Returns True if a float32 matrix product drops the 13 low bits of its operands."""
    import torch

    # Neither tf32 (11 bits) nor a bfloat16 pair (16 bits) holds 1 + 2^-20. Times the identity it must stay the same.
    a = torch.full((64, 64), 1.0 + 2.0**-20, dtype=torch.float32, device=device)
    eye = torch.eye(64, dtype=torch.float32, device=device)
    return bool((a @ eye != a).any().item())


# -- fingerprint ----------------------------------------------------------------------------------


def _driver(loaded: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Returns the driver's version, from the kernel module's file: nvidia-smi, asked next, may take seconds."""
    text = loaded.read_text() if loaded.exists() else ""
    if found := re.search(r"NVRM version:.*?\s(\d{3,}(?:\.\d+)+)\s", text):
        return found[1]
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        out = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        return out.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return text.splitlines()[0] if text else None


def _cpu() -> str | None:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if sys.platform == "linux" and info.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine() or None
