"""Writes docs/gallery.md and its pictures: `python -m tests.docs.gallery` runs the commands of the gallery.

Each picture is the top of the report that a command writes, as in the README, and carries its text.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.docs import picture
from tests.report.browser import Browser

PAGE = picture.ROOT / "docs" / "gallery.md"
BEGIN, END = "<!-- gallery: begin -->", "<!-- gallery: end -->"


class Entry(NamedTuple):
    """One example: the name of its picture, a title, the arguments of `verify run`, and what it shows."""

    name: str
    title: str
    arguments: str
    shows: str


ENTRIES = (
    Entry(
        "gelu",
        "PyTorch's GELU in bfloat16",
        "examples/pytorch.py::gelu --dtype bfloat16",
        "All 65,536 inputs: the negative tail has lost every digit.",
    ),
    Entry(
        "nvfp4",
        "A quantiser to NVFP4",
        "examples/quantisers.py::nvfp4 --dtype bfloat16",
        "Codes and scales are right or wrong, block by block, without a tolerance.",
    ),
    Entry(
        "w4a16",
        "A product with 4-bit weights",
        "examples/quantised_operands.py::w4a16 --dtype bfloat16",
        "The kernel receives codes and scales, the definition the numbers that they mean.",
    ),
    Entry(
        "fp8",
        "FP8 in Triton",
        "examples/fp8_triton.py",
        "A quantiser of activations and a block-scaled product, with the accumulator of tensor cores.",
    ),
    Entry(
        "in_place",
        "AdamW in place",
        "examples/in_place.py --dtype float32",
        "The definition returns the new values, the kernel writes them into its operands.",
    ),
)


def file_of(entry: Entry) -> Path:
    """Returns the picture of an entry."""
    return PAGE.with_name("gallery") / f"{entry.name}.png"


def report(entry: Entry, folder: Path) -> Path:
    """Runs the command of an entry and returns its report."""
    path = folder / f"{entry.name}.html"
    command = [sys.executable, "-m", "verify", "run", *entry.arguments.split(), "--html", str(path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run(command, cwd=picture.ROOT, env=environment, stdout=subprocess.DEVNULL)
    return path


def section(entry: Entry) -> str:
    """Returns the part of the page about an entry."""
    place, shown = f"gallery/{entry.name}.png", picture.text_of(file_of(entry).read_bytes())
    verdict = re.split(r" The (?:worst result|result closest)", shown)[0]
    return (
        f"### {entry.title}\n\n{entry.shows}\n\n```sh\nverify run {entry.arguments} --html report.html\n```\n\n"
        f'<img src="{place}" width="620" alt="{verdict}">\n'
    )


def page() -> str:
    """Returns the page with its generated part."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    text = "\n".join(map(section, ENTRIES))
    return f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    browser = Browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for entry in ENTRIES:
                file_of(entry).parent.mkdir(exist_ok=True)
                file_of(entry).write_bytes(picture.taken(report(entry, Path(folder)), browser))
    finally:
        browser.close()
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
