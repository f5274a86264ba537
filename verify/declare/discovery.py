"""Finds declarations: imports a file or a module once and returns its kernels."""

import hashlib
import importlib
import importlib.util
import os
import shlex
import sys
import traceback
from pathlib import Path
from types import ModuleType

from verify import start
from verify.declare.calling import refused
from verify.declare.declaration import Kernel, declared_lines
from verify.declare.standin import stand_in
from verify.declare.target import Target
from verify.errors import UsageError, said_by


def load(target: Target, failed: list[UsageError] | None = None) -> list[Kernel]:
    """Returns the kernels of a target, in the order of their definition.

    Adds the refused declarations of a whole file to `failed`; without it, raises the first.
    """
    module = imported(target)
    errors = {
        label: UsageError(f"{target.of(label)}: {error.message.removeprefix(f'kernel {label!r}: ')}", hint=error.hint)
        for label, error in refused.get(module.__name__, {}).items()
    }
    if target.kernel in errors:
        raise errors[target.kernel]
    found = [value for value in vars(module).values() if isinstance(value, Kernel) and value.module == module.__name__]
    unique = list({id(item): item for item in found}.values())
    names = [item.name for item in unique]
    for label, lines in declared_lines.get(module.__name__, {}).items():
        if len(lines) > 1 and isinstance(getattr(module, label, None), Kernel):
            places = " and ".join(map(str, sorted(lines)))
            raise UsageError(
                f"{target.source} declares two kernels as {label!r}, in lines {places}; only the last would be "
                "measured",
                hint=f"def another_{label}(...)",
            )
    for label in names:
        if names.count(label) > 1:
            text = f"{target.source} declares two kernels named {label!r}; names must differ"
            raise UsageError(text, hint='@verify.kernel(op=..., name="another_name")')
    if errors and target.kernel is None:
        if failed is None or not unique:
            raise next(iter(errors.values()))
        failed += errors.values()
    if not unique:
        raise UsageError(
            f"{target.source} declares no kernel",
            hint="decorate a function with @verify.kernel(op=...); `verify list --ops` names the ops",
        )
    if target.kernel is None:
        return unique
    chosen = [item for item in unique if item.name == target.kernel]
    label, separator, form = target.kernel.rpartition("@")
    if separator and not chosen:
        chosen = [stand_in(item, form) for item in unique if item.name == label]
    if not chosen:
        text = f"{target.source} has no kernel {target.kernel!r}; it declares: {', '.join(names)}"
        raise UsageError(text, hint=f"verify list {target.source}")
    return chosen


def imported(target: Target) -> ModuleType:
    """Imports the module of a target. Raises UsageError with the next command if that fails."""
    target.demand_source()
    reach(target)
    shown = target.source
    try:
        if target.is_file:
            return _import_file(Path(shown).resolve(), shown)
        refused.setdefault(shown, {})
        return importlib.import_module(shown)
    except UsageError as error:  # of a declaration: its message may not name the file
        if shown in error.message:
            raise
        raise UsageError(f"{shown}: {error.message}", hint=error.hint) from error
    except Exception as error:
        unknown = error.name if isinstance(error, ModuleNotFoundError) and not target.is_file else None
        if unknown and (shown == unknown or shown.startswith(unknown + ".")):
            text = f"no module named {shown!r}"
            raise UsageError(text, hint="a file is named with its ending: verify run accuracy.py") from error
        raise _import_failure(shown, error) from error


def reach(target: Target) -> None:
    """Puts the folders from which a target imports on sys.path."""
    folders = [Path.cwd()]
    if target.is_file:
        path = Path(target.source).resolve()
        folders = [next((p for p in path.parents if (p / "pyproject.toml").exists()), path.parent), path.parent]
    start.put_on_path(map(str, reversed(folders)))


def _import_file(path: Path, shown: str) -> ModuleType:
    """Imports a file as a module, once. Raises UsageError if it changes meanwhile."""
    # A name of its own, so that two accuracy.py in two folders are two modules.
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    label = f"verify_target_{path.stem.replace('.', '_')}_{digest}"
    if label in sys.modules:
        return sys.modules[label]
    spec = importlib.util.spec_from_file_location(label, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{shown} cannot be imported as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module
    declared_lines.pop(label, None)  # of a failed import, before the user fixed the file
    refused[label] = {}
    try:
        before = path.read_bytes()
        spec.loader.exec_module(module)
        if path.read_bytes() != before:
            raise UsageError(f"{shown} changed while it was imported", hint="the same command again")
    except Exception:
        del sys.modules[label]
        if refused[label]:  # the file goes on with an object in the kernel's place
            raise next(iter(refused[label].values())) from None
        raise
    return module


def _import_failure(shown: str, error: BaseException) -> UsageError:
    """Returns the error of a failed import, with the place in the file."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}:{error.lineno})"
    text = " ".join(said_by(error).split()) or "no message"
    hint = f"python {shlex.quote(shown)}" if shown.endswith(".py") else f"python -c {shlex.quote(f'import {shown}')}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        hint = f"install {package} for {sys.executable}; where it may be missing, import it inside the function and "
        hint += f'declare requires="{package}"'
    return UsageError(f"{shown} fails on import: {type(error).__name__}: {text}{place}", hint=hint)
