"""Files for kernels and functions that a program has at hand: what is written, and what cannot be."""

from __future__ import annotations

import functools
import importlib
import itertools
import linecache
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import verify
from tests.golden import answers
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.declare.written import target_of

F = torch.nn.functional
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def cells(*texts: str, **given: Any) -> dict[str, Any]:
    """The names of a module without a file, after its cells."""
    module = ModuleType("__main__")
    vars(module).update(given)
    for text in texts:
        name = f"<cell {next(NUMBERS)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), vars(module))
    return vars(module)


def loaded(target: str) -> Any:
    """The kernel that a worker finds there."""
    [found] = load(Target.parse(target))
    return found


def test_a_function_with_everything_that_it_names() -> None:
    names = cells(
        "import math, torch\nimport torch.nn.functional as F\nfrom math import floor as down",
        "KIND = torch.float64\nSIZES = [1, (2, 'three')]\nTABLE = {'a': 0.5}",
        "def outer(x):\n    def inner(y):\n        return F.silu(y.to(KIND)) * TABLE['a'] * down(2.5)\n"
        "    return inner(x)",
        "class Scaled:\n    @staticmethod\n    def by(x):\n        return outer(x) * SIZES[0] * math.floor(1.5)",
        "def mine(x):\n    x = Scaled.by(x)\n    return x.float()",
    )
    found = loaded(target_of(names["mine"], {"like": F.silu, "dtypes": ["float32"], "gradients": False}))
    x = torch.randn(5)
    assert found.name == "mine" and found.dtypes == ("float32",)
    assert torch.equal(found.function(x), F.silu(x.double()).float())


def test_a_name_has_the_value_that_it_has_now() -> None:
    names = cells("N = 1\ndef part(x):\n    return x", "def mine(x):\n    return part(x) * N")
    first = target_of(names["mine"], {"op": "silu"})
    exec(compile("N = 2", "<no cell>", "exec"), names)
    second = target_of(names["mine"], {"op": "silu"})
    x = torch.ones(1)
    assert first != second and target_of(names["mine"], {"op": "silu"}) == second
    assert [float(loaded(each).function(x)) for each in (first, second)] == [1.0, 2.0]


def test_a_local_name_is_not_the_cell_s() -> None:
    names = cells("def mine(x):\n    weights = x + 1\n    return weights * x", weights=torch.ones(3), x=object())
    assert float(loaded(target_of(names["mine"], {"op": "silu"})).function(torch.ones(1))) == 2.0


def test_a_declared_kernel_keeps_its_declaration() -> None:
    names = cells(
        "import verify, torch",
        "LIMIT = 3.0\ndef program(x):\n    return torch.tanh(x) * 2",
        "@verify.kernel(like=program, dtypes=['float32'], max_ulp=LIMIT, name='other')\n"
        "def mine(x):\n    return program(x)",
    )
    target = target_of(names["mine"], {})
    found = loaded(target)
    assert target.endswith("::other") and found.name == "other"
    assert found.max_ulp == {"float32": 3.0} and found.described()["op"] == names["mine"].described()["op"]


def test_functions_of_modules_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "layers_of_mine.py").write_text("import torch\ndef fast(x, *, n=1):\n    return torch.tanh(x)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("layers_of_mine")
    target = target_of(module.fast, {"like": functools.partial(torch.tanh)})
    text = Path(target.partition("::")[0]).read_text()
    assert "def fast" not in text and "import layers_of_mine as" in text and str(tmp_path) in text
    assert loaded(target).function is module.fast


def test_a_kernel_of_a_file_is_that_file_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import verify\n@verify.kernel(op='silu')\ndef mine(x):\n    return x\n"
    (tmp_path / "alone.py").write_text(source)
    (tmp_path / "package_of_mine").mkdir()
    (tmp_path / "package_of_mine" / "__init__.py").write_text("")
    (tmp_path / "package_of_mine" / "inner.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert target_of(load(Target.parse("alone.py"))[0], {}) == "alone.py::mine"
    assert target_of(importlib.import_module("package_of_mine.inner").mine, {}) == "package_of_mine.inner::mine"
    monkeypatch.chdir(tmp_path / "package_of_mine")
    assert target_of(load(Target.parse(str(tmp_path / "alone.py")))[0], {}) == f"{tmp_path}/alone.py::mine"
    assert list(sys.modules["package_of_mine.inner"].mine.dtypes)
    with pytest.raises(TypeError, match="dtypes: the kernel 'mine' is declared already"):
        target_of(sys.modules["package_of_mine.inner"].mine, {"dtypes": ["float32"]})


def written(text: str) -> None:
    """Makes a target of the function `mine` of a cell."""
    target_of(cells(text, weights=torch.ones(3))["mine"], {"op": "silu"})


def test_what_cannot_be_written_names_the_way_out() -> None:
    answers(Path(__file__).parent / "snapshots" / "unwritten.txt", globals())


def test_a_constant_of_triton() -> None:
    language = pytest.importorskip("triton.language")
    names = cells("def mine(x):\n    return x * BLOCK.value", BLOCK=language.constexpr(3), INF=math.inf)
    assert float(loaded(target_of(names["mine"], {"op": "silu"})).function(torch.ones(1))) == 3.0
    assert isinstance(verify.kernel(op="silu")(names["mine"]), verify.Kernel)
