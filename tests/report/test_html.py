"""The HTML report, read as text: self-contained, inert, complete, small, quick."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser

import pytest

from tests.report.sample import (
    HOSTILE_MESSAGE,
    HOSTILE_NAME,
    empty,
    good_kernel,
    histogram,
    incomplete,
    many,
    passing,
    sample,
)
from verify import record
from verify.report import html, plot

VOID = {"meta", "input", "br", "link", "img", "hr", "base"}
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
        self.text += " " if tag in ("dt", "dd", "p", "h2") else ""

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] in ("script", "style"):
            attributes, text = self.raw[-1]
            self.raw[-1] = (attributes, text + data)
        else:
            self.text += data


@pytest.fixture(scope="module")
def page() -> str:
    return html.render(sample())


@pytest.fixture(scope="module")
def reader(page: str) -> Reader:
    return Reader(page)


def test_the_page_is_well_formed_in_every_state() -> None:
    for run in (sample(), passing(), incomplete(), empty()):
        parsed = Reader(html.render(run))
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
    inline = [text for attrs, text in reader.raw if attrs.get("type") != "application/json"]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in inline]
    assert [rules["style-src"], rules["script-src"]] == hashes


def test_the_record_is_embedded_whole(reader: Reader) -> None:
    found = [text for attrs, text in reader.raw if attrs.get("type") == "application/json"]
    assert len(found) == 1
    assert record.decode(found[0].encode()) == sample()
    assert not re.search("[<>&\u2028\u2029]", found[0])


def test_hostile_text_makes_no_element(page: str, reader: Reader) -> None:
    assert [tag for tag, _ in reader.elements].count("script") == 2
    assert HOSTILE_NAME.split("[")[0] in reader.text  # shown as it is
    assert HOSTILE_MESSAGE.split("\n")[0] in reader.text
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_a_first_reader_finds_worst_kernel_input_and_command(reader: Reader) -> None:
    text = re.sub(r"\s+", " ", reader.text)
    lead = text[text.index("The worst result") :]
    assert lead.startswith(
        "The worst result exp_tanh_gelu, y bfloat16: NaN, exhaustive, 65,536 inputs. "
        "Its limit is 4 ULP. Input x = 11.0625 (0x4131) at [16689] "
        "The kernel returned nan (0x7fc0) The exact answer 11.0624999999999999999999999989 "
    )
    assert "verify replay accuracy.py::exp_tanh_gelu" in lead[:700]


def test_every_maximum_has_its_basis_beside_it(reader: Reader) -> None:
    text = re.sub(r"\s+", " ", reader.text)
    lines = re.findall(r"Maximum .*?; limit", text)
    assert len(lines) == sum(len(kernel.results) for kernel in sample().kernels)
    for line in lines:
        assert re.search(r"(exhaustive, [\d,]+ inputs|(observed|certified) over [\d,]+ cases)", line)


def test_rows_come_worst_first() -> None:
    rows = html.rows(sample())
    ranks = [int(row.cells["verdict"].key) for row in rows]
    assert ranks == sorted(ranks, reverse=True)
    first = [row.cells["kernel"].text for row in rows][:1]
    assert first == ["exp_tanh_gelu"]


def test_it_is_small() -> None:
    run = many(20)
    page = html.render(run)
    # 40 results with up to ten worst inputs each: about 7 KB a result, and the record itself
    assert len(page) - len(html.embedded(run)) < 300_000
    assert len(page) < 500_000


def test_the_strip_is_monotone_and_keeps_nan_apart() -> None:
    values = [0.0, 0.05, 0.1, 0.5, 1.0, 4.0, 255.0, 1.7e7, 1e9, 1e30]
    places = [plot.strip_position(value) for value in values]
    assert places == sorted(places)
    assert places[3] < places[4] < places[5] < places[6] < places[7]
    for bad in ("nan", "inf"):
        assert plot.strip_position(bad) > max(places) + 5  # type: ignore[arg-type]
    assert plot.strip_position(-255.0) == plot.strip_position(255.0)


def test_the_histogram_shows_every_bin_and_says_it_in_words() -> None:
    one = histogram(65_536, 3)
    drawn = str(plot.histogram_svg(one, name="k", path="0.0"))
    bars = re.findall(r"M([\d.]+) 132v-(\d+)", drawn)
    filled = [count for count in one.counts if count]
    assert len(bars) == len(filled)
    heights = [int(height) for _, height in sorted(bars, key=lambda bar: float(bar[0]))]
    order = sorted(range(len(filled)), key=lambda k: filled[k])
    assert [heights[k] for k in order] == sorted(heights)  # more errors, higher bar
    label = re.search(r'aria-label="(.*?)"', drawn)
    assert label is not None
    assert f"1/2 to 1: {one.counts[len(one.counts) // 2 + 4]:,}" in label[1]
    assert label[1].count(": ") == len(filled)


def test_an_empty_histogram_says_so() -> None:
    blank = record.Histogram([-1.0, 0.0, 1.0], [0, 0])
    assert "No errors were counted" in str(plot.histogram_svg(blank, name="k", path="0.0"))
    nothing = record.Histogram([], [])
    assert "No errors were counted" in str(plot.histogram_svg(nothing, name="k", path="0.0"))


def test_axis_labels_do_not_collide() -> None:
    for octaves in (-1, 0, 2, 8, 24, 60):
        drawn = str(plot.histogram_svg(histogram(1 << 20, octaves), name="k", path="0.0"))
        labels = re.findall(r'<text(?: class="(\w+)")? x="([\d.]+)" y="148">([^<]+)<', drawn)
        spans = []
        for place, x, text in labels:
            width = 6.0 * len(text)  # measured in Chromium: 10.5 px digits are at most 6.7 wide
            left = float(x) - {"start": 0.0, "end": width}.get(place, width / 2)
            spans.append((left, left + width))
        spans.sort()
        assert all(a[1] < b[0] for a, b in itertools.pairwise(spans)), octaves
        assert "0" in [text for _, _, text in labels]


def test_good_results_use_no_alarm_colour() -> None:
    run = passing()
    assert good_kernel().status == "ok"
    assert "is-wrong" not in html.render(run).split("<body>")[1].split("<script")[0]
