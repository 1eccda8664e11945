"""Fenced blocks of a documentation page: commands, programs, files to save, and the output that the page promises."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
SAVED = re.compile(r"[Ss]ave it as\s+`([\w./-]+)`")
PROMISED = re.compile(r"prints:?$")
SHELLS = ("console", "sh")
# Kinds of blocks that a reader does not run.
SAMPLES = ("json", "sql", "text", "yaml")


@dataclass(frozen=True)
class Block:
    """A fenced block. line: its first line in the page. saved_as: the file it is to be saved as, or empty.

    promised: the page says of the block before that it prints this one.
    """

    language: str
    text: str
    line: int
    saved_as: str = ""
    promised: bool = False

    def commands(self) -> list[str]:
        """Return the commands of a console block, continued lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def sections(page: str) -> dict[str, list[Block]]:
    """Return the blocks of each section that has any, by its heading of the second level; "" is above the first."""
    found: dict[str, list[Block]] = {}
    # A line of a shell program may look like a heading, but no heading stands inside a fence.
    spans = [match.span() for match in FENCE.finditer(page)]
    headings = [
        (match.start(), match[1])
        for match in HEADING.finditer(page)
        if not any(start < match.start() < end for start, end in spans)
    ]
    for match in FENCE.finditer(page):
        heading = next((title for start, title in reversed(headings) if start < match.start()), "")
        above = page[: match.start()].rstrip().rpartition("\n\n")[2]
        saved = SAVED.search(above)
        line = page.count("\n", 0, match.start()) + 2
        promised = match[1] in SAMPLES and PROMISED.search(above) is not None
        block = Block(match[1], match[2], line, saved[1] if saved else "", promised)
        found.setdefault(heading, []).append(block)
    return found


def sections_of(path: Path) -> dict[str, list[Block]]:
    return sections(path.read_text())


def starts_broker(command: str) -> bool:
    """Return True if a command runs a broker in the foreground, and so takes a terminal of its own."""
    words = shlex.split(command, comments=True)
    if words[:2] == ["make", "run"]:
        return True
    flags = words[1:]
    ends_at_once = any(flag.lstrip("-").split("=")[0] in ("version", "help", "check-config") for flag in flags)
    return words[:1] == ["pyqd"] and words[-1] != "&" and all(flag[0] == "-" for flag in flags) and not ends_at_once
