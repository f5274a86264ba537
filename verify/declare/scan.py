"""The functions of a project that launch Triton kernels, found by reading its source: nothing is imported.

From each launch of a `@triton.jit` function, `kernel[grid](...)` or `launch(kernel, ...)`, the way leads up through
private functions to the first public one. What serves the forward or backward pass of an `autograd.Function` is not
what anybody calls: there it leads on to the function that wraps the class, or ends at `Class.apply` where none does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

Name = tuple[str, str]  # module, and what it defines

_SKIPPED = set(
    "__pycache__ build dist node_modules site-packages test tests docs bench benchmark benchmarks examples".split()
)
_SCALARS = {"int", "float", "bool", "str"}  # annotations of what is no tensor
_SCALAR_NAMES = {"eps", "epsilon", "dim", "axis", "alpha", "beta", "p", "training", "scale", "inplace", "approximate"}


@dataclass(frozen=True)
class Launcher:
    """A function that launches Triton kernels: where it stands, and what a caller has to give it."""

    module: str
    name: str  # Class.apply for an autograd.Function
    file: Path
    line: int
    root: Path  # the folder that has to be on Python's path
    required: tuple[str, ...]  # parameters without a default
    scalars: tuple[str, ...]  # those of them that are numbers
    defaults: dict[str, str] = field(default_factory=dict)  # the others, as they are written
    differentiable: bool = False  # it goes through an autograd.Function with a backward pass

    @property
    def operands(self) -> tuple[str, ...]:
        """What may be tensors."""
        return tuple(name for name in self.required if name not in self.scalars)

    def imported(self, alias: str) -> str:
        """Its import under another name: a package often gives a function the name of the module that it comes from."""
        return f"from {self.module} import {self.name.removesuffix('.apply')} as {alias}"

    def call(self, alias: str, value: str) -> str:
        """The call of what is so imported, with a value for every number; an `apply` takes no keywords."""
        keyword = "" if self.name.endswith(".apply") else "{}="
        given = [f"{keyword.format(name)}{value}" if name in self.scalars else name for name in self.required]
        return f"{alias}{'.apply' * self.name.endswith('.apply')}({', '.join(given)})"


@dataclass
class _Unit:
    """A function or a class of a module."""

    node: ast.FunctionDef | ast.ClassDef
    uses: set[Name] = field(default_factory=set)

    @property
    def jit(self) -> bool:
        """Whether it is a Triton kernel itself."""
        found = (item.func if isinstance(item, ast.Call) else item for item in self.node.decorator_list)
        return any(ast.unparse(item) in ("triton.jit", "jit", "gluon.jit") for item in found)

    @property
    def autograd(self) -> bool:
        return isinstance(self.node, ast.ClassDef) and any(_last(base) == "Function" for base in self.node.bases)

    def method(self, name: str) -> ast.FunctionDef | None:
        found = (item for item in self.node.body if isinstance(item, ast.FunctionDef) and item.name == name)
        return next(found, None) if isinstance(self.node, ast.ClassDef) else None


@dataclass
class _Module:
    path: Path
    root: Path
    units: dict[str, _Unit]
    imported: dict[str, tuple[str, str]]  # local name -> module and what of it, empty for the module itself


def launchers(folder: Path) -> tuple[list[Launcher], list[str]]:
    """Those of a folder (or of one file), and a line for each file that could not be read."""
    trees: dict[Path, ast.Module] = {}
    problems = []
    for path in _sources(folder):
        try:
            trees[path.resolve()] = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError) as error:
            problems.append(f"{path}: {error}")
    modules: dict[str, _Module] = {}
    for path, (root, name) in _places(trees).items():
        if all(map(str.isidentifier, name.split("."))):  # else nothing can import it
            modules[name] = _module(path, root, name, trees[path])
    units = {(module, name): unit for module, found in modules.items() for name, unit in found.units.items()}
    for (module, _), unit in units.items():
        unit.uses = {found for found in _uses(unit.node, module, modules) if found in units}
    kernels = {name for name, unit in units.items() if unit.jit}
    launch = {name for name, unit in units.items() if not unit.jit and _launches(unit, name[0], modules, kernels)}
    outer = _called_from_outside(launch, units, kernels)
    found = [_launcher(modules[name[0]], name, units) for name in outer]
    return sorted(found, key=lambda item: (str(item.file), item.line)), problems


def _sources(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            hidden = path.name.startswith(".") or path.name in _SKIPPED or (path / "pyvenv.cfg").exists()
            if not hidden and not path.is_symlink():
                yield from _sources(path)
        elif path.suffix == ".py" and not path.name.startswith(("test_", "conftest", "setup")):
            yield path


def _places(trees: dict[Path, ast.Module]) -> dict[Path, tuple[Path, str]]:
    """Of each file the folder that has to be on Python's path, and the dotted name of the module there.

    A folder without `__init__.py` is a package where the project imports its files through its name.
    """
    imported = set[str]()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    places, through = {}, dict[Path, Path]()  # folders, and the folder above them that they are imported from
    for path in trees:
        root, parts = path.parent, [] if path.stem == "__init__" else [path.stem]
        while (root / "__init__.py").exists():
            parts.insert(0, root.name)
            root = root.parent
        places[path] = root, parts
        above, longer = root, parts
        for _ in range(3):
            above, longer = above.parent, [above.name, *longer]
            if ".".join(longer) in imported:
                through[root] = above
    return {
        path: (top := through.get(root, root), ".".join([*root.relative_to(top).parts, *parts]))
        for path, (root, parts) in places.items()
    }


def _module(path: Path, root: Path, name: str, tree: ast.Module) -> _Module:
    units = {item.name: _Unit(item) for item in tree.body if isinstance(item, ast.FunctionDef | ast.ClassDef)}
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported[alias.asname or alias.name.split(".")[0]] = (alias.name if alias.asname else "", "")
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            imported |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
    return _Module(path, root, units, imported)


def _uses(node: ast.AST, module: str, modules: dict[str, _Module]) -> set[Name]:
    """What of the project a piece of code names."""
    found = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Name | ast.Attribute) and (name := _resolved(item, module, modules)) is not None:
            found.add(name)
    return found


def _resolved(node: ast.expr, module: str, modules: dict[str, _Module], depth: int = 8) -> Name | None:
    """Where a name of a module is defined, through imports and packages that pass it on."""
    if isinstance(node, ast.Name):
        return _defined(module, node.id, modules, depth)
    if not isinstance(node, ast.Attribute) or not depth:
        return None
    dotted = ast.unparse(node.value).split(".")
    source, of = modules[module].imported.get(dotted[0], ("", ""))
    heads = [".".join([*filter(None, (source, of)), *dotted[1:]]) if source else ".".join(dotted)]
    return next((_defined(head, node.attr, modules, depth) for head in heads if head in modules), None)


def _defined(module: str, name: str, modules: dict[str, _Module], depth: int) -> Name | None:
    known = modules.get(module)
    if known is None or not depth:
        return None
    if name in known.units:
        return module, name
    source, of = known.imported.get(name, ("", ""))
    return _defined(source, of, modules, depth - 1) if of else None


def _launches(unit: _Unit, module: str, modules: dict[str, _Module], kernels: set[Name]) -> bool:
    """Whether the code has `kernel[grid]`, or hands a kernel to a call, for a Triton kernel of the project."""
    used: list[ast.expr] = []
    for item in ast.walk(unit.node):
        used += [item.value] if isinstance(item, ast.Subscript) else item.args if isinstance(item, ast.Call) else []
    return any(_resolved(item, module, modules) in kernels for item in used)


def _below(name: Name, units: dict[Name, _Unit]) -> set[Name]:
    """A unit and everything that it uses, directly or not."""
    found, left = {name}, [name]
    while left:
        more = units[left.pop()].uses - found
        found |= more
        left += more
    return found


def _called_from_outside(launch: set[Name], units: dict[Name, _Unit], kernels: set[Name]) -> set[Name]:
    """The first public functions above launches, and the autograd functions that no function wraps."""
    users: dict[Name, set[Name]] = {name: set() for name in units}
    for name, unit in units.items():
        for other in unit.uses - {name}:
            users[other].add(name)

    def public(name: Name) -> bool:
        return isinstance(units[name].node, ast.FunctionDef) and not name[1].startswith("_")

    def serves_autograd(name: Name) -> bool:
        seen, left = {name}, [name]
        while left:
            more = users[left.pop()] - seen
            if any(units[other].autograd for other in more):
                return True
            seen |= more
            left += [other for other in more if not public(other)]
        return False

    found, seen, left = set[Name](), set(kernels), sorted(launch)
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        above = {other for other in users[name] if isinstance(units[other].node, ast.FunctionDef)}
        alone = units[name].autograd and not above and units[name].method("forward")
        if alone or (public(name) and not serves_autograd(name)):
            found.add(name)
        else:
            left += sorted(above | {other for other in users[name] if units[other].autograd})
    return found


def _launcher(module: _Module, name: Name, units: dict[Name, _Unit]) -> Launcher:
    unit = units[name]
    function = unit.method("forward") if unit.autograd else unit.node
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    positional = [*given.posonlyargs, *given.args][unit.autograd :]  # without ctx
    split = len(positional) - len(given.defaults)
    required = positional[: max(split, 0)] + [
        item for item, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None
    ]
    pairs = [*zip(positional[max(split, 0) :], given.defaults[max(-split, 0) :], strict=True)]
    pairs += [(item, default) for item, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default]
    scalars = tuple(item.arg for item in required if _is_scalar(item))
    return Launcher(
        module=name[0],
        name=f"{name[1]}.apply" if unit.autograd else name[1],
        file=module.path,
        line=unit.node.lineno,
        root=module.root,
        required=tuple(item.arg for item in required),
        scalars=scalars,
        defaults={item.arg: ast.unparse(default) for item, default in pairs},
        differentiable=any(units[other].autograd and units[other].method("backward") for other in _below(name, units)),
    )


def _is_scalar(argument: ast.arg) -> bool:
    annotated = "" if argument.annotation is None else ast.unparse(argument.annotation).strip("'\"")
    return annotated in _SCALARS or (not annotated and (argument.arg in _SCALAR_NAMES or argument.arg.isupper()))


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def roots(found: Iterable[Launcher]) -> list[Path]:
    """The folders that have to be on Python's path."""
    return list(dict.fromkeys(item.root for item in found))
