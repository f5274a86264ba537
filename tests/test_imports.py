"""The layers hold: who may import whom, and that the command line starts without torch."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "verify").rglob("*.py"))
# kernels/derive (mpmath) and kernels/bench (other libraries to compare with) are scripts, which no kernel imports
SCRIPTS = ("derive", "bench")
KERNELS = sorted(p for p in (ROOT / "kernels").rglob("*.py") if p.parent.name not in SCRIPTS)

# The ground first. A module imports from its own room and from those before it; docs/architecture.md says what each is.
LAYERS = (
    "errors",
    "start",
    "backends",
    "records",
    "workers",
    "ops",
    "truth",
    "declare",
    "cases",
    "measure",
    "laws",
    "diagnose",
    "search",
    "report",
    "referee",
    "plugin",
    "nightly",
    "worker",
    "api",
    "session",
    "cli",
    "__main__",
)
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in PACKAGE}


@functools.cache
def imports_of(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Every import statement of a file, anywhere in it."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def imported(path: Path) -> set[str]:
    """Every module that a file imports."""
    found: set[str] = set()
    for node in imports_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            # kernels/ is built under another name too, so its imports are relative; all others are absolute
            own = path in KERNELS and (node.level or str(node.module).split(".")[0] == "kernels")
            assert bool(node.level) == bool(own), f"{path}: relative imports inside kernels/, absolute elsewhere"
            folder = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*folder, *filter(None, [node.module])])
            found |= {f"{module}.{alias.name}" for alias in node.names} | {module}
    return found


def needed(name: str) -> set[str]:
    """The modules of verify that a module of verify imports; a package where the name taken is none of its modules."""
    found = set()
    for node in imports_of(MODULES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {module if module in MODULES else str(node.module) for module in inner.values()}
    return found & set(MODULES) - {name, "verify"}


def layer_of(module: str) -> int:
    """The place of a dotted name below verify in LAYERS."""
    return LAYERS.index(module.split(".")[1])


def test_verify_never_imports_kernels_or_properties() -> None:
    outside = {"kernels", "properties", "tests", "mutants", "benchmarks"}
    tops = {str(path): {name.split(".")[0] for name in imported(path)} & outside for path in PACKAGE}
    assert {path: names for path, names in tops.items() if names} == {}


def test_kernels_need_torch_and_triton_only() -> None:
    known = sys.stdlib_module_names | {"torch", "triton", "kernels"}
    for path in KERNELS:
        names = imported(path)
        assert {name.split(".")[0] for name in names} <= known, f"{path}: kernels need torch and triton only"
        scripts = {f"kernels.{folder}" for folder in SCRIPTS} & {".".join(name.split(".")[:2]) for name in names}
        assert not scripts, f"{path} imports {scripts}"


def test_a_lower_layer_never_imports_a_higher_one() -> None:
    names = sorted(set(MODULES) - {"verify"})
    homeless = [name for name in names if name.split(".")[1] not in LAYERS]
    assert homeless == [], "each module needs one of the rooms of LAYERS"
    upwards = [(name, other) for name in names for other in sorted(needed(name)) if layer_of(other) > layer_of(name)]
    assert upwards == [], "the first module of each pair imports the second, which stands above it"


def test_no_modules_import_each_other_in_a_circle() -> None:
    circle = next(circles({name: needed(name) for name in MODULES if name != "verify"}), [])
    assert circle == [], " -> ".join(circle)


def circles(needs: dict[str, set[str]]) -> Iterator[list[str]]:
    """The circles of a graph, each as the names along it; one for each module that leads back into its own way."""
    done: set[str] = set()

    def follow(name: str, way: list[str]) -> Iterator[list[str]]:
        if name in way:
            yield [*way[way.index(name) :], name]
        elif name not in done:
            for other in sorted(needs.get(name, ())):
                yield from follow(other, [*way, name])
            done.add(name)

    for name in sorted(needs):
        yield from follow(name, [])


def test_the_command_line_starts_without_heavy_imports() -> None:
    code = (
        "import sys; from verify.cli import parser; parser(); "
        "print([m for m in ('torch', 'triton', 'numpy', 'mpmath', 'rich', 'jinja2', 'msgspec') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"


def test_every_public_name_resolves_and_is_the_documented_object() -> None:
    import verify
    from verify.declare import declaration

    for name in verify.__all__:
        assert getattr(verify, name) is not None
    assert verify.kernel is declaration.kernel
    with pytest.raises(AttributeError, match="module 'verify' has no attribute 'nothing'"):
        _ = verify.nothing
