"""Pictures of the HTML report: `python -m tests.report.screenshot OUT [RECORD]`.

Without a record the sample run is drawn. Wide in light and dark, narrow in both, and as it prints.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from tests.report.browser import Browser
from tests.report.sample import sample
from verify.records import files
from verify.report.html import record_html

VIEWS = (
    ("wide-light", 1280, "light", False),
    ("wide-dark", 1280, "dark", False),
    ("middle-light", 900, "light", False),
    ("narrow-light", 390, "light", True),
    ("narrow-dark", 390, "dark", True),
)


def main(folder: Path, source: str | None) -> None:
    run = files.load(source) if source else sample()
    folder.mkdir(parents=True, exist_ok=True)
    browser = Browser()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "report.html"
            path.write_text(record_html.render(run), encoding="utf-8")
            for name, width, scheme, mobile in VIEWS:
                page = browser.page()
                page.resize(width, mobile=mobile)
                page.media(scheme=scheme)
                page.open(path)
                page.screenshot(folder / f"{name}.png")
                page.close()
            page = browser.page()
            page.open(path)
            # the engine's own print path: it fires beforeprint, which opens every section
            document = page.send("Page.printToPDF", printBackground=True)["data"]
            (folder / "print.pdf").write_bytes(base64.b64decode(document))
    finally:
        browser.close()


if __name__ == "__main__":
    main(
        Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots"),
        sys.argv[2] if len(sys.argv) > 2 else None,
    )
