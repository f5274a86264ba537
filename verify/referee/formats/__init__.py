"""Formats of problems, in modules: rules.toml recognises a problem, `problems` reads it (CONTRIBUTING.md)."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from verify.errors import UsageError
from verify.referee.plan import RULES, Plan

if TYPE_CHECKING:
    from verify.declare.declaration import Kernel


def named(name: str) -> Any:
    """Returns the module of a format."""
    row = next(row for row in RULES["format"] if row["name"] == name)
    return importlib.import_module(f"{__name__}.{row.get('module', name)}")


def format_of(problem: str) -> str:
    """Returns the name of the first format that a problem has. Raises UsageError if it has none."""
    path, separator, _ = problem.partition("::")
    for row in RULES["format"]:
        file = Path(path, row.get("file", ""))
        found = separator if row.get("named") else path.endswith(row.get("ends", "")) and defines(file, *row["holds"])
        if found and Path(path, row.get("beside", "")).exists():
            return str(row["name"])
    known = "; ".join(f"{row['name']}: {row['form']}" for row in RULES["format"])
    raise UsageError(f"{problem} is no problem that verify knows. The formats are {known}", hint="docs/judge.md")


def place(name: str, problem: str, solution: Path, scratch: Path) -> str:
    """Copies a solution into its scratch folder under a neutral name, and returns that name."""
    placed: Callable[[str, Path, Path], str] = getattr(named(name), "place", copied)
    try:
        return placed(problem, solution, scratch)
    except UsageError:
        raise
    except Exception as error:  # a solution may hold anything
        said = f"{type(error).__name__}: {error}"[:200]
        raise UsageError(f"{solution.name} is no solution of a problem in the format {name}: {said}") from None


def copied(problem: str, solution: Path, scratch: Path) -> str:
    """Copies a file, or a folder with a file solution.py."""
    if solution.is_dir():
        shutil.copytree(solution, scratch, dirs_exist_ok=True)
        return "solution.py"
    shutil.copyfile(solution, scratch / "solution.py")
    return "solution.py"


def kernels_of(path: str, module: str, file: str) -> list[Kernel]:
    """Returns the kernels of a plan, for the file that `verify judge` wrote."""
    from verify.referee.problem import declared

    plan = msgspec.json.decode(Path(path).read_bytes(), type=Plan)
    before = list(sys.path)
    try:
        return declared(plan, partial(named(plan.format).problems, plan), module, file)
    finally:  # solutions may lie beside the problem: none of them may be in the place of a module of the judge
        sys.path[:] = before


def imported(path: Path, label: str = "") -> ModuleType:
    """Returns the module of a file, which may import its neighbours. A problem's has a name that no other file has."""
    label = label or f"problem_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(label, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported as a Python file")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module
    spec.loader.exec_module(module)
    return module


def defines(path: Path, *texts: str) -> bool:
    """True if a file has each of these texts."""
    try:
        source = path.read_text("utf-8", "replace")
    except OSError:
        return False
    return all(text in source for text in texts)
