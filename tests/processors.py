"""The forms that PyTorch's numerics have on other processors, as environments of a process.

MKL, ATen, oneDNN, NumPy and the C library choose their code by the processor, and each choice has other last bits.
`python tests/processors.py COMMAND ...` runs a command as on a processor that has no more than every x86-64 has had
since 2009. `python tests/processors.py --each COMMAND ...` runs it in all forms, on the tests below; `make
test-machines` does so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from numpy._core import _multiarray_umath as numpy_core

_GLIBC = "AVX512F AVX512VL AVX512BW AVX512DQ AVX512CD AVX2 AVX FMA FMA4".split()
FORMS = {
    "no AVX and no FMA": {
        "ATEN_CPU_CAPABILITY": "default",
        "NPY_DISABLE_CPU_FEATURES": " ".join(numpy_core.__cpu_dispatch__),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in _GLIBC),
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
    "ATen with AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "ATen without vectors": {"ATEN_CPU_CAPABILITY": "default"},
    "MKL for every processor": {"MKL_CBWR": "COMPATIBLE"},
    "MKL and oneDNN with AVX2": {"MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
# They compare with results of PyTorch, show them, or judge them.
TESTS = (
    "tests/backends/interpreter/test_evaluated.py",
    "tests/backends/interpreter/test_functions.py",
    "tests/cli/test_failure_docs.py",
    "tests/diagnose/test_explain.py",
    "tests/docs/test_readme.py",
    "tests/laws/test_stochastic.py",
    "tests/measure/test_assertions.py",
    "tests/measure/test_kernel.py",
    "tests/measure/test_trivial.py",
    "tests/referee/test_judging.py",
    "tests/search/hunt/test_graphs.py",
)


def without_vectors() -> dict[str, str]:
    """The environment of this process with AVX, AVX2, FMA and AVX-512 switched off."""
    return os.environ | FORMS["no AVX and no FMA"]


def each(command: Sequence[str]) -> int:
    """Runs a command on the tests in each form, says which failed, and returns the exit code of the last that did."""
    code = 0
    for name, form in FORMS.items():
        print(f"== {name}: {' '.join(f'{key}={value}' for key, value in form.items())}", flush=True)
        code = subprocess.run([*command, *TESTS], env=os.environ | form).returncode or code
    return code


if __name__ == "__main__":
    if sys.argv[1] == "--each":
        sys.exit(each(sys.argv[2:]))
    os.execvpe(sys.argv[1], sys.argv[1:], without_vectors())
