"""Finds the functions of a package that launch kernels, without importing it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from verify.declare.guess import Parameter

_NO_KERNELS = {"test", "tests", "testing", "benchmark", "benchmarks", "examples"}
_NATIVE = {"nvidia", "cuda", "triton", "hopper", "ampere"}  # below backends/: those of the devices that verify has
_FOREIGN = re.compile(r"(^|_)(ascend|npu|xpu|musa|mlu|rocm|hip|amd|gluon|cutedsl|cutile|tilelang|flydsl)(_|$)")
_PRIVATE = re.compile(rf"^(_|test_|patch_)|{_FOREIGN.pattern}")
_HALF = re.compile(r"(^|_)(fwd|bwd|fw|bw|forward|backward)(_|$)")
_REFERENCE = re.compile(r"(^|_)(ref|reference|naive|torch|native|eager|slow)(_|$)")
_LAUNCH = "[]()"  # stands for kernel[grid](...) among the names that a function uses


@dataclass(frozen=True)
class Found:
    """Holds a function that launches kernels: NAME, or NAME.apply of an autograd function."""

    path: Path
    line: int
    module: str
    name: str
    parameters: list[Parameter]
    documentation: str = ""


@dataclass
class _Source:
    """Holds the definitions of a file, and the names that each one uses."""

    path: Path
    triton: bool
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    differentiable: dict[str, ast.ClassDef] = field(default_factory=dict)  # autograd functions
    jitted: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    uses: dict[str, set[str]] = field(default_factory=dict)

    @property
    def exports(self) -> bool:
        """True if the file exports what it imports."""
        return self.path.stem == "__init__"


def functions_in(folder: Path) -> tuple[list[Found], dict[str, list[str]]]:
    """Returns the public functions of a folder or file that launch kernels, and references in plain PyTorch.

    Leaves out the halves of autograd functions, because their public functions are there. If an __init__.py exports
    functions that launch kernels, leaves out the others that functions of the package call. A reference maps to its
    parameters.
    """
    sources = [source for path in _files(_package(folder)) if (source := _read(path)) is not None]
    uses: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        for name, used in source.uses.items():
            uses[name] |= used
    launching = _closure(uses, {_LAUNCH}.union(*(source.jitted for source in sources)), backwards=True)
    kinds = {name for source in sources for name in source.differentiable}
    halves = {name for name in _closure(uses, kinds, backwards=False) - kinds if _HALF.search(name)}
    exported = {name for source in sources if source.exports for name in source.imported}
    inner = set().union(*uses.values()) - exported if exported & launching else set()
    applied = set().union(*(used for name, used in uses.items() if name not in kinds and not _PRIVATE.search(name)))
    found, references = [], {}
    for source in sources:
        module, near = module_of(source.path), folder.resolve() in (source.path, *source.path.parents)
        for name, node in source.functions.items():
            parameters, applies = _parameters(node), source.uses[name] & kinds
            if name not in launching:
                if _REFERENCE.search(name) or _REFERENCE.search(source.path.stem):
                    references[f"{module}.{name}"] = [each.name for each in parameters if each.default is None]
            elif (
                near
                and _takes_tensors(parameters)
                and (applies or (source.triton and name not in inner))
                and not (name in halves or _PRIVATE.search(name))
            ):
                found.append(Found(source.path, node.lineno, module, name, parameters, ast.get_docstring(node) or ""))
        for name, kind in source.differentiable.items():
            forward = next((each for each in kind.body if getattr(each, "name", "") == "forward"), None)
            if (
                near
                and name in launching - applied
                and not _PRIVATE.search(name)
                and isinstance(forward, ast.FunctionDef)
            ):
                # apply takes no keywords and has no defaults
                given = [Parameter(each.name, each.annotation) for each in _parameters(forward)[1:]]
                text = "\n".join(ast.get_docstring(each) or "" for each in (kind, forward))
                found.append(Found(source.path, kind.lineno, module, f"{name}.apply", given, text))
    return found, references


def module_of(path: Path) -> str:
    """Returns the dotted name of a file."""
    parts = path.resolve().relative_to(root_of(path)).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def root_of(path: Path) -> Path:
    """Returns the folder from which a file is imported: that of its topmost package, or its own."""
    packages = [each for each in path.resolve().parents if (each / "__init__.py").exists()]
    return packages[-1].parent if packages else path.resolve().parent


def _package(folder: Path) -> Path:
    """Returns the topmost package around a folder or file, or the folder itself."""
    packages = [each for each in (folder.resolve(), *folder.resolve().parents) if (each / "__init__.py").exists()]
    return packages[-1] if packages else folder.resolve()


def _files(folder: Path) -> Iterator[Path]:
    """Yields the Python files of a folder in order, without hidden folders, tests and backends of other devices."""
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts[:-1]
        backends = [inner for outer, inner in pairwise(parts) if outer.strip("_") in ("backend", "backends")]
        other = any(each.strip("_") not in _NATIVE for each in backends)
        foreign = any(_FOREIGN.search(each) for each in (*parts, path.stem))
        if not other and not foreign and not any(each.startswith(".") or each in _NO_KERNELS for each in parts):
            yield path


def _read(path: Path) -> _Source | None:
    """Parses a file. Returns None for a template, or a file of another version of Python."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError, OSError, ValueError):
        return None
    source = _Source(path, bool(re.search(r"^\s*(import|from) triton\b", text, re.MULTILINE)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            source.imported |= {each.asname or each.name for each in node.names}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and re.search(
            "triton|pointwise", "".join(map(ast.unparse, node.decorator_list))
        ):
            source.jitted.add(node.name)  # a declaration calls its launcher
        elif isinstance(node, ast.FunctionDef):
            source.functions[node.name] = node
        elif isinstance(node, ast.ClassDef) and any(ast.unparse(each).endswith("Function") for each in node.bases):
            source.differentiable[node.name] = node
    visible = source.imported | source.jitted | set(source.functions) | set(source.differentiable)
    for name, each in (source.functions | source.differentiable).items():
        source.uses[name] = set(_used(each, visible)) - {name}
    return source


def _used(node: ast.AST, visible: Collection[str]) -> Iterator[str]:
    """Yields the names of the package that a definition uses."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in visible:
            yield each.id
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Subscript):
            yield _LAUNCH


def _closure(uses: dict[str, set[str]], start: set[str], *, backwards: bool) -> set[str]:
    """Returns `start` and all names that use one of these, or that these use."""
    found, before = set(start), -1
    while len(found) != before:
        before = len(found)
        if backwards:
            found |= {name for name, used in uses.items() if used & found}
        else:
            found |= {each for name in found & set(uses) for each in uses[name]}
    return found


def _takes_tensors(parameters: list[Parameter]) -> bool:
    """True if a function may take tensors, and is no method that is put on a class elsewhere."""
    kinds = [each.annotation for each in parameters if each.default is None] or [""]
    return bool(parameters) and parameters[0].name != "self" and any(not each or "Tensor" in each for each in kinds)


def _parameters(node: ast.FunctionDef) -> list[Parameter]:
    """Returns the parameters of a function that come by position, and keyword-only ones that have no default."""
    places = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(places) - len(node.args.defaults)) + [ast.unparse(each) for each in node.args.defaults]
    return [
        Parameter(each.arg, ast.unparse(each.annotation) if each.annotation else "", default)
        for each, default in zip(places, defaults, strict=True)
    ]
