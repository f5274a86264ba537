"""Reads the numerical settings of PyTorch on a machine, and the machine's fingerprint.

>>> probe("cpu")["matmul_precision"]
'highest'

Nothing here raises: a missing value is the string "absent", with the reason if there is one.
"""

import platform
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from verify.backends import architecture

ABSENT = "absent"
#: A measurement, or the reason why there is none.
Seen = bool | str


def probe(device: str = "cpu") -> dict[str, Any]:
    """Returns the numerical environment of one device, in plain values that are ready for JSON."""
    import torch

    def flag(name: str) -> Seen:
        value = _attempt(lambda: getattr(torch.backends.cuda.matmul, name))
        return value if isinstance(value, bool) else str(value)

    return {
        "device": device,
        "tf32_allowed": flag("allow_tf32"),
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
