"""Finds the functions of a package that launch kernels, without importing it, and what their signatures define."""

import ast
import importlib.util
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_NO_KERNELS = {"test", "tests", "testing", "benchmark", "benchmarks", "examples"}
_FOREIGN = re.compile(r"(^|_)(ascend|npu|xpu|musa|mlu|rocm|hip|amd|gluon|cutedsl|cutile|tilelang|flydsl)(_|$)")
_PRIVATE = re.compile(rf"^(_|test_|patch_)|{_FOREIGN.pattern}")
_HALF = re.compile(r"(^|_)(fwd|bwd|fw|bw|forward|backward)(_|$)")
_LAUNCH = "[]()"  # means kernel[grid](...) among the names that a function uses
_FIRST = ("self", "input", "x")  # PyTorch's names of a first operand, and ours


@dataclass(frozen=True)
class Parameter:
    """Holds a parameter of a function as its source has it. `*args` and `**kwargs` have their stars."""

    name: str
    annotation: str = ""
    default: str | None = None
    keyword: bool = False  # it does not come by position

    @property
    def passed(self) -> str:
        """The argument of a call that passes a variable of the same name."""
        return f"{self.name}={self.name}" if self.keyword or self.default is not None else self.name


@dataclass(frozen=True)
class LaunchingFunction:
    """Holds a function that launches kernels: NAME, or NAME.apply of an autograd function."""

    path: Path
    line: int
    module: str
    name: str
    parameters: list[Parameter]
    missing: frozenset[str] = frozenset()  # packages that importing its module needs and this machine lacks

    @property
    def required(self) -> list[Parameter]:
        """The parameters without a default."""
        return [each for each in self.parameters if each.default is None]


@dataclass(frozen=True)
class Definition:
    """Holds the definition that a signature matches, and the operands and parameters that the function takes of it."""

    source: str  # op="rms_norm" or like=torch.relu
    operands: list[str]
    params: list[str]
    call: list[str]


@dataclass
class _Source:
    """Holds the definitions of a file, and the names that each one uses."""

    path: Path
    module: str
    triton: bool
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    differentiable: dict[str, ast.ClassDef] = field(default_factory=dict)  # autograd functions
    jitted: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    uses: dict[str, set[str]] = field(default_factory=dict)
    needs: set[str] = field(default_factory=set)  # modules that importing it imports


def functions_in(folder: Path) -> list[LaunchingFunction]:
    """Returns the public functions of a folder or file that launch kernels.

    Leaves out the halves of autograd functions, because their public functions are there. If an __init__.py exports
    functions that launch kernels, leaves out the others that functions of the package call.
    """
    sources = [source for path in _files(_package(folder)) if (source := _read(path)) is not None]
    uses: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        for name, used in source.uses.items():
            uses[name] |= used
    needs = {source.module: source.needs for source in sources}
    launching = _closure(uses, {_LAUNCH}.union(*(source.jitted for source in sources)), backwards=True)
    kinds = {name for source in sources for name in source.differentiable}
    halves = {name for name in _closure(uses, kinds, backwards=False) - kinds if _HALF.search(name)}
    exported = {name for source in sources if source.path.stem == "__init__" for name in source.imported}
    inner = set().union(*uses.values()) - exported if exported & launching else set()
    applied = set().union(*(used for name, used in uses.items() if name not in kinds and not _PRIVATE.search(name)))
    functions: list[LaunchingFunction] = []
    for source in sources:
        if folder.resolve() not in (source.path, *source.path.parents):
            continue
        place = LaunchingFunction(source.path, 0, source.module, "", [], _missing(source.module, needs))
        for name, node in source.functions.items():
            parameters, applies = _parameters(node), source.uses[name] & kinds
            public = name in launching - halves and not _PRIVATE.search(name)
            required = [each.annotation for each in parameters if each.default is None]
            # A first argument self is that of a method which is put on a class elsewhere.
            tensors = any(not each or "Tensor" in each for each in required) and parameters[0].name != "self"
            if public and tensors and (applies or (source.triton and name not in inner)):
                functions.append(replace(place, line=node.lineno, name=name, parameters=parameters))
        for name, kind in source.differentiable.items():
            forward = next((each for each in kind.body if getattr(each, "name", "") == "forward"), None)
            if name in launching - applied and not _PRIVATE.search(name) and isinstance(forward, ast.FunctionDef):
                # apply takes no keywords and has no defaults
                given = [Parameter(each.name, each.annotation) for each in _parameters(forward)[1:]]
                functions.append(replace(place, line=kind.lineno, name=f"{name}.apply", parameters=given))
    return functions


