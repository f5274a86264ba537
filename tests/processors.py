"""The environment of a process for which the processor has no more than every x86-64 has had since 2009.

What NumPy, PyTorch, the C library, MKL and oneDNN choose by the processor they then choose as on such a machine.
`python tests/backends/interpreter/processors.py COMMAND ...` runs a command so.
"""

from __future__ import annotations

import os
import sys

from numpy._core import _multiarray_umath as numpy_core

_GLIBC = "AVX512F AVX512VL AVX512BW AVX512DQ AVX512CD AVX2 AVX FMA FMA4".split()


def without_vectors() -> dict[str, str]:
    """The environment of this process with AVX, AVX2, FMA and AVX-512 switched off."""
    return os.environ | {
        "ATEN_CPU_CAPABILITY": "default",
        "NPY_DISABLE_CPU_FEATURES": " ".join(numpy_core.__cpu_dispatch__),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in _GLIBC),
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    }


if __name__ == "__main__":
    os.execvpe(sys.argv[1], sys.argv[1:], without_vectors())
