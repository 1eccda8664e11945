"""Text of JSON that another program has sent.

JSON may name half of a surrogate pair, such as `\\ud800`, which is no character. Python's decoder keeps it, and writing
the text as UTF-8 then fails. Go's decoder puts U+FFFD in its place, and so does this module.
"""

import re
from typing import Final

REPLACEMENT: Final = r"\ufffd"
SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")

# Each escape, in order: a pair is taken whole, and a backslash that is itself escaped begins no other escape.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def json_text(body: bytes) -> str:
    """Return JSON as text, with U+FFFD for all bytes and escapes that are no characters."""
    text = body.decode("utf-8", "replace")
    if not SURROGATE.search(text):
        return text
    return _ESCAPE.sub(lambda found: REPLACEMENT if found[1] else found[0], text)
