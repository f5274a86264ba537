"""Starts a module of verify in a new process: `python -P start.py MODULE ARGUMENT...`.

A user's folder may hold a file copy.py. Python's own modules come before all folders of users here, so such a file is
never executed in their place. verify itself is imported from beside this file, so its folder needs no place at all.
"""

import os
import sys
from collections.abc import Iterable, Mapping

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


def _main() -> None:
    import importlib.util
    import runpy

    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__init__.py")
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
