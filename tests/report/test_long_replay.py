"""A case of whole rows has a command of thousands of characters: once on a screen, and a short one beside it."""

from __future__ import annotations

import json
import re
import shlex

import msgspec

from tests.records.bounds.gate_records import HASH, book, bound, figures, kernel, run
from tests.records.bounds.gate_records import result as plain
from tests.records.bounds.gate_records import worst as element
from tests.report import pages
from verify.cli import parser
from verify.records.bounds.verdict import Verdict, judge
from verify.records.record import Origin, RegimeFigures, Result, Run
from verify.records.recorded import worst_of_run
from verify.report import gate_words
from verify.report.html import record_html
from verify.report.terminal.text_page import Terminal

ROW = "3f80" * 512
CASE = json.dumps({"dtype": "bfloat16", "dims": [1, 512], "values": {"x": ROW}}, separators=(",", ":"))


def breach(name: str, error: float) -> Result:
    """A result whose worst element is in `high`; `low` has one of its own, which the ten worst do not show."""

    def at(value: float, index: int) -> object:
        origin = Origin(f"a.py::{name}", CASE, "y", index)
        return msgspec.structs.replace(element(value), index=(0, index), origin=origin, got_hex=f"0x{index:04x}")

    high, low = at(error, 7), at(error / 2, 9)
    parts = [
        RegimeFigures("high end", None, None, figures(error, n=32_768), worst=high),
        RegimeFigures("low", None, None, figures(error / 2, n=32_768), worst=low),
    ]
    found = plain(error, basis=plain().basis, properties=HASH)
    return msgspec.structs.replace(found, regimes=parts, worst=[high], status="wrong", reason="beyond", limit=0.5)


def record() -> Run:
    """Three kernels, the last one worst."""
    return run(
        *(
            kernel(breach(name, error), name=name, target=f"a.py::{name}", status="wrong")
            for name, error in (("one", 2.0), ("two", 3.0), ("three", 4.0))
        )
    )


def verdict() -> Verdict:
    held = [bound(1.0, kernel=name, regime=part) for name in ("one", "two", "three") for part in ("high end", "low")]
    return judge([record()], book(*held))


SHORT = "verify replay {} --run 'my run.json' --result y --dtype bfloat16 --regime {}"


def test_the_gate_names_the_worst_of_each_regime_and_prints_one_long_command() -> None:
    text = pages.of_gate(verdict(), Terminal(100), records=["my run.json"])
    assert text.count(ROW) == 1
    blocks = text[text.index("✗ breached  ") :].split("\n\n")
    assert blocks[0].startswith("✗ breached  three y bfloat16 high end\n")
    assert ROW in blocks[0]
    assert text.splitlines()[-1] == "next: " + SHORT.format("three", "'high end'")
    [low] = [block for block in blocks if "three y bfloat16 low" in block.splitlines()[0]]
    assert "at [0, 9]" in low
    assert "(0x0009)" in low
    assert SHORT.format("three", "low") in low
    assert max(len(line) for line in text.splitlines() if ROW not in line) < 120


def test_the_short_command_finds_the_element() -> None:
    """What is printed is what `verify replay` takes."""
    for row in verdict().rows:
        if row.status != "breached":
            continue
        words_ = shlex.split(gate_words.short_replay(row.leading, {record().id: "run.json"}))
        given = parser().parse_args(words_[1:])
        found = worst_of_run(record(), given.target, dtype=given.dtype, result=given.result, regime=given.regime)
        assert found == row.leading.worst
        assert found.origin.index == (9 if row.key.regime == "low" else 7)


def test_the_page_lists_the_worst_of_each_region_beside_the_worst_of_all() -> None:
    kernel_ = record().kernels[0]
    text = record_html.render(msgspec.structs.replace(record(), kernels=[kernel_]))
    table = text[text.index("<caption>Worst inputs") :].split("</table>")[0]
    assert "of all and of each region beyond 0.5 ULP" in table
    rows = re.findall(r"<tr data-replay=.*?</tr>", table)
    assert len(rows) == 2, "the worst of all is the worst of its region too, and stands once"
    assert '[0, 7]</small> <small class="region">worst of high end</small>' in rows[0]
    assert '[0, 9]</small> <small class="region">worst of low</small>' in rows[1]
    assert "--index 9" in rows[1]
    bare = msgspec.structs.replace(kernel_, results=[msgspec.structs.replace(plain(2.0), regimes=[])])
    assert "<caption>Worst inputs, judged" in record_html.render(msgspec.structs.replace(record(), kernels=[bare]))
