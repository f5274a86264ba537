"""The HTML report in headless Chromium, over file:// and offline: what a reader really gets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import Browser, Page
from tests.report.sample import HOSTILE_NAME, empty, incomplete, many, passing, sample
from verify import record
from verify.report import html

CELLS = """(key) => [...document.querySelectorAll('#table tbody tr')]
    .filter((row) => !row.hidden)
    .map((row) => row.querySelector(`.c-${key} a`) ?? row.querySelector(`.c-${key}`))
    .map((cell) => cell.textContent)"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html.render(sample()), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    tab = browser.page()
    tab.resize(1280)
    tab.open(file)
    yield tab
    tab.close()


def column(page: Page, key: str) -> list[str]:
    found: list[str] = page.evaluate(f"({CELLS})({json.dumps(key)})")
    return found


def click(page: Page, selector: str) -> None:
    page.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


def query(page: Page, text: str) -> None:
    page.evaluate(
        f"(() => {{ const q = document.querySelector('#query'); q.value = {json.dumps(text)};"
        " q.dispatchEvent(new Event('input')); })()"
    )


@pytest.mark.parametrize("run", [sample(), passing(), incomplete(), empty(), many(20)])
def test_it_opens_without_a_request_or_a_complaint(browser: Browser, tmp_path: Path, run: record.Run) -> None:
    path = tmp_path / "page.html"
    path.write_text(html.render(run), encoding="utf-8")
    tab = browser.page()
    tab.open(path)
    assert tab.requests == [path.resolve().as_uri()]
    assert tab.complaints == []
    assert tab.evaluate("document.querySelector('#theme').hidden") is False  # the script ran
    tab.close()


def test_the_policy_refuses_what_a_page_must_not_do(page: Page) -> None:
    """Also shows that complaints would have been seen."""
    refused = page.evaluate("fetch('https://example.invalid/').then(() => 'sent', () => 'refused')")
    assert refused == "refused"
    page.evaluate("document.body.append(Object.assign(new Image(), {src: 'https://a.invalid/'}))")
    page.evaluate(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.hit = 1';"
        " document.body.append(s); })()"
    )
    assert page.evaluate("window.hit") is None
    complaints = " ".join(page.complaints)
    for directive in ("connect-src", "img-src", "script-src"):
        assert directive in complaints
    assert page.blocked == ["csp"]  # the image; the others were not even tried


def test_hostile_names_are_text(page: Page) -> None:
    assert page.evaluate("document.scripts.length") == 2
    planted = "document.querySelectorAll('img, u, op, p b b, td i, td b, th b, pre *').length"
    assert page.evaluate(planted) == 0
    names = column(page, "kernel")
    assert any(name.startswith(HOSTILE_NAME.split("[")[0]) for name in names)
    events = [event["method"] for event in page.browser.events]
    assert "Page.javascriptDialogOpening" not in events


def test_sorting_by_numbers_puts_nan_worst_and_missing_last(page: Page) -> None:
    click(page, "th[data-key=max] button")
    down = column(page, "max")
    assert page.evaluate("document.querySelector('th[data-key=max]').ariaSort") == "descending"
    assert page.evaluate("document.querySelectorAll('th[aria-sort=none]').length") == 8
    assert down[:4] == ["NaN", "3.0e+05", "255", "255"]
    measured = [text for text in down if text]
    assert down == measured + [""] * (len(down) - len(measured))
    values = [float("inf") if text == "NaN" else float(text.split()[0].replace(",", "")) for text in measured]
    assert values == sorted(values, reverse=True)
    click(page, "th[data-key=max] button")
    up = column(page, "max")
    assert page.evaluate("document.querySelector('th[data-key=max]').ariaSort") == "ascending"
    assert up[: len(measured)][-1] == "NaN"
    assert up[len(measured) :] == [""] * (len(down) - len(measured))
    assert [float(text.split()[0]) for text in up[:3]] == [0.5, 0.5, 0.814]


def test_sorting_by_text_starts_ascending(page: Page) -> None:
    click(page, "th[data-key=kernel] button")
    names = column(page, "kernel")
    assert page.evaluate("document.querySelector('th[data-key=kernel]').ariaSort") == "ascending"
    plain = [name.lower() for name in names if name[0].isalpha()]
    assert plain == sorted(plain, key=lambda name: name.replace("_", " "))
    assert len(names) == len(html.rows(sample()))


