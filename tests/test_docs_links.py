"""Every relative link of README.md, CONTRIBUTING.md and docs/ leads to a file, and to a heading of it where it names one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """Anchors as code hosts make them: lower case, punctuation dropped, spaces as hyphens."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found = []
    for path, anchor in LINK.findall(text):
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            found.append(f"{path}#{anchor}")
    return found


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title: yes\n[a](page.md#a-title-yes) [b](page.md#no) [c](none.md) [d](https://example.org)\n```\n[e](f.md)\n```\n")
    assert broken(page) == ["page.md#no", "none.md#"]


def test_the_site_has_every_page() -> None:
    listed = re.findall(r"^  - .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in PAGES)
