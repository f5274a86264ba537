"""Starts a module of verify in a new process: `python -P start.py MODULE ARGUMENT...`.

A user's folder may hold a file copy.py. Python's own modules come before all folders of users here, so such a file is
never executed in their place. verify itself is imported from beside this file, so its folder needs no place at all.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

PATH = "VERIFY_PYTHONPATH"  # holds PYTHONPATH for a process that is being started: Python would put it first
_LIBRARY = os.path.dirname(os.__file__)


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module of verify."""
    return [sys.executable, "-P", __file__, module, *arguments]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns variables for a process that `command` starts."""
    return {PATH if name == "PYTHONPATH" else name: value for name, value in variables.items()}


def put_on_path(folders: Iterable[str]) -> None:
    """Puts folders of users on sys.path: after Python's own modules, before installed packages and earlier folders."""
    own = [_LIBRARY, os.path.join(_LIBRARY, "lib-dynload")]
    place = max((number for number, path in enumerate(sys.path, 1) if path in own), default=0)
    sys.path[place:place] = [folder for folder in dict.fromkeys(folders) if folder not in sys.path]


def import_torch(*, identifies_triton: bool) -> None:
    """Imports PyTorch for all forks of this process.

    Args:
        identifies_triton: Triton reads its own 400 MB beside the import. Otherwise every fork that compiles a kernel
            reads them, for seconds.
    """
    reading = threading.Thread(target=_identify_triton)
    if identifies_triton:
        reading.start()
    gc.disable()  # imported objects stay: walking them is a tenth of the import
    try:
        with _byte_code():
            import torch  # noqa: F401
    finally:
        gc.enable()
    if identifies_triton:
        reading.join()


@contextmanager
def _byte_code() -> Iterator[None]:
    """Lets Python keep the byte code of PyTorch in verify's cache if its installation has none.

    Images often have none, and forbid to write any. Compiling PyTorch's source takes 2.5 s of each start.
    """
    from verify.records.part_store import cache

    found, before = importlib.util.find_spec("torch"), (sys.pycache_prefix, sys.dont_write_bytecode)
    if found and found.origin and found.cached and not os.path.exists(found.cached):
        with suppress(RuntimeError):  # the user has no home folder
            at = os.stat(found.origin).st_mtime_ns  # an image may give all versions of a file the same time
            sys.pycache_prefix = str(cache("byte-code") / f"torch-{importlib.metadata.version('torch')}-{at}")
            sys.dont_write_bytecode = False
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before


def _identify_triton() -> None:
    with suppress(Exception):  # a failure is harmless: Triton then reads it later
        from triton.runtime.cache import triton_key

        triton_key()


def _main() -> None:
    import runpy

    place = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__init__.py")
    spec = importlib.util.spec_from_file_location("verify", place)
    assert spec is not None and spec.loader is not None
    sys.modules["verify"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if (moved := os.environ.pop(PATH, "")) != "":
        os.environ["PYTHONPATH"] = moved
        put_on_path(os.path.abspath(each) for each in moved.split(os.pathsep) if each)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
