"""Reads targets and folders of a command line, with their configured defaults, and rebuilds the command."""

import argparse
import os
import shlex
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

from verify.cli.options import folder_path, seconds, written_path
from verify.declare.config import Config
from verify.errors import UsageError


def targets(options: argparse.Namespace, settings: Config) -> list[str]:
    """Returns the targets of the command line, else the configured ones. For the latter, it changes to their folder."""
    if options.targets:
        return list(options.targets)
    if not settings.kernels:
        then = f"{options.command.prog} FILE.py, where FILE.py declares a kernel with @verify.kernel"
        raise UsageError("no target given and no [tool.verify] kernels in pyproject.toml", hint=then)
    enter(options, settings.root)
    return list(settings.kernels)


def enter(options: argparse.Namespace, root: Path) -> None:
    """Changes to the folder that configured targets are relative to. First makes the paths of options absolute."""
    if root.resolve() == Path.cwd():
        return
    for action in options.command._actions:
        path = getattr(options, action.dest, None)
        if action.type in _WRITTEN and path and path != "-":
            setattr(options, action.dest, os.path.abspath(path))
    os.chdir(root)


def bounds_folder(options: argparse.Namespace, settings: Config, *, created: bool = False) -> Path:
    """Returns the folder of the bounds. Raises UsageError if --bounds names a missing one, unless `created`."""
    if options.bounds is None:
        return settings.bounds
    folder = Path(options.bounds)
    if not created and not folder.is_dir():
        hint = "verify bounds propose RUN.json"
        raise UsageError(f"--bounds names a folder; there is none at {folder}", hint=hint)
    return folder


def arguments(options: argparse.Namespace, function: Callable[..., Any], **others: Any) -> dict[str, Any]:
    """Maps the parameters of a command's public function to the options of their names, and adds `others`."""
    singular = {"dtypes": "dtype", "results": "result", "models": "model"}
    names = {name: singular.get(name, name) for name in signature(function).parameters}
    given = {name: getattr(options, option) for name, option in names.items() if hasattr(options, option)}
    del given["targets"]  # they may be the configured ones
    return given | {"command": again(options)} | others


# -- the command again --------------------------------------------------------------------------------------

# No figure depends on the place of results, on waiting times and on the number of workers.
_WRITTEN = (written_path, folder_path)
_APART = ("keep", "pin", "github", "jobs", "gpus", "scheduler", "timeout", "budget")


def again(options: argparse.Namespace, *, everything: bool = False) -> str:
    """Returns the command as it was typed: the options on which its figures depend, or `everything`."""
    return f"verify {shlex.join(words(options, everything=everything))}"


def words(options: argparse.Namespace, *, everything: bool = False) -> list[str]:
    """Returns the same as words, without `verify`."""
    command: argparse.ArgumentParser = options.command
    found = command.prog.split()[1:]
    for action in command._actions:
        value = getattr(options, action.dest, action.default)
        apart = action.type in _WRITTEN or action.dest in _APART
        if value != action.default and (everything or not apart):
            found += _typed(action, value)
    return found


def _typed(action: argparse.Action, value: Any) -> list[str]:
    texts = [_text(action, item) for item in (value if isinstance(value, list) else [value])]
    flag = next(iter(action.option_strings), "")
    if action.nargs == 0 or not flag:
        return [flag] if flag else texts
    # After an equals sign, a value that begins with a minus, such as -1:0.5, is not taken for an option.
    pairs = [[f"{flag}={text}"] if text.startswith("-") else [flag, text] for text in texts]
    return [word for pair in pairs for word in pair]


def _text(action: argparse.Action, value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if action.type is seconds:
        return f"{value:g}s"
    return repr(value) if isinstance(value, float) else str(value)
