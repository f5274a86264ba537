"""The site has every page of docs/ in its navigation, and its links lead to pages and files that it has."""

from __future__ import annotations

import posixpath
import re

import yaml

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


def test_links_to_sources_and_folders_are_rewritten() -> None:
    text = "[a](../examples/liger.py) [b](../reports/published) [c](like.md#attention) [d](../CONTRIBUTING.md)"
    shown = "[a](repository/examples/liger.py.txt) b [c](like.md#attention) [d](contributing.md)"
    assert HOOK.relinked(text, "docs/gate.md") == shown
    assert HOOK.relinked("[g](docs/gate.md)", "CONTRIBUTING.md") == "[g](gate.md)"


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(share * value for share, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_colours_have_a_contrast_of_4_5_on_the_pages_and_on_code() -> None:
    """The theme's own do not: axe-core 4.14 found 863 such places in 47 pages, and none with these."""
    rules = re.findall(r"([^{}]+)\{([^}]*)\}", (ROOT / "docs" / "site.css").read_text(encoding="utf-8"))
    grounds = {'"slate"': ("#1e2129", "#272a35"), "": ("#ffffff", "#f5f5f5")}
    found = 0
    for selector, body in rules:
        ground = next(colours for name, colours in grounds.items() if name in selector)
        for colour in re.findall(r": (#\w{6});", body):
            found += 1
            for other in ground:
                light, dark = sorted(map(luminance, (colour, other)), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (selector, colour, other)
    assert found >= 8


def test_the_keyboard_reaches_the_choice_of_colours() -> None:
    """Without a name the theme hides its two buttons from screen readers, though the keyboard reaches them."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert (site["extra_css"], site["extra_javascript"]) == (["site.css"], ["site.js"])
    assert [each["toggle"]["name"] for each in site["theme"]["palette"]] == ["Dark colours", "Light colours"]
