"""The site has every page of docs/ in its navigation, and its links lead to pages and files that it has."""

from __future__ import annotations

import posixpath

from tests.docs.test_docs import DOCS, ROOT, module

HOOK = module(ROOT / "docs" / "site_hook.py")


def test_the_navigation_has_every_page_by_purpose() -> None:
    found = HOOK.navigation((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    sections = {name: pages for each in found for name, pages in each.items()}
    assert [*sections][1:5] == ["Tutorial", "How-to guides", "Reference", "Explanation"]
    pages = {"README.md", *(page for pages in [*sections.values()][1:] for page in pages)}
    assert {path.name for path in DOCS} <= pages
    assert "contributing.md" in pages


def test_links_lead_to_what_the_site_has() -> None:
    pages = {path.relative_to(ROOT).as_posix() for path in [*DOCS, *ROOT.glob("docs/findings/*.md")]}
    beside = set[str]().union(*map(HOOK.linked_from, pages))
    beside |= set[str]().union(*(HOOK.linked_from(page) for page in beside if page.endswith(".md")))
    there = {
        "report.png",
        *(f"gallery/{path.name}" for path in (ROOT / "docs" / "gallery").iterdir()),
        *(HOOK.site_name(path) for path in pages | beside),
    }
    for page in pages | {path for path in beside if path.endswith(".md")}:
        folder = posixpath.dirname(HOOK.place(page))
        text = HOOK.relinked((ROOT / page).read_text(encoding="utf-8"), page)
        for match in HOOK.LINK.finditer(text):
            if ":" not in match[2]:
                assert posixpath.normpath(posixpath.join(folder, match[2])) in there, f"{page}: {match[0]}"
