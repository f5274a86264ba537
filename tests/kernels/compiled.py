"""What Triton compiles for an H200, without one: in a process where the interpreter is not asked for."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def printed(code: str, cache: pathlib.Path, timeout: float) -> str:
    """What a script prints that imports kernels; Triton's cache is in a folder of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout
