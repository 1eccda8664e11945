"""Links of all pages lead somewhere, and every page of the manual is in an index. `make lint` runs this file."""

import re
from pathlib import Path

import pytest

from tests.meta.repository import ROOT, own_files_of, relative

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#?([^)\s]*)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PAGES = own_files_of(".md")
INDEXES = [path for path in PAGES if path.name == "README.md" and path.is_relative_to(ROOT / "docs")]


def links(path: Path) -> list[tuple[Path, str]]:
    """Return the links of a page to files of the repository: each file with the anchor, or an empty string."""
    found = LINK.findall(CODE.sub("", FENCE.sub("", path.read_text())))
    return [((path.parent / target).resolve() if target else path, anchor) for target, anchor in found]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, made of their words as forges do."""
    titles = HEADING.findall(FENCE.sub("", path.read_text()))
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title.lower())).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_links_of_a_page_lead_somewhere(path: Path) -> None:
    broken = [(target.name, anchor) for target, anchor in links(path) if not target.exists()]
    broken += [
        (target.name, anchor)
        for target, anchor in links(path)
        if anchor and target in PAGES and anchor not in anchors(target)
    ]
    assert broken == []


@pytest.mark.parametrize("path", INDEXES, ids=relative)
def test_an_index_names_every_page_of_its_directory(path: Path) -> None:
    named = {target for target, _ in links(path)}
    assert [page.name for page in PAGES if page.parent == path.parent and page != path and page not in named] == []
