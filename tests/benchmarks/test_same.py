"""The comparison of settings with later inputs: a class that they divide is named, and an honest one stays whole."""

from __future__ import annotations

import pytest

from benchmarks import same
from tests.laws.test_bits import product, summed
from tests.oracle import summation
from verify import backends
from verify.declare.declaration import Kernel
from verify.diagnose.requests import Order
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


def test_orders_by_two_routes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same, "SUMS", ("benchmarks/sums.py",))
    [row] = same.compared_orders(None, ["row_sum"])
    assert row["wrong"] == [] and len(row["probed"]) == 1 and row["compiled"][0].startswith("row_kernel: 96 terms, ")
    assert row["compiled"][0] in same.table_of_orders([row])

    def refuses(order: object) -> str:
        raise summation.Refused("it adds in another order")

    monkeypatch.setattr(summation, "checked", refuses)
    assert same.compared_orders(None, ["row_sum"])[0]["wrong"] == ["row_kernel: it adds in another order"]


def test_one_order_has_one_set_of_parts() -> None:
    def order(*additions: tuple[int, int]) -> Order:
        return Order("", "float32", "cuda", "x", "y", 1, terms=4, additions=list(additions))

    pairs, turned, chain = order((0, 1), (2, 3), (4, 5)), order((3, 2), (1, 0), (4, 5)), order((0, 1), (4, 2), (5, 3))
    assert same.parts_of(pairs) == same.parts_of(turned) != same.parts_of(chain)
