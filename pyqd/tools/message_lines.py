"""Lines of messages for standard output: as they are, or for the eyes of a person at a terminal.

For a terminal JSON is coloured, control characters become escapes, and so do bytes that are not UTF-8: text from the
network must not control the terminal.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Final

COLORS: Final = ("auto", "always", "never")
STDOUT: Final = 1
# Highlighting takes a millisecond for some kilobytes.
HIGHLIGHT_BYTES_MAX: Final = 1 << 16
SEPARATOR: Final = " | "

# All but tab and line feed. U+0080 to U+009F control terminals too.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# Returns the lines of messages of one topic.
LinesOf = Callable[[str, Sequence[bytes]], bytes]


def lines_for(color: str, print_topic: bool) -> LinesOf:
    """Return the function that makes lines. color: one of COLORS. print_topic: the topic's name begins each line."""
    if color == "always" or (color == "auto" and os.isatty(STDOUT)):
        return TerminalLines(print_topic, is_forced=color == "always")
    return topic_lines if print_topic else plain_lines


def plain_lines(_topic: str, bodies: Sequence[bytes]) -> bytes:
    return b"".join([body + b"\n" for body in bodies])


def topic_lines(topic: str, bodies: Sequence[bytes]) -> bytes:
    start = f"{topic}{SEPARATOR}".encode()
    return b"".join([start + body + b"\n" for body in bodies])


class TerminalLines:
    """Makes lines for a terminal. is_forced: colour whatever standard output is."""

    def __init__(self, print_topic: bool, *, is_forced: bool = False) -> None:
        # Only for a terminal: its import takes longer than that of the client.
        from rich.console import Console
        from rich.highlighter import JSONHighlighter
        from rich.text import Text

        self._print_topic = print_topic
        self._console = Console(force_terminal=True if is_forced else None, highlight=False, markup=False, emoji=False)
        self._highlighter = JSONHighlighter()
        self._text = Text

    def __call__(self, topic: str, bodies: Sequence[bytes]) -> bytes:
        with self._console.capture() as capture:
            for body in bodies:
                line = self._text()
                if self._print_topic:
                    line.append(topic, "cyan").append(SEPARATOR, "dim")
                shown = self._text(visible(body))
                if len(body) <= HIGHLIGHT_BYTES_MAX and is_json(body):
                    self._highlighter.highlight(shown)
                self._console.print(line.append_text(shown), soft_wrap=True)
        return capture.get().encode(errors="backslashreplace")


def is_json(body: bytes) -> bool:
    if not body.lstrip().startswith((b"{", b"[")):
        return False
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def visible(body: bytes) -> str:
    """Return the text of a body with escapes for control characters, and for bytes that are not UTF-8."""
    return CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", body.decode(errors="backslashreplace"))
