"""Texts of the pages in the reader's language, from the catalogues in `translations`.

The catalogues are text (.po) and are read when the process starts: nothing has to be compiled or installed.
"""

from __future__ import annotations

import gettext
import io
from pathlib import Path
from typing import Final

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from flask import g, request

DIRECTORY: Final = Path(__file__).parent.parent / "translations"
DEFAULT: Final = "en"
COOKIE: Final = "language"
NAMES: Final = {"en": "English", "zh": "中文"}


def read_catalogues() -> dict[str, gettext.NullTranslations]:
    found: dict[str, gettext.NullTranslations] = {DEFAULT: gettext.NullTranslations()}
    for path in sorted(DIRECTORY.glob("*.po")):
        with path.open("rb") as source:
            catalogue = read_po(source, locale=path.stem)
        compiled = io.BytesIO()
        write_mo(compiled, catalogue)
        compiled.seek(0)
        found[path.stem] = gettext.GNUTranslations(compiled)
    return found


CATALOGUES: Final = read_catalogues()


def language() -> str:
    """Return the language of the current request: by its cookie, else by the browser's list."""
    if "language" not in g:
        chosen = request.cookies.get(COOKIE, "")
        accepted = (wanted.lower().partition("-")[0] for wanted, _ in request.accept_languages)
        g.language = next((name for name in (chosen, *accepted) if name in CATALOGUES), DEFAULT)
    return str(g.language)


def translate(text: str) -> str:
    return CATALOGUES[language()].gettext(text)


def translate_plural(one: str, many: str, count: int) -> str:
    """Return the form of a text for a number."""
    return CATALOGUES[language()].ngettext(one, many, count)
