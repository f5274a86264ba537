"""Makes the README's picture: `python -m tests.docs.picture` runs the README's command and writes docs/report.png.

The picture is the top of the HTML report, as Chromium shows it. It also carries the text of that part, so a test can
tell without Chromium whether the page has changed since.
"""

from __future__ import annotations

import base64
import html
import os
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from tests.report.browser import Browser

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "report.png"
README = (ROOT / "README.md").read_text(encoding="utf-8")
DECLARATION = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]
[COMMAND] = re.findall(r"^verify (run accuracy\.py --html report\.html)\b", README, flags=re.MULTILINE)
WIDTH, MARGIN = 1200, 24
SIGNATURE, TEXT = b"\x89PNG\r\n\x1a\n", b"iTXt"


def shown_text(page: str) -> str:
    """Returns the words of the part of a report that the picture shows, without the line of time and machine."""
    parts = [
        re.findall(rf'<section class="{name}[ "].*?</section>', page, re.DOTALL)[0] for name in ("verdict", "worst")
    ]
    text = re.sub(r'<p class="setting">.*?</p>', " ", " ".join(parts), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def with_text(png: bytes, text: str) -> bytes:
    """Adds a text to a PNG, in a chunk before its last one."""
    data = b"page\0\0\0\0\0" + text.encode()
    chunk = struct.pack(">I", len(data)) + TEXT + data + struct.pack(">I", zlib.crc32(TEXT + data))
    return png[:-12] + chunk + png[-12:]


def text_of(png: bytes) -> str:
    """Returns the text that `with_text` added."""
    assert png.startswith(SIGNATURE)
    at = len(SIGNATURE)
    while at < len(png):
        size = struct.unpack(">I", png[at : at + 4])[0]
        if png[at + 4 : at + 8] == TEXT:
            return png[at + 8 : at + 8 + size].removeprefix(b"page\0\0\0\0\0").decode()
        at += 12 + size
    return ""


def size_of(png: bytes) -> tuple[int, int]:
    """Returns width and height in pixels."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def taken(page: Path, browser: Browser) -> bytes:
    """Returns a picture of the top of a report, down to the end of the worst result."""
    tab = browser.page()
    tab.resize(WIDTH)
    tab.open(page)
    end = tab.evaluate("document.querySelector('section.worst').getBoundingClientRect().bottom + window.scrollY")
    tab.resize(WIDTH, int(end) + MARGIN)
    picture = base64.b64decode(tab.send("Page.captureScreenshot", format="png")["data"])
    tab.close()
    return with_text(picture, shown_text(page.read_text(encoding="utf-8")))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "accuracy.py").write_text(DECLARATION, encoding="utf-8")
        command = [sys.executable, "-m", "verify", *COMMAND.split()]
        subprocess.run(command, cwd=folder, env={**os.environ, "TRITON_INTERPRET": "1"})
        browser = Browser()
        try:
            PICTURE.write_bytes(taken(Path(folder) / "report.html", browser))
        finally:
            browser.close()


if __name__ == "__main__":
    main()
