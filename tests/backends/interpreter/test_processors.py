"""What `make test` says here it says on every x86-64 processor: the tests that could tell them apart, without AVX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.backends.interpreter.processors import without_vectors

ROOT = Path(__file__).parents[3]
#: What shows figures of PyTorch's CPU kernels, and the certificate, whose references are PyTorch's float64 functions.
TESTS = [
    "tests/docs/test_readme.py::test_the_table_is_what_the_command_prints",
    "tests/cli/test_failure_docs.py",
    "tests/truth/test_certificate.py",
    "tests/backends/interpreter/test_functions.py",
    "tests/backends/interpreter/test_evaluated.py::test_proposals_are_far_closer_than_is_assumed",
]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="it switches instruction sets of the CPU off")
def test_what_depends_on_the_processor_passes_without_vector_instructions() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=without_vectors())
    assert done.returncode == 0, done.stdout
