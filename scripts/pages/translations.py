"""Catalogues in pyqd/admin/translations, from the texts of the web admin's sources.

New texts get empty translations, and texts that are gone are removed.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

ADMIN: Final = Path(__file__).resolve().parents[2] / "pyqd" / "admin"
METHODS: Final = [("templates/**.html", "jinja2"), ("**.py", "python")]
# `mark` is for texts that are translated where they are shown; the second argument of columns and filters is a title.
KEYWORDS: Final = {"_": None, "translate": None, "mark": None, "ngettext": (1, 2), "PageColumn": (2,), "Filter": (2,)}


def extracted() -> Catalog:
    """Return the texts of the sources."""
    catalogue = Catalog()
    for file, line, message, _comments, _context in extract_from_dir(ADMIN, METHODS, keywords=KEYWORDS):
        catalogue.add(message, locations=[(file, line)])
    return catalogue


def files() -> Iterator[tuple[Path, str]]:
    """Yield each catalogue with its text."""
    found = extracted()
    for path in sorted((ADMIN / "translations").glob("*.po")):
        with path.open("rb") as source:
            catalogue = read_po(source, locale=path.stem)
        catalogue.update(found, no_fuzzy_matching=True, update_header_comment=False)
        catalogue.obsolete.clear()
        text = io.BytesIO()
        write_po(text, catalogue, sort_output=True, no_location=True, width=120, omit_header=True)
        yield path, text.getvalue().decode()
