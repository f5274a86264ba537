"""How heavy and how quick the HTML page of a record is: `python -m benchmarks.page RUN.json`.

Wall-clock times are of the best of five loads in headless Chromium, from the navigation's start: until the first
paint, until the page can be used, until everything that lies compressed in it is unpacked. Processor time is the
page's own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.report.browser import Browser
from tests.report.test_html_browser import READY
from verify.records import files
from verify.report.html import record_html

LOADS = 5
TIMES = """(() => {
    const [load] = performance.getEntriesByType('navigation');
    const [paint] = performance.getEntriesByName('first-contentful-paint');
    return [performance.now(), paint ? paint.startTime : 0, load.domContentLoadedEventEnd];
})()"""


def main(source: str) -> None:
    run = files.load(source)
    began = time.process_time()
    text = record_html.render(run)
    spent = time.process_time() - began
    results = sum(len(kernel.results) for kernel in run.kernels)
    print(f"record {len(files.encode(run)):,} bytes: {len(run.kernels)} kernels, {results} results")
    print(f"page   {len(text.encode()):,} bytes, written in {spent:.1f} s of processor time")
    browser = Browser()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "report.html"
            path.write_text(text, encoding="utf-8")
            best = min(_load(browser, path) for _ in range(LOADS))
    finally:
        browser.close()
    ready, paint, usable, processor = best
    print(f"load   paint {paint:.0f} ms, usable {usable:.0f} ms, unpacked {ready:.0f} ms; processor {processor:.0f} ms")


def _load(browser: Browser, path: Path) -> tuple[float, float, float, float]:
    page = browser.page()
    page.send("Performance.enable", timeDomain="threadTicks")
    page.resize(1280)
    page.open(path)
    page.evaluate(READY)
    ready, paint, usable = page.evaluate(TIMES)
    metrics = {item["name"]: item["value"] for item in page.send("Performance.getMetrics")["metrics"]}
    page.close()
    return ready, paint, usable, 1000 * metrics["TaskDuration"]


if __name__ == "__main__":
    main(sys.argv[1])
