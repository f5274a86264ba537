"""Finds the lines of a file that declare and implement a kernel, by reading: nothing is imported."""

import ast
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from verify.declare.target import Target

MOST_MODULES = 5  # that import a name from one another
Place = tuple[str, int]  # a file and a line in it


def declared_at(target: Target) -> Place:
    """Returns the file of a kernel and the line of its declaration, or line 1. Reads the file and imports nothing."""
    file = target.file or _file_of_module(target.source)
    found = _declaration(_tree(file), target)
    return str(file), 1 if found is None else min(each.lineno for each in (found, *_calls(found)))


def implemented_at(target: Target) -> Place | None:
    """Returns where the function that a declaration calls is defined; None without one below this folder.

    Follows the imports of the declaring file, and of modules that import the name again.
    """
    file = target.file or _file_of_module(target.source)
    tree = _tree(file)
    if (found := _declaration(tree, target)) is None:
        return None
    inner = [*ast.walk(found)]
    for call in reversed([each for each in inner if isinstance(each, ast.Call)]):  # the lines of decorators come first
        for called in (call.func, *call.args):
            named = ast.unparse(called) if isinstance(called, ast.Name | ast.Attribute) else ""
            place = _defined([*inner, *tree.body], named)
            if named.partition(".")[0] != "verify" and place is not None and _is_own(Path(place[0])):
                return place
    return None


def _is_own(file: Path) -> bool:
    """True if a file lies below this folder and is no part of an installed package."""
    path = file.resolve()
    return path.is_relative_to(Path.cwd()) and not {"site-packages", "dist-packages"} & {*path.parts}


def _tree(file: Path) -> ast.Module:
    """Returns the syntax tree of a file; an empty one if it cannot be read."""
    with suppress(OSError, SyntaxError, ValueError):
        return ast.parse(file.read_bytes())
    return ast.Module([], [])


def _declaration(tree: ast.Module, target: Target) -> ast.FunctionDef | ast.Assign | None:
    """Returns the statement that declares a kernel. The last one with a call counts, one with name= before others."""
    label = (target.kernel or "").partition("@")[0]
    found: list[tuple[bool, bool, int, ast.FunctionDef | ast.Assign]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            own, marked = node.name, bool(node.decorator_list)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            own, marked = node.targets[0].id, True
        else:
            continue
        words = [word for call in _calls(node) if isinstance(call, ast.Call) for word in call.keywords]
        named = [word.value for word in words if word.arg == "name"]
        renamed = any(isinstance(value, ast.Constant) and value.value == label for value in named)
        if renamed or own == label:
            found.append((not renamed, not marked, node.lineno, node))
    return min(found, default=(False, False, 1, None), key=lambda each: each[:3])[3]


def _calls(node: ast.FunctionDef | ast.Assign) -> list[ast.expr]:
    """Returns the expressions of a statement that may declare a kernel."""
    if isinstance(node, ast.FunctionDef):
        return node.decorator_list
    return [each for each in ast.walk(node.value) if isinstance(each, ast.expr)]


def _defined(nodes: Sequence[ast.AST], name: str, module: str = "", most: int = MOST_MODULES) -> Place | None:
    """Returns where a name that `nodes` of a module import is defined, through at most `most` modules."""
    first, _, rest = name.partition(".")
    for node in nodes if most else ():
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if (alias.asname or alias.name).partition(".")[0] != first:
                continue
            if isinstance(node, ast.ImportFrom):
                package = module.split(".")[: -node.level] if node.level else []
                source = ".".join(filter(None, [*package, node.module]))
                inner = f"{alias.name}.{rest}".rstrip(".")
                if rest and _file_of_module(f"{source}.{alias.name}").is_file():  # it names a module
                    source, inner = f"{source}.{alias.name}", rest
            else:
                source, _, inner = (name if alias.asname is None else f"{alias.name}.{rest}").rpartition(".")
            file = _file_of_module(source)
            below = _tree(file).body
            for each in below:
                if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == inner.partition(".")[0]:
                    return str(file), min(part.lineno for part in (each, *each.decorator_list))
            return _defined(below, inner, source + "." * (file.name == "__init__.py"), most - 1)
    return None


def _file_of_module(name: str) -> Path:
    """Returns the file of a module below the folder of the command or on Python's path."""
    stem = Path(*name.split("."))
    places = [Path(folder) / stem for folder in ("", "src", *sys.path)]
    tried = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return next((file for file in tried if file.is_file()), tried[0])
