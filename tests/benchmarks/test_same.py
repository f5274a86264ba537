"""The comparison of settings with later inputs: a class that they divide is named, and an honest one stays whole."""

from __future__ import annotations

import pytest

from benchmarks import same
from tests.laws.test_bits import product, summed
from verify import backends
from verify.declare.declaration import Kernel
from verify.diagnose.same import settings_of


def seldom(a, b):
    return summed(a, b, 2 if a.shape[0] < 4 and bool((a.abs() > 1e20).any()) else 1)


def split(kernel: Kernel, later: int) -> tuple[list[str], int]:
    place = backends.select()
    classes = settings_of(kernel, place, "float32", "", lambda text: None)
    assert all(len(each.classes) == 1 for each in classes.settings)
    return same.split(kernel, place, "float32", classes, later)


def test_a_class_that_later_inputs_divide_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same, "ROW_REGIMES", ("randn", "huge 1e30"))
    monkeypatch.setattr(same, "AT_ONCE", {"small": 2})
    assert split(product(seldom), 1) == (["rows (m)"], 130), "only the recipe of huge numbers divides it"
    assert split(product(summed), 1) == ([], 130)


def test_the_table_has_the_classes_and_what_has_none() -> None:
    classes = {"kernel": "sum", "dtype": "float32", "backend": "cuda", "sizes": {"m": 4096}, "inputs": 8}
    one, two = ({"values": [f"{low} to {low + 2}"], "count": 3} for low in (1, 4))
    settings = [
        {"setting": name, "classes": some, "witness": []}
        for name, some in (("rows (m)", [one, two]), ("layout", [one]))
    ]
    rows = [{"project": "PyTorch", "name": "sum", "dtype": "float32", "classes": classes | {"settings": settings}}]
    rows.append({"project": "PyTorch", "name": "mean", "dtype": "float32", "error": "RuntimeError: no"})
    text = same.table({"device": "a GPU", "torch": "2", "rows": rows})
    assert "| sum | float32 | m 4,096 | m: 1 to 3 \\| 4 to 6 |  | same |  |" in text
    assert "| mean | float32 | RuntimeError: no |" in text
