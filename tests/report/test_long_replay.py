"""A case of whole rows has a command of thousands of characters: once on a screen, and a short one beside it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex

import msgspec
import pytest

from tests.records.bounds.gate_records import HASH, book, bound, figures, kernel, run
from tests.records.bounds.gate_records import result as plain
from tests.records.bounds.gate_records import worst as element
from verify.cli import parser
from verify.records.bounds.verdict import Verdict, judge
from verify.records.record import LawRun, Origin, RegimeFigures, Result, Run, replay_command
from verify.records.recorded import worst_of_run
from verify.report import gate_data, gate_words, words
from verify.report.html import record_html
from verify.report.markdown import gate_markdown, record_markdown
from verify.report.terminal import gate_text, record_text
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
    text = gate_text.render(verdict(), Terminal(100), records=["my run.json"])
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


def test_without_a_record_the_long_command_stands_in_its_block_and_is_referred_to() -> None:
    text = gate_text.render(verdict(), Terminal(100))
    assert text.count(ROW) == 5  # nothing shorter names these elements
    assert text.splitlines()[-1] == "next: the replay command of three y bfloat16 high end, above"


def test_the_short_command_finds_the_element() -> None:
    """What is printed is what `verify replay` takes."""
    for row in verdict().rows:
        if row.status != "breached":
            continue
        words_ = shlex.split(gate_words.short_replay(row.leading, {record().id: "run.json"}))
        given = parser().parse_args(words_[1:])
        found = worst_of_run(record(), given.target, dtype=given.dtype, result=given.result, regime=given.regime)
        assert found.worst == row.leading.worst
        assert found.origin.index == (9 if row.key.regime == "low" else 7)


def test_a_comment_has_the_worst_regime_of_each_result_and_json_has_all() -> None:
    comment = gate_markdown.render(verdict())
    assert comment.count(ROW) == comment.count("at &#91;0, 7&#93;") == 3
    assert comment.count("and 1 other regime of it") == 2  # of `one` the error in `low` is within its bound
    rows = gate_data.of_verdict(verdict())["rows"]
    told = [row["readings"][0] for row in rows if row["status"] == "breached"]
    assert {(tuple(item["index"]), item["got_hex"]) for item in told} == {((0, 7), "0x0007"), ((0, 9), "0x0009")}
    assert all(ROW in item["replay"] and item["truth"] for item in told)


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_of_a_run_prints_one_long_command(width: int) -> None:
    text = record_text.render(record(), Terminal(width), record="run.json")
    assert text.count(ROW) == 1
    assert text.splitlines()[-1] == "next: verify replay three --run run.json --result y --dtype bfloat16"
    text = record_text.render(record(), Terminal(width))
    assert text.count(ROW) == 3
    assert text.splitlines()[-1] == "next: the replay command of three y bfloat16, above"


def test_a_review_with_the_record_shows_the_element_of_each_regime() -> None:
    """The bounds were made from the record, one of them is looser than before."""
    from verify.records.bounds import changes
    from verify.report.terminal import bounds_text

    made = changes.propose([record()], book()).changes
    new = book(*(change.new for change in made if change.new))
    old = book(*(change.new for change in made if change.new and change.key.regime == "low"))
    loose = next(item for item in old.bounds.values() if item.key.kernel == "one")
    old.bounds[loose.key] = dataclasses.replace(loose, value=0.75)
    found = changes.review(old, new)
    behind = changes.behind(found, [record()])
    text = bounds_text.review(found, "HEAD", Terminal(100), behind=behind, files={record().id: "run.json"})
    assert ROW not in text
    assert text.index("✗ looser  one y bfloat16 low") < text.index("✓ new  three") < text.index("✓ new  one")
    block = text[text.index("✗ looser  one") :].split("\n\n")[0]
    assert "at [0, 9]" in block
    assert "(0x0009)" in block
    assert "verify replay one --run run.json --result y --dtype bfloat16 --regime low" in block
    assert [item["reading"]["index"] for item in gate_data.of_changes(found, behind)] == [[0, 9]] + [[0, 7]] * 3
    bare = bounds_text.review(found, "HEAD", Terminal(100))
    assert "input     x = -4.34 (0xc08b)\n" in bare
    assert "got " not in bare
    assert bare.splitlines()[-1].startswith("next: verify bounds review --run RUN.json")
    other = msgspec.structs.replace(record(), id="ffffffffffff")
    assert changes.behind(found, [other]) == {}, "the record of the evidence, and no other"


def test_a_short_command_stays_as_it_is() -> None:
    item = run(kernel(plain(2.0)))
    text = gate_text.render(judge([item], book(bound(1.0))), Terminal(100), records=["run.json"])
    command = replay_command(element(2.0).origin)
    assert len(command) <= words.LONG
    assert text.count(command) == 2


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
    bare = msgspec.structs.replace(kernel_, results=[plain(2.0)])
    assert "<caption>Worst inputs, judged" in record_html.render(msgspec.structs.replace(record(), kernels=[bare]))


def test_what_is_said_of_many_is_said_once() -> None:
    """A kernel that raises breaks every law; a lost device fails every kernel; a hunt notes each result."""
    laws = [
        LawRun(name, "float16", "broken", 1, "k raised Error", cause="failed", origin=Origin("a.py::k", "{}", law=name))
        for name in "abc"
    ]
    broken = kernel(plain(), name="k", status="wrong", laws=[*laws, LawRun("d", "float16", "broken", 1, "other")])
    notes = [f"y{place}: biased" for place in range(5)]
    failed = [kernel(name=name, status="error", message="device lost", hint=again(name), notes=notes) for name in "pq"]
    item = run(broken, *failed)
    page = record_html.render(item)
    front = page[: page.index('id="results"')]
    assert front.count("k raised Error") == 1
    assert "called for: b (float16), c (float16)</dd>" in front
    assert "other" in front
    assert front.count("device lost") == 1
    assert "p, q</a></h3>" in front
    assert "Next:" not in front[front.index("Could not be measured") :], "the hint is the command below it"
    assert all(f"<code>{again(name)}</code>" in front for name in "pq")
    assert page.count("Note: y0, y1, y2 and 2 more: biased") == 2
    text = record_text.render(item, Terminal(100))
    assert "p: y0, y1, y2 and 2 more: biased" in text
    assert text.count(again("p")) == 1


def again(name: str) -> str:
    return f"verify run accuracy.py::{name}"


def test_a_nan_has_no_scale() -> None:
    nan = plain(float("nan"), gate="scaled")
    for text in (record_html.render(run(kernel(nan))), record_markdown.render(run(kernel(nan)))):
        assert "NaN scaled" not in text
