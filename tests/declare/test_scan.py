"""Which functions of a project launch Triton kernels, from its source alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from verify.declare import scan

KERNEL = "import triton\n@triton.jit\ndef _k(x):\n    pass\n"


def found(tmp_path: Path, **files: str) -> dict[str, scan.Launcher]:
    """The launchers of files, whose names have two underscores for a slash, by module and name."""
    for name, text in files.items():
        path = tmp_path / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {f"{item.module}.{item.name}": item for item in scan.launchers(tmp_path)[0]}


def test_nothing_is_imported(tmp_path: Path) -> None:
    [item] = found(tmp_path, ops=f"raise SystemExit\n{KERNEL}def silu(x):\n    _k[(1,)](x)\n").values()
    assert (item.module, item.name, item.line, item.root) == ("ops", "silu", 6, tmp_path)


def test_the_first_public_function_above_a_launch_is_named(tmp_path: Path) -> None:
    text = (
        KERNEL
        + "def _hidden(x):\n    _k[(1,)](x)\ndef gelu(x):\n    return _hidden(x)\ndef block(x):\n    return gelu(x)\n"
    )
    assert list(found(tmp_path, ops=text)) == ["ops.gelu"]


def test_a_folder_without_init_is_a_package_where_it_is_imported_as_one(tmp_path: Path) -> None:
    made = found(
        tmp_path,
        mine__low=KERNEL,
        mine__high="from mine.low import _k\ndef silu(x):\n    _k[(1,)](x)\n",
        mine__other="from mine import low\ndef gelu(x):\n    low._k[(1,)](x)\n",
    )
    assert sorted(made) == ["mine.high.silu", "mine.other.gelu"]
    assert {item.root for item in made.values()} == {tmp_path}


def test_a_launch_is_followed_through_imports_and_packages(tmp_path: Path) -> None:
    (tmp_path / "src" / "pkg").mkdir(parents=True)
    (tmp_path / "src" / "pkg" / "__init__.py").write_text("from .kernels import _k as kept\n")
    made = found(
        tmp_path,
        src__pkg__kernels=KERNEL,
        src__pkg__a="from pkg import kept\ndef _one(x):\n    grid = kept[(1,)]\n    grid(x)\n",
        src__pkg__b="from . import a\ndef two(x, y=1):\n    return a._one(x)\n",
        src__pkg__c="import pkg.kernels as k\ndef three(x):\n    k._k[(1,)](x)\n",
        src__pkg__d="import numpy\ndef four(x):\n    return numpy.one(x)[0](x)\n",
    )
    assert sorted(made) == ["pkg.b.two", "pkg.c.three"]
    assert made["pkg.b.two"].root == tmp_path / "src" and made["pkg.b.two"].defaults == {"y": "1"}


FUNCTION = """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps: float, flag=True):
        _k[(1,)](x)
    @staticmethod
    def backward(ctx, dy):
        return dy
"""


def test_an_autograd_function_stands_for_itself_unless_a_function_wraps_it(tmp_path: Path) -> None:
    [item] = found(tmp_path, ops=KERNEL + FUNCTION).values()
    assert (item.name, item.operands, item.scalars) == ("F.apply", ("x", "weight"), ("eps",))
    assert item.differentiable and item.defaults == {"flag": "True"}
    [item] = found(
        tmp_path, ops=KERNEL + FUNCTION + "def norm(x, weight):\n    return F.apply(x, weight, 1e-6)\n"
    ).values()
    assert (item.name, item.differentiable) == ("norm", True)


@pytest.mark.parametrize(
    "text",
    [
        "def silu(x):\n    return x[0](x)\n",
        "import jax\n@jax.jit\ndef _k(x):\n    pass\ndef silu(x):\n    _k[(1,)](x)\n",
        KERNEL + "def mentions(x):\n    return _k\n",
        KERNEL + "def _private(x):\n    _k[(1,)](x)\n",
    ],
)
def test_what_launches_nothing_is_no_launcher(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, ops=text) == {}


def test_tests_environments_and_what_nobody_can_import_are_left_out(tmp_path: Path) -> None:
    text = KERNEL + "def silu(x):\n    _k[(1,)](x)\n"
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    made = {"tests__ops": text, "env__ops": text, "build__ops": text, "test_ops": text, "01-vector-add": text}
    assert found(tmp_path, **made) == {}
    (tmp_path / "broken.py").write_text("def f(:\n")
    assert [str(tmp_path / "broken.py") in line for line in scan.launchers(tmp_path)[1]] == [True]


def test_functions_that_call_each_other_end_the_search(tmp_path: Path) -> None:
    text = KERNEL + "def _a(x):\n    _k[(1,)](x)\n    b(x)\ndef b(x):\n    _a(x)\n"
    assert list(found(tmp_path, ops=text)) == ["ops.b"]


def test_a_kernel_that_is_handed_to_a_launcher_counts(tmp_path: Path) -> None:
    assert list(found(tmp_path, ops=KERNEL + "def silu(x):\n    launch(_k, (1,), x)\n")) == ["ops.silu"]


def test_what_serves_an_autograd_function_is_called_through_it(tmp_path: Path) -> None:
    text = KERNEL + "def norm_forward(x):\n    _k[(1,)](x)\n" + FUNCTION.replace("_k[(1,)](x)", "norm_forward(x)")
    assert list(found(tmp_path, ops=text)) == ["ops.F.apply"]
    module = "class Norm(torch.nn.Module):\n    def forward(self, x):\n        return F.apply(x)\n"
    assert list(found(tmp_path, ops=text + module)) == ["ops.F.apply"]
    assert list(found(tmp_path, ops=text + module + "def norm(x):\n    return F.apply(x)\n")) == ["ops.norm"]
