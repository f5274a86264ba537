"""Builds the navigation of the site from docs/README.md, and makes links to files outside docs/ work on it.

mkdocs loads this module (`hooks` in mkdocs.yml). Markdown files outside docs/ that a page links to become pages. Other
files become text files below repository/. Links to folders become plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")
SECTION, ENTRY = re.compile(r"^\*\*(.+?)\*\*"), re.compile(r"^- \[[^\]]+\]\(([^)\s#]+)\)")


def navigation(index: str) -> list[dict[str, Any]]:
    """Returns the navigation of mkdocs: the bold lines of the index are its sections, list items are its pages."""
    found: list[dict[str, Any]] = [{"Overview": "README.md"}]
    for line in index.splitlines():
        if section := SECTION.match(line):
            found.append({section[1].rstrip(":"): []})
        elif (entry := ENTRY.match(line)) and len(found) > 1:
            next(iter(found[-1].values())).append(place(posixpath.normpath(f"docs/{entry[1]}")))
    return found


def place(path: str) -> str:
    """Returns where a file of the repository lies below the folder of pages: `docs/` is its top."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path.lower() if path.endswith(".md") and "/" not in path else f"repository/{path}"


def relinked(markdown: str, page: str) -> str:
    """Returns the text of a file of the repository with its links as the site has them."""

    def moved(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        if ":" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        if (ROOT / path).is_dir():
            return label
        return f"[{label}]({posixpath.relpath(site_name(path), posixpath.dirname(place(page)) or '.')}{anchor})"

    return LINK.sub(moved, markdown)


def site_name(path: str) -> str:
    """Returns the place of a file that is linked: files that are not Markdown are shown as text."""
    there = place(path)
    shown = path.endswith((".md", ".json", ".gz", ".png"))
    return there if shown else f"{there}.txt"


def linked_from(page: str) -> set[str]:
    """Returns the files of the repository outside docs/ that a page leads to."""
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = (match[2] for match in LINK.finditer(text) if ":" not in match[2])
    paths = {posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in targets}
    return {path for path in paths if not path.startswith("docs/") and (ROOT / path).is_file()}


def on_config(config: Any) -> Any:
    """Gives mkdocs the navigation."""
    config["nav"] = navigation((ROOT / "docs/README.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the files outside docs/ that pages lead to."""
    from mkdocs.structure.files import File

    known, new = set[str](), {f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md")}
    while new:
        known |= new
        pages = (path for path in new if path.endswith(".md"))
        new = set().union(*(linked_from(page) for page in pages)) - known
        for path in sorted(new):
            files.append(File.generated(config, site_name(path), content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites the links of a page."""
    known = {place(path): path for path in _repository_pages()}
    return relinked(markdown, known.get(page.file.src_uri, f"docs/{page.file.src_uri}"))


def _repository_pages() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/README.md")]]
