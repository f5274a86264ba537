"""`verify same`: the classes of equal bits of each setting, the boundary of rows, and a witness that is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.laws.test_bits import by_place, by_rows, decode, doubled, elements, product, summed, vectors
from verify import backends
from verify.cases import Case
from verify.cli import main
from verify.cli.same import lines_of
from verify.diagnose.requests import SameBits
from verify.diagnose.same import settings_of
from verify.errors import UsageError
from verify.measure.call import run_kernel


def by_many_rows(a: Any, b: Any) -> Any:
    return summed(a, b, 2 if a.shape[0] > 64 else 1)


def found_of(function: Any, text: str = "", **promised: Any) -> SameBits:
    return settings_of(
        product(function, **promised), backends.select(), "", [Case.from_json(text)] if text else [], lambda text: None
    )


def classes(found: SameBits, setting: str) -> list[list[str]]:
    [one] = [each for each in found.settings if each.setting == setting]
    return one.classes


def test_the_number_of_rows_at_which_bits_change_is_exact() -> None:
    assert classes(found_of(by_rows), "rows (m)") == [["1 to 3"], ["4 to 65"]]
    assert classes(found_of(by_many_rows), "rows (m)") == [["1 to 64"], ["65"]]
    honest = found_of(summed)
    assert classes(honest, "rows (m)") == [["1 to 65"]] and all(len(each.classes) == 1 for each in honest.settings)


def test_each_setting_has_its_classes() -> None:
    found = found_of(by_place, same_bits_as=decode)
    usual, *others = classes(found, "position")
    assert usual[0] == "in its place" and ["each m 1 places on"] in others
    assert classes(found, "as decode") == [["by_place"], ["decode"]]
    assert classes(found, "second call") == [["first", "second"]]
    text = "\n".join(lines_of(found))
    assert "B  decode" in text and "which is no proof" in text and "one class: " in text
    assert "position" not in text.splitlines()[-1]


def test_a_witness_shows_the_bits_of_both() -> None:
    found = found_of(by_rows)
    [rows] = [each for each in found.settings if each.setting == "rows (m)"]
    place, few, many, case = rows.witness
    decoded = Case.from_json(case.removeprefix("case: "))
    kernel = product(by_rows)
    whole = run_kernel(kernel, decoded, "cpu")
    row, column = map(int, place[place.index("[") + 1 : place.index("]")].split(","))
    a, b = whole.inputs["a"], whole.inputs["b"]
    assert a is not None and b is not None
    shown = [f"{by_rows(a[:3], b)[row, column].item()!r} (", f"{whole.results['y'][row, column].item()!r} ("]
    assert shown[0] in few and shown[1] in many and few != many
    again = found_of(by_rows, case.removeprefix("case: "))
    assert again.inputs == 1 and classes(again, "rows (m)") == [["1 to 3"], ["4 to 65"]]


def test_numbers_that_only_the_rest_of_a_vector_has_otherwise_are_at_every_place() -> None:
    found, honest = (
        settings_of(elements(each), backends.select(), "", [], lambda text: None) for each in (vectors, doubled)
    )
    # 33 columns: c rows leave c % 8 elements, which are in the last of these rows
    rows = classes(found, "rows (m)")
    assert ["8, 16, 24, 32, 40, 48, 56, 64 to 65"] in rows and len(rows) == 57
    assert all(len(each.classes) == 1 for each in honest.settings)
    [witness] = [each.witness for each in found.settings if each.setting == "rows (m)"]
    case = witness[-1].removeprefix("case: ")
    again = settings_of(elements(vectors), backends.select(), "", [Case.from_json(case)], lambda text: None)
    assert len(classes(again, "rows (m)")) > 1, "the printed case shows the same again"


def test_a_dtype_that_it_does_not_promise_is_refused() -> None:
    with pytest.raises(UsageError, match="promises float32; received the dtype float16"):
        settings_of(product(summed), backends.select(), "float16", [], lambda text: None)


REFUSES = """
import os, verify

@verify.kernel(like=lambda x: x.sum(-1), shapes={"x": "m n"}, dtypes=["float32"], gradients=False)
def total(x):
    if x.stride(-1) != 1:
        raise ValueError("rows are contiguous")
    if x.storage_offset():
        os.abort()
    if x.shape[0] == 5:
        raise ValueError("five rows")
    return x.double().sum(-1).float()
"""


def test_a_setting_that_is_refused_or_ends_the_process_is_named(tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "refuses.py"
    path.write_text(REFUSES)
    assert main(["same", f"{path}::total", "--json", str(tmp_path / "same.json")]) == 0
    rows, position, layout, again = msgspec.json.decode((tmp_path / "same.json").read_bytes(), type=SameBits).settings
    assert rows.classes == [["1 to 4, 6 to 65"]] and "ValueError: five rows" in rows.refused[0]
    assert not position.refused and not again.refused
    assert "x padded" in layout.classes[0] and "x transposed" not in layout.classes[0]
    assert [each for each in layout.refused if "x offset: the process died of SIGABRT" in each]
    assert "refused: x transposed: total raised ValueError: rows are contiguous" in capfd.readouterr().out


def test_the_classes_are_json() -> None:
    found = found_of(summed)
    assert msgspec.json.decode(msgspec.json.encode(found), type=SameBits) == found
    assert found.sizes["m"] == 65 and found.inputs == 5