def test_the_page_opens_worst_first(page: Page) -> None:
    verdicts = [text.strip() for text in column(page, "verdict")]
    assert verdicts[:6] == ["✗ wrong"] * 4 + ["✗ crashed", "✗ timed out"]
    assert page.evaluate("document.querySelector('th[data-key=verdict]').ariaSort") == "descending"


def test_filtering_by_text_and_by_attention(page: Page) -> None:
    total = len(html.rows(sample()))
    shown = "document.querySelector('#shown').textContent"
    assert page.evaluate(shown) == f"{total} rows"
    query(page, "GELU bfloat16 wrong")
    assert column(page, "kernel") == ["exp_tanh_gelu", "eager_gelu"]
    assert page.evaluate(shown) == f"2 of {total} rows"
    query(page, "no such kernel")
    assert column(page, "kernel") == []
    query(page, "")
    click(page, "#attention")
    verdicts = {text.strip()[0] for text in column(page, "verdict")}
    assert verdicts == {"✗", "○"}
    click(page, "th[data-key=max] button")  # sorting keeps the filter
    assert {text.strip()[0] for text in column(page, "verdict")} == {"✗", "○"}
    click(page, "#attention")
    assert len(column(page, "kernel")) == total


def test_keyboard_alone_reaches_and_works_the_table(page: Page) -> None:
    page.evaluate("document.querySelector('#query').focus()")
    order = []
    for _ in range(11):
        page.key("Tab")
        order.append(page.evaluate("document.activeElement.textContent || document.activeElement.id"))
    assert order[:4] == ["attention", "Kernel", "Result", "Dtype"]
    assert order[9] == "Verdict"
    page.evaluate("document.querySelector('th[data-key=p999] button').focus()")
    page.key("Enter", "\r")
    assert page.evaluate("document.querySelector('th[data-key=p999]').ariaSort") == "descending"
    page.key(" ", " ")
    assert page.evaluate("document.querySelector('th[data-key=p999]').ariaSort") == "ascending"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.evaluate("document.querySelector('#query').focus()")
    query(page, "gelu")
    page.key("Escape")
    assert page.evaluate("document.querySelector('#query').value") == ""


def test_a_kernel_link_opens_its_section(page: Page) -> None:
    opened = "[...document.querySelectorAll('details.kernel')].map((d) => d.open ? d.id : '').join('')"
    assert page.evaluate(opened) == "kernel-3"  # the worst
    page.evaluate("document.querySelector('#table a[href=\"#kernel-4\"]').click()")
    wait = "new Promise((done) => setTimeout(done, 60))"
    page.evaluate(wait)
    assert page.evaluate(opened) == "kernel-3kernel-4"
    assert page.evaluate("document.activeElement.parentElement.id") == "kernel-4"
    page.evaluate("document.querySelector('#kernel-4').open = false")
    page.evaluate("document.querySelector('#table a[href=\"#kernel-4\"]').click()")
    page.evaluate(wait)
    assert page.evaluate(opened) == "kernel-3kernel-4"  # the second click on the same link too
    click(page, "#expand")
    page.evaluate(wait)
    count = len(sample().kernels)
    assert page.evaluate("document.querySelectorAll('details.kernel[open]').length") == count
    assert page.evaluate("document.querySelector('#expand').textContent") == "Close all"


def test_the_download_is_the_record(page: Page) -> None:
    got = page.evaluate(
        """(async () => {
            let blob, name;
            URL.createObjectURL = (it) => { blob = it; return 'blob:none'; };
            HTMLAnchorElement.prototype.click = function () { name = this.download; };
            document.querySelector('#download').click();
            return [name, blob.type, await blob.text()];
        })()"""
    )
    assert got[:2] == ["verify-3f9ac07be215.json", "application/json"]
    assert record.decode(got[2].encode()) == sample()