def definition_of(function: LaunchingFunction) -> Definition | None:
    """Returns the shipped op or elementwise function of PyTorch whose name and operands a function has.

    Words of the name that say how or where it is computed do not count, nor does the name of a sole operand. All
    parameters must be there, also optional ones: `silu(x, scale=1.0)` may compute something else.
    """
    import torch

    from verify import ops

    words = {"fused", "triton", "kernel", *function.module.partition(".")[0].lower().split("_")}
    name = function.name.removesuffix(".apply").lower()
    key = "".join(word for word in name.split("_") if word not in words)
    parameters, first = list(function.parameters), function.parameters[0]
    if first.default is None and not first.keyword and (first.name in _FIRST or len(function.required) == 1):
        parameters[0] = replace(first, name="x")
    required = [each for each in parameters if each.default is None]
    numbers = {each.name for each in required if each.annotation and "Tensor" not in each.annotation}
    # PyTorch's functions that end in _ write into their first operand
    passed = [each.passed for each in parameters]
    copied = [f"{passed[0]}.clone()", *passed[1:]] if name.endswith("_") else passed
    own = {each.name for each in parameters}
    for op in map(ops.get, ops.names()):
        operands = [each.name for each in op.operands if each.name in own]
        demanded = {each.name for each in op.operands if not each.optional}
        if op.name.replace("_", "") == key and demanded <= own <= {*operands, *op.params} and numbers <= set(op.params):
            source = f'op="{op.name}"' + (f", operands={operands}" if len(operands) < len(op.operands) else "")
            params = [each for each in op.params if each in own]
            return Definition(source.replace("'", '"'), operands, params, copied)
    for room, place in {"torch": torch, "functional": torch.nn.functional, "torch.special": torch.special}.items():
        for each in dir(place):
            if each.replace("_", "") == key and not each.startswith("_") and not each.endswith("_"):
                packet = getattr(torch.ops.aten, f"special_{each}" if place is torch.special else each, None)
                overloads = [getattr(packet, one) for one in packet.overloads()] if packet and not numbers else []
                if any(_fits(one, parameters) for one in overloads):
                    tensors = [one.name for one in required]
                    if _declarable(getattr(place, each), tensors):
                        return Definition(f"like={room}.{each}", tensors, [], copied[: len(tensors)])
    return None


def _fits(overload: Any, parameters: list[Parameter]) -> bool:
    """True if a function of PyTorch works element by element on these operands, with these defaults."""
    import torch

    arguments = overload._schema.arguments
    if torch.Tag.pointwise not in overload.tags or any(each.alias_info for each in arguments):
        return False
    tensors = [each.name for each in arguments if not each.has_default_value() and str(each.type) == "Tensor"]
    tensors[:1] = ["x" if name in _FIRST else name for name in tensors[:1]]
    defaults = {each.name: repr(each.default_value) for each in arguments if each.has_default_value()}
    optional = {each.name: each.default.replace('"', "'") for each in parameters if each.default is not None}
    required = [each.name for each in parameters if each.default is None]
    all_tensors = len(arguments) == len(tensors) + len(defaults)
    return all_tensors and tensors == required and optional.items() <= defaults.items()


def _declarable(define: Any, tensors: list[str]) -> bool:
    """True if like= takes a function: a declaration that fails would take all others of its file with it."""
    from verify.declare.declaration import kernel
    from verify.errors import VerifyError

    try:
        kernel(like=define, name="tried")(eval(f"lambda {', '.join(tensors)}: None"))  # names of parameters
    except VerifyError:
        return False
    return True


def module_of(path: Path) -> str:
    """Returns the dotted name of a file, from the folder above its topmost package, or from its own."""
    package = _package(path)
    root = path.resolve().parent if package == path.resolve() else package.parent
    return ".".join(path.resolve().relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _package(folder: Path) -> Path:
    """Returns the topmost package around a folder or file, or the folder itself."""
    packages = [each for each in (folder.resolve(), *folder.resolve().parents) if (each / "__init__.py").exists()]
    return packages[-1] if packages else folder.resolve()


def _files(folder: Path) -> Iterator[Path]:
    """Yields the Python files of a folder in order, without hidden folders, tests and backends of other devices."""
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts[:-1]
        foreign = any(_FOREIGN.search(each) for each in (*parts, path.stem))
        if not foreign and not any(each.startswith(".") or each in _NO_KERNELS for each in parts):
            yield path


def _read(path: Path) -> _Source | None:
    """Parses a file. Returns None for a template, or a file of another version of Python."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError, OSError, ValueError):
        return None
    source = _Source(path, module_of(path), bool(re.search(r"^\s*(import|from) triton\b", text, re.MULTILINE)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            source.imported |= {each.asname or each.name for each in node.names}
    package = source.module if path.stem == "__init__" else source.module.rpartition(".")[0]
    for node in tree.body:
        if isinstance(node, ast.Import):
            source.needs |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            source.needs |= {module, *(f"{module}.{each.name}" for each in node.names)}
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


def _missing(module: str, needs: dict[str, set[str]]) -> frozenset[str]:
    """Returns the packages that a module imports and that are not installed.

    Follows the modules of the package, with the packages around them. Imports in a function or in `try` do not count.
    """
    own, seen, waiting = module.partition(".")[0], set[str](), [module]
    while waiting:
        if (name := waiting.pop()) not in seen and name.partition(".")[0] == own:
            waiting += [name.rpartition(".")[0], *needs.get(name, ())]
        seen.add(name)
    packages = {name.partition(".")[0] for name in seen} - {own, ""}
    return frozenset(each for each in packages if importlib.util.find_spec(each) is None)


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


def _parameters(node: ast.FunctionDef) -> list[Parameter]:
    """Returns the parameters of a function."""
    given = node.args
    places = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(places) - len(given.defaults)) + list(given.defaults)
    known = [(each, default, False) for each, default in zip(places, defaults, strict=True)]
    known += [(each, default, True) for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    rest = [f"{stars}{each.arg}" for stars, each in (("*", given.vararg), ("**", given.kwarg)) if each]
    found = [Parameter(name, default="") for name in rest]
    for place, (each, default, keyword) in enumerate(known):
        text = ast.unparse(each.annotation or ast.Name(""))
        found.insert(place, Parameter(each.arg, text, ast.unparse(default) if default else None, keyword))
    return found
