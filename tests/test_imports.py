"""The layers hold: who may import whom, and that the command line starts without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "verify").rglob("*.py"))
# kernels/derive (mpmath) and kernels/bench (other libraries to compare with) are scripts, which no kernel imports
SCRIPTS = ("derive", "bench")
KERNELS = sorted(p for p in (ROOT / "kernels").rglob("*.py") if p.parent.name not in SCRIPTS)

# A module may import from its own layer and from those before it.
LAYERS = (
    {"errors", "figure", "formats", "frames", "toml", "packing", "plugin", "day"},
    {"ops.op", "ops.precision", "ops.dyadic", "ops.formula", "ops.limits", "ops.compensated"},
    {"ulp", "record", "identity", "merge", "stage_time"},
    {"ops", "backends", "tally", "cases", "config", "isolate", "cluster", "corpus", "commit"},
    {"readings", "bounds", "gate", "ratchet", "compare", "checkout", "committed", "history"},
    {"declaration", "truth", "standin"},
    {"measure", "plan", "judge", "element", "regimes", "fingerprint", "curve", "digest", "special"},
    {"laws", "cases.strategies", "shrink"},
    {
        "recorded",
        "snippet",
        "sanitize",
        "explain",
        "assertions",
        "run",
        "sweep",
        "hunt",
        "replay",
        "session",
        "laws.spread",
        "timing",
        "bench",
        "report",
        "seeded",
        "seeded_triton",
        "selftest",
        "nightly",
    },
    {"worker", "sources", "cli", "__main__"},
)
# The certificate is measured on the cases that kernels will meet.
ALLOWED = {("truth.certify", "plan")}


def imported(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def layer_of(module: str) -> int | None:
    """The layer of a dotted name below verify; the longest matching prefix decides."""
    parts = module.split(".")
    for size in range(len(parts), 0, -1):
        for number, names in enumerate(LAYERS):
            if ".".join(parts[:size]) in names:
                return number
    return None


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: str(path.relative_to(ROOT)))
def test_verify_never_imports_kernels_or_properties(path: Path) -> None:
    tops = {name.split(".")[0] for name in imported(path)}
    assert not tops & {"kernels", "properties", "tests"}


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: str(path.relative_to(ROOT)))
def test_kernels_need_torch_and_triton_only(path: Path) -> None:
    names = imported(path)
    tops = {name.split(".")[0] for name in names}
    assert tops <= sys.stdlib_module_names | {"torch", "triton", "kernels"}, "kernels need torch and triton only"
    assert not {f"kernels.{folder}" for folder in SCRIPTS} & {".".join(name.split(".")[:2]) for name in names}


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lower_layer_never_imports_a_higher_one(path: Path) -> None:
    own = ".".join(path.relative_to(ROOT / "verify").with_suffix("").parts).removesuffix(".__init__")
    if own == "__init__":
        return  # the public names, imported when first used
    layer = layer_of(own)
    assert layer is not None, f"verify.{own} is in no layer: add it to LAYERS"
    for name in sorted(imported(path)):
        if not name.startswith("verify."):
            continue
        below = name.removeprefix("verify.")
        other = layer_of(below)
        if other is None or any(own == a and below.split(".")[0] == b for a, b in ALLOWED):
            continue
        assert other <= layer, f"verify.{own} (layer {layer}) imports {name} (layer {other})"


def test_the_rule_can_fail(tmp_path: Path) -> None:
    offender = tmp_path / "offender.py"
    offender.write_text("def late():\n    from kernels import gelu\n")
    assert "kernels.gelu" in imported(offender)
    assert layer_of("cli.run") > layer_of("ulp")  # type: ignore[operator]


def test_the_command_line_starts_without_heavy_imports() -> None:
    code = (
        "import sys; from verify.cli import parser; parser(); "
        "print([m for m in ('torch', 'triton', 'numpy', 'mpmath', 'rich', 'jinja2', 'msgspec') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"


def test_every_public_name_resolves_and_is_the_documented_object() -> None:
    import verify
    import verify.declaration

    for name in verify.__all__:
        assert getattr(verify, name) is not None
    assert verify.kernel is verify.declaration.kernel
    with pytest.raises(AttributeError, match="module 'verify' has no attribute 'nothing'"):
        _ = verify.nothing
