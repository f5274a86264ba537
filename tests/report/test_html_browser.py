"""The HTML report in headless Chromium, over file:// and offline: what a reader really gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.report.browser import Browser, Page
from tests.report.sample import HOSTILE_NAME, empty, incomplete, many, passing, rich, sample
from verify.records import files, record
from verify.report import words
from verify.report.html import record_html
from verify.report.html.plot import reading
from verify.report.present import present

SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(record_html.render(sample()), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page in a fresh tab, which closes at the end."""
    tab = browser.page()
    tab.resize(1280)

    def show(path: Path) -> Page:
        tab.open(path)
        assert tab.evaluate(SCRIPT + "look.ready()") == "yes"
        return tab

    yield show
    tab.close()


@pytest.fixture
def page(opened: Callable[..., Page], file: Path) -> Page:
    return opened(file)


def column(page: Page, key: str) -> list[str]:
    found: list[str] = page.evaluate(f"{SCRIPT}look.cells({json.dumps(key)})")
    return found


def click(page: Page, selector: str) -> None:
    page.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


def query(page: Page, text: str) -> None:
    page.evaluate(
        f"(() => {{ const q = document.querySelector('#query'); q.value = {json.dumps(text)};"
        " q.dispatchEvent(new Event('input')); })()"
    )


# test_html.py tests that these are well formed; the page of the sample is opened by most tests
OTHERS = (sample(), passing(), incomplete(), many(20))


@pytest.mark.parametrize("run", [empty(), rich(), *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)])
def test_it_opens_without_a_request_or_a_complaint(
    opened: Callable[..., Page], tmp_path: Path, run: record.Run
) -> None:
    path = tmp_path / "page.html"
    path.write_text(record_html.render(run), encoding="utf-8")
    tab = opened(path)
    assert tab.requests == [path.resolve().as_uri()]
    tab.evaluate("document.querySelector('#expand')?.click()")
    assert tab.evaluate("document.querySelectorAll('.packed').length") == 0
    assert tab.evaluate("document.querySelectorAll('details.kernel').length") == len(run.kernels)
    assert tab.complaints == []


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
    assert page.evaluate("document.scripts.length") == 2  # the record is one of them
    planted = "document.querySelectorAll('img, u, op, p b b, td i, td b, th b, pre *').length"
    assert page.evaluate(planted) == 0
    names = column(page, "kernel")
    assert any(name.startswith(HOSTILE_NAME.split("[")[0]) for name in names)
    events = [event["method"] for event in page.browser.events]
    assert "Page.javascriptDialogOpening" not in events


def test_sorting_by_numbers_puts_nan_worst_and_missing_last(page: Page) -> None:
    click(page, "th[data-key=ordinary] button")
    down = column(page, "ordinary")
    assert page.evaluate("document.querySelector('th[data-key=ordinary]').ariaSort") == "descending"
    assert page.evaluate("document.querySelectorAll('th[aria-sort=none]').length") == 8
    assert down[:4] == ["NaN", "3.0e+05", "255", "255"]
    measured = [text for text in down if text]
    assert down == measured + [""] * (len(down) - len(measured))
    values = [float("inf") if text == "NaN" else float(text.split()[0].replace(",", "")) for text in measured]
    assert values == sorted(values, reverse=True)
    click(page, "th[data-key=ordinary] button")
    up = column(page, "ordinary")
    assert page.evaluate("document.querySelector('th[data-key=ordinary]').ariaSort") == "ascending"
    assert up[: len(measured)][-1] == "NaN"
    assert up[len(measured) :] == [""] * (len(down) - len(measured))
    assert [float(text.split()[0]) for text in up[:3]] == [0.5, 0.5, 0.814]


def test_filtering_by_text_and_by_attention(page: Page) -> None:
    total = len(present(sample()).rows)
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
    click(page, "th[data-key=ordinary] button")  # sorting keeps the filter
    assert {text.strip()[0] for text in column(page, "verdict")} == {"✗", "○"}
    click(page, "#attention")
    assert len(column(page, "kernel")) == total


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
    got = page.evaluate(SCRIPT + "look.downloaded()")
    assert got[:2] == ["verify-3f9ac07be215.json", "application/json"]
    assert files.decode(got[2].encode()) == sample()


def test_every_worst_input_copies_its_own_replay_command(page: Page) -> None:
    got = page.evaluate(SCRIPT + "look.copied()")
    elements = [worst for kernel in sample().kernels for result in kernel.results for worst in result.worst]
    wanted = [record.replay_command(worst.origin) for worst in elements]
    assert got[1] == len(wanted)
    assert got[0] == [words.clean(command) for command in wanted]


def test_pointing_at_the_curve_reads_the_worst_input_of_each_bin(opened: Callable[..., Page], tmp_path: Path) -> None:
    """Every bin, against what Python says of it."""
    (tmp_path / "rich.html").write_text(record_html.render(rich()), encoding="utf-8")
    curve = rich().kernels[1].results[0].curve
    assert curve is not None
    got: list[str] = opened(tmp_path / "rich.html").evaluate(
        """(() => {
            document.querySelector('#kernel-1').open = true;
            const plot = document.querySelector('#kernel-1 svg.curve');
            const box = plot.getBoundingClientRect();
            return [...Array(BINS).keys()].map((index) => {
                const x = box.left + box.width * (44 + (index + 0.5) * (560 - 44) / BINS) / 560;
                plot.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: box.top + 20}));
                return plot.parentElement.querySelector('.reading').textContent;
            });
        })()""".replace("BINS", str(len(curve.counts)))
    )
    wanted = [reading(curve, place, "bfloat16") for place in range(len(curve.counts) - 1)]
    assert got[:-1] == wanted
    assert got[-1] == "x from 15.6667 to 16: no input"


def test_a_packed_section_is_filled_when_it_is_opened(opened: Callable[..., Page], tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    run = many(20)
    path.write_text(record_html.render(run), encoding="utf-8")
    tab = opened(path)
    [*_, last] = tab.evaluate("[...document.querySelectorAll('.packed')].map((e) => e.closest('details').id)")
    assert tab.evaluate(f"document.querySelectorAll('#{last} article').length") == 0
    tab.evaluate(f"document.querySelector('#table a[href=\"#{last}\"]').click()")
    tab.evaluate("new Promise((done) => setTimeout(done, 60))")
    kernel = run.kernels[int(last.removeprefix("kernel-"))]
    assert tab.evaluate(f"document.querySelectorAll('#{last} article').length") == len(kernel.results)
    buttons = sum(len(result.worst) for result in kernel.results)
    assert tab.evaluate(f"document.querySelectorAll('#{last} .elements .copy').length") == buttons
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("document.querySelectorAll('.packed').length") == 0
    assert tab.complaints == []
