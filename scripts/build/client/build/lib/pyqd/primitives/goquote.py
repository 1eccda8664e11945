"""Go's %q: the quoted form in which nsqd echoes a client's bytes in its error texts.

Source: the documentation of Go's strconv.Quote. "Printable" there means the Unicode categories L, M, N, P and S and the
ASCII space, which is str.isprintable exactly. The two differ only if the interpreter's Unicode tables have another
version than Go's: the older one quotes a newer character as an escape.
"""

import re

_PLAIN = re.compile(rb"[ !#-\[\]-~]*")
_SHORT_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def go_quote(data: bytes) -> bytes:
    """Return data in double quotes as Go's %q prints it, in UTF-8.

    Printable characters are kept. A byte that is not part of valid UTF-8 becomes \\xff, an ASCII control \\x7f, another
    character \\u00a0 or \\U000e0001.
    """
    if _PLAIN.fullmatch(data):
        return b'"' + data + b'"'
    # surrogateescape turns each byte of an invalid sequence into one lone surrogate, as Go takes such a sequence byte
    # by byte.
    return ('"' + "".join(map(_quoted, data.decode("utf-8", "surrogateescape"))) + '"').encode()


def go_quote_str(text: str) -> str:
    """Return the quoted form of text whose undecodable bytes are surrogates, such as an argument of the
    command line.
    """
    return go_quote(text.encode("utf-8", "surrogateescape")).decode()


def _quoted(char: str) -> str:
    short = _SHORT_ESCAPES.get(char)
    if short is not None:
        return short
    if char.isprintable():
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
