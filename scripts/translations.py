"""Bring the catalogues in pyqd/admin/translations up to date with the texts of the web admin's sources.

New texts get empty translations, and texts that are gone are removed. Prints how many are not translated.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

ADMIN: Final = Path(__file__).resolve().parents[1] / "pyqd" / "admin"
METHODS: Final = [("templates/**.html", "jinja2"), ("**.py", "python")]
# `mark` is for texts that are translated where they are shown; the second argument of columns and filters is a title.
KEYWORDS: Final = {"_": None, "translate": None, "mark": None, "ngettext": (1, 2), "Column": (2,), "Filter": (2,)}


def extracted() -> Catalog:
    """Return the texts of the sources."""
    catalogue = Catalog()
    for file, line, message, _comments, _context in extract_from_dir(ADMIN, METHODS, keywords=KEYWORDS):
        catalogue.add(message, locations=[(file, line)])
    return catalogue


def texts_of(found: object) -> tuple[str, ...]:
    """Return a message's text, or the texts of its singular and plural."""
    return tuple(found) if isinstance(found, (tuple, list)) else (str(found or ""),)


def main() -> int:
    """Update all catalogues. Returns: the exit code, 1 if a text has no translation."""
    missing = 0
    for path in sorted((ADMIN / "translations").glob("*.po")):
        with path.open("rb") as source:
            catalogue = read_po(source, locale=path.stem)
        catalogue.update(extracted(), no_fuzzy_matching=True, update_header_comment=False)
        catalogue.obsolete.clear()
        untranslated = [message.id for message in catalogue if message.id and not any(texts_of(message.string))]
        with path.open("wb") as target:
            write_po(target, catalogue, sort_output=True, no_location=True, width=120, omit_header=True)
        for text in untranslated:
            print(f"{path.name}: {text!r}")
        missing += len(untranslated)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
