"""Fixtures of the backend tests: the faithful interpreter, in a process whose Triton interprets."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():  # before any test module imports triton
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def faithful() -> None:
    """The mended interpreter is active. A session on a GPU compiles its kernels, and the test is skipped there."""
    from verify import backends

    if backends.select().name == "cuda":
        pytest.skip("this session compiles kernels for a GPU; TRITON_INTERPRET=1 runs this test")
    backends.activate(backends.select("interpreter"))


@pytest.fixture
def shipped(faithful: None) -> Iterator[None]:
    """Triton's own interpreter, unmended, for negative controls."""
    from verify.backends.interpreter import install

    install.uninstall()
    try:
        yield
    finally:
        install.install()


@pytest.fixture
def k(faithful: None) -> types.ModuleType:
    """The kernels; imported only once Triton interprets, and by path, whatever pytest's import mode."""
    path = Path(__file__).parent / "interpreter" / "interpreted_kernels.py"
    if path.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[path.stem])
    return sys.modules[path.stem]
