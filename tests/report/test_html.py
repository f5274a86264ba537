"""The HTML report, read as text: self-contained, inert, complete, small, quick."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from tests.report.sample import (
    HOSTILE_MESSAGE,
    HOSTILE_NAME,
    empty,
    incomplete,
    many,
    night,
    passing,
    rich,
    sample,
)
from verify.records import files, record
from verify.report import words
from verify.report.html import record_html

VOID = {"meta", "input", "br", "wbr", "link", "img", "hr", "base"}
LINES = {"dt", "dd", "p", "h1", "h2", "h3", "li", "tr", "caption", "summary", "figcaption", "text"}
FETCHES = {"src", "srcset", "href", "action", "data", "poster", "formaction", "background", "ping"}


class Reader(HTMLParser):
    """Checks nesting; collects elements and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self.stack: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)
        if tag in ("script", "style"):
            self.raw.append((dict(attrs), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag, f"unbalanced {tag}"
        self.text += "\n" if tag in LINES else " " if tag in ("td", "th") else ""

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] in ("script", "style"):
            attributes, text = self.raw[-1]
            self.raw[-1] = (attributes, text + data)
        else:
            self.text += data


def visible(run: record.Run) -> str:
    """Returns the text of a run's page, a line for each part."""
    lines = (" ".join(line.split()) for line in Reader(record_html.render(run)).text.splitlines())
    return "\n".join(filter(None, lines)) + "\n"


@pytest.fixture(scope="module")
def page() -> str:
    return record_html.render(sample())


@pytest.fixture(scope="module")
def reader(page: str) -> Reader:
    return Reader(page)


def test_the_page_is_well_formed_in_every_state() -> None:
    for run in (sample(), passing(), incomplete(), empty(), rich()):
        parsed = Reader(record_html.render(run))
        assert not parsed.stack
        anchors = [attrs["id"] for _, attrs in parsed.elements if "id" in attrs]
        assert len(anchors) == len(set(anchors))
        for _, attrs in parsed.elements:
            if (attrs.get("href") or "").startswith("#"):
                assert (attrs["href"] or "")[1:] in anchors


def test_nothing_refers_to_anything_outside(reader: Reader) -> None:
    for tag, attrs in reader.elements:
        assert tag not in {"link", "iframe", "object", "embed", "base", "img", "form"}
        for name in FETCHES & set(attrs):
            if tag != "path":
                assert (attrs[name] or "").startswith("#"), (tag, name)
        assert not [name for name in attrs if name.startswith("on")]
        assert "style" not in attrs  # the policy refuses style attributes
    style = "".join(text for attrs, text in reader.raw if "type" not in attrs)
    assert len(style) > 10_000
    assert not re.search(r"https?:|//\w|url\(|@import", style)


def test_the_policy_names_exactly_our_style_and_script(reader: Reader) -> None:
    policy = next(
        attrs["content"]
        for tag, attrs in reader.elements
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in (policy or "")
    inline = [text for attrs, text in reader.raw if "type" not in attrs]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in inline]
    assert [rules["style-src"], rules["script-src"]] == hashes


def unpacked(page: str, name: str) -> bytes:
    """What lies compressed in a page."""
    found = re.findall(rf'<script type="application/gzip" id="{name}"[^>]*>([A-Za-z0-9+/=]*)</script>', page)
    assert len(found) == 1
    return gzip.decompress(base64.b64decode(found[0]))


def test_the_record_is_embedded_whole_and_byte_for_byte(page: str) -> None:
    assert unpacked(page, "record") == files.encode(sample())
    assert record_html.render(sample()) == page  # the same bytes every time: no date in the compressed parts


def test_what_does_not_fit_is_compressed_whole() -> None:
    run = many(20)
    page = record_html.render(run)
    sections = sections_of(page)
    reader = Reader(page)
    anchors = [attrs["id"] for tag, attrs in reader.elements if tag == "details" and "id" in attrs]
    assert anchors == [f"kernel-{index}" for index in range(20)]
    worst = next(attrs["id"] for tag, attrs in reader.elements if tag == "details" and "open" in attrs)
    assert worst not in sections  # what opens with the page needs no script
    assert 5 < len(sections) < 20
    for anchor, text in sections.items():
        kernel = run.kernels[int(anchor.removeprefix("kernel-"))]
        inner = Reader(text)
        assert not inner.stack
        replays = [attrs["data-replay"] for _, attrs in inner.elements if "data-replay" in attrs]
        assert replays == [record.replay_command(worst.origin) for result in kernel.results for worst in result.worst]


def test_hostile_text_makes_no_element(page: str, reader: Reader) -> None:
    scripts = [attrs.get("type") for tag, attrs in reader.elements if tag == "script"]
    assert scripts == ["application/gzip", None]  # the record, which no reader takes for a script, and ours
    assert HOSTILE_NAME.split("[")[0] in reader.text  # shown as it is
    assert HOSTILE_MESSAGE.split("\n")[0] in reader.text
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_every_text_of_a_record_is_cleaned_by_the_page_itself() -> None:
    hidden = "\u202e"
    free = {"got", "got_hex", "truth", "certificate", "bits", "baseline_name", "mutant", "family", "message", "reason"}

    def hostile(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {
                name: hostile(each, "message" if key in ("facts", "inputs") else name) for name, each in value.items()
            }
        if isinstance(value, list):
            return [hostile(each, key) for each in value]
        return value + hidden if isinstance(value, str) and key in free else value

    run = msgspec.convert(hostile(msgspec.to_builtins(rich())), record.Run)
    page = record_html.render(run)
    assert hidden not in page and page.count("\\u202e") > 100


def test_every_maximum_has_its_basis_beside_it(reader: Reader) -> None:
    text = re.sub(r"\s+", " ", reader.text)
    lines = re.findall(r"Maximum .*?; limit", text)
    assert len(lines) == sum(len(kernel.results) for kernel in sample().kernels)
    for line in lines:
        assert re.search(r"(exhaustive, [\d,]+ inputs|(observed|certified) over [\d,]+ cases)", line)


def sections_of(page: str) -> dict[str, str]:
    """Returns the sections that lie compressed in a page."""
    found: dict[str, str] = json.loads(unpacked(page, "packed"))
    return found


def test_many_peers_stand_apart_by_operation() -> None:
    page = record_html.render(night(30))
    groups = re.findall(r'<details class="group"><summary>([^<]*)</summary>', page)
    calls = {words.call(kernel.op, kernel.params) for kernel in night(30).kernels[4:]}
    assert {group.partition(" of ")[2] for group in groups} == calls
    assert "group" not in re.findall(r'<details class="(\w+)', record_html.render(sample()))


@pytest.fixture(scope="module")
def everything() -> Reader:
    return Reader(record_html.render(rich()))


def test_a_section_shows_the_definition_of_like_escaped() -> None:
    run = passing()
    first = msgspec.structs.replace(run.kernels[0], definition="def ref(x):\n    return x  # </pre><script>\x1b\n")
    text = record_html.render(msgspec.structs.replace(run, kernels=[first]))
    shown = text[text.index("The definition of the right answer") :]
    assert shown.split("<pre>")[1].split("</pre>")[0] == (
        "def ref(x):\n    return x  # &lt;/pre&gt;&lt;script&gt;\\x1b"
    )
    assert "The definition of the right answer" not in record_html.render(run)


def test_a_large_record_is_linked_beside_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    run = sample()
    whole = record_html.render(run, record="run.json")
    assert 'id="download"' in whole and "Record of this run" not in whole
    monkeypatch.setattr(record_html, "RECORD", 10)
    text = record_html.render(run, record='javascript:"<x>.json')
    assert '<a href="./javascript%3A%22%3Cx%3E.json" download>Record of this run</a>' in text
    assert 'id="download"' not in text and "Record of this run" not in record_html.render(run)
    assert 'id="record"' not in text
    drawn = [attrs["data-bins"] for _, attrs in Reader(text).elements if "data-bins" in attrs]
    results = [result for kernel in run.kernels for result in kernel.results]
    bins = [bins for result in results for bins in (result.curve, result.histogram) if bins and any(bins.counts)]
    assert [json.loads(text or "") for text in drawn] == [json.loads(msgspec.json.encode(each)) for each in bins]