def test_every_worst_input_copies_its_own_replay_command(page: Page) -> None:
    got = page.evaluate(
        """(async () => {
            const copied = [];
            const writeText = async (text) => { copied.push(text); };
            Object.defineProperty(navigator, 'clipboard', {value: {writeText}});
            for (const button of document.querySelectorAll('.elements .copy')) button.click();
            await new Promise((done) => setTimeout(done, 60));
            return [copied, document.querySelectorAll('.elements tbody tr').length];
        })()"""
    )
    wanted = [worst.replay for kernel in sample().kernels for result in kernel.results for worst in result.worst]
    hostile = [command for command in wanted if "\x1b" in command]
    assert got[1] == len(wanted)
    assert [a for a, b in zip(got[0], wanted, strict=True) if a != b] == [
        command.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e") for command in hostile
    ]


def test_the_command_is_shown_when_copying_is_refused(page: Page) -> None:
    got = page.evaluate(
        """(async () => {
            Object.defineProperty(navigator, 'clipboard', {value: undefined});
            document.execCommand = () => false;
            document.querySelector('#kernel-3 .elements .copy').click();
            await new Promise((done) => setTimeout(done, 60));
            const line = document.querySelector('#kernel-3 .copied');
            return [line.hidden, line.textContent];
        })()"""
    )
    replay = sample().kernels[3].results[0].worst[0].replay
    assert got == [False, f"Copy this: {replay}"]


def test_hovering_the_histogram_reads_a_bin(page: Page) -> None:
    result = sample().kernels[3].results[0]
    counts = result.histogram.counts
    got: list[Any] = page.evaluate(
        """(() => {
            const plot = document.querySelector('#kernel-3 svg.histogram');
            const box = plot.getBoundingClientRect();
            const bars = BARS;
            return [...Array(bars).keys()].map((index) => {
                const x = box.left + box.width * (44 + (index + 0.5) * (560 - 44) / bars) / 560;
                const at = {clientX: x, clientY: box.top + 20};
                plot.dispatchEvent(new PointerEvent('pointermove', at));
                return plot.parentElement.querySelector('.reading').textContent;
            });
        })()""".replace("BARS", str(len(counts)))
    )
    from verify.report.words import power

    edges = [power(edge) for edge in result.histogram.edges]
    assert got == [
        f"{low} to {high} ULP: {count:,}"
        for (low, high), count in zip(itertools.pairwise(edge.replace(",", "") for edge in edges), counts, strict=True)
    ]


def test_themes(browser: Browser, file: Path) -> None:
    tab = browser.page()
    paper = "getComputedStyle(document.body).backgroundColor"
    tab.media(scheme="dark")
    tab.open(file)
    dark = tab.evaluate(paper)
    tab.media(scheme="light")
    light = tab.evaluate(paper)
    assert dark != light
    seen = []
    for _ in range(3):
        click(tab, "#theme")
        seen.append((tab.evaluate("document.querySelector('#theme').textContent"), tab.evaluate(paper)))
    assert seen == [("Theme: light", light), ("Theme: dark", dark), ("Theme: auto", light)]
    tab.close()


CONTRAST = """(() => {
    const number = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
        .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = number(getComputedStyle(at).backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
        }
    };
    for (const section of document.querySelectorAll('details')) section.open = true;
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const poor = new Set();
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const a = light(number(element.closest('svg') ? style.fill : style.color));
        const b = light(behind(element));
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const name = `${element.tagName}.${element.getAttribute('class')}`;
        if (ratio < 4.5) poor.add(`${name} ${ratio.toFixed(2)}`);
    }
    return [...poor];
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(browser: Browser, file: Path, scheme: str) -> None:
    tab = browser.page()
    tab.media(scheme=scheme)
    tab.open(file)
    assert tab.evaluate(CONTRAST) == []
    tab.close()


@pytest.mark.parametrize("width", [320, 390, 760, 940, 1180, 1600])
def test_nothing_runs_off_the_side(browser: Browser, file: Path, width: int) -> None:
    tab = browser.page()
    tab.resize(width, mobile=width < 500)
    tab.open(file)
    tab.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.close()


def test_on_paper_every_section_is_open_and_controls_are_gone(page: Page) -> None:
    page.media(kind="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    visible = "[...document.querySelectorAll('button.copy, .tools, .filter, #expand')]"
    assert page.evaluate(f"{visible}.filter((e) => e.checkVisibility()).length") == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelectorAll('details.kernel[open]').length") == 1
