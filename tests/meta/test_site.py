"""The web site of the manual: its navigation has every page, and docstrings become tables. `make site` makes it."""

import re

from scripts.site.google_style import google_style
from tests.meta.repository import ROOT, own_files_of

SITE = ROOT / "scripts" / "site"
DOCSTRING = """Publish a message.

topic: name of a topic. delay, timeout: seconds; 0: none. Raises: RefusedError (TooBigError, QuotaError), ClosedError if
it is closed; TlsError. Goes on after that.

    with: code

Source: docs/client.md.
"""


def test_the_navigation_has_every_page_of_the_manual() -> None:
    _, _, navigation = (SITE / "mkdocs.yml").read_text().partition("\nnav:\n")
    named = re.findall(r"[\w/-]+\.md$", navigation, re.MULTILINE)
    pages = {path.relative_to(ROOT).as_posix() for path in own_files_of(".md")}
    manual = {page for page in pages if page.startswith("docs/") or "/" not in page} | {"bench/README.md"}
    reference = {path.relative_to(SITE).as_posix() for path in (SITE / "reference").glob("*.md")}
    assert sorted(named) == sorted(manual | reference)


def test_marked_sentences_of_a_docstring_become_sections() -> None:
    assert google_style(DOCSTRING.strip(), {"topic", "delay", "timeout"}, set()) == (
        """Publish a message.

Goes on after that.

    with: code

Args:
    topic: name of a topic.
    delay: seconds; 0: none.
    timeout: seconds; 0: none.

Raises:
    RefusedError: (TooBigError, QuotaError)
    ClosedError: if it is closed
    TlsError: -"""
    )


def test_errors_that_are_not_named_first_stay_a_sentence() -> None:
    assert google_style("Cancel it. Raises: as publish().", set(), set()) == "Cancel it.\n\nRaises: as publish()."
