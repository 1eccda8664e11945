"""Sections of Google's style from the marked sentences of docstrings: "name: ...", "Returns: ..." and "Raises: ..."."""

from __future__ import annotations

import re

MARK = re.compile(r"(?:^|(?<=\s))((?:\w+, )*\w+):\s")
ERROR = re.compile(r"(\w*[a-z](?:Error|Timeout|NotFound|Closed))\b")
# The beginning of the next error of a sentence, outside parentheses.
NEXT_ERROR = re.compile(rf"[,;] (?={ERROR.pattern})(?![^(]*\))")
SECTIONS = ("Args", "Attributes", "Returns", "Raises")


def google_style(text: str, parameters: set[str], attributes: set[str]) -> str:
    """Return a docstring with its marked sentences in sections of Google's style, after all others."""
    sections: dict[str, list[str]] = {title: [] for title in SECTIONS}
    kept = []
    known = parameters | attributes | {"Raises", "Returns"}
    for paragraph in text.split("\n\n"):
        marks = [mark for mark in MARK.finditer(paragraph) if known.issuperset(mark[1].split(", "))]
        if paragraph.startswith("Source: docs/"):
            continue
        # Code is indented; its colons mark nothing.
        if not marks or paragraph.startswith("    "):
            kept.append(paragraph)
            continue
        kept.append(paragraph[: marks[0].start()].strip())
        ends = [mark.start() for mark in marks[1:]] + [len(paragraph)]
        for mark, end in zip(marks, ends, strict=True):
            said = " ".join(paragraph[mark.end() : end].split())
            if mark[1] == "Returns":
                sections["Returns"].append(said)
            elif mark[1] != "Raises":
                for name in mark[1].split(", "):
                    sections["Args" if name in parameters else "Attributes"].append(f"{name}: {said}")
            elif ERROR.match(said):
                errors, _, more = said.partition(". ")
                sections["Raises"] += errors_of(errors)
                kept.append(more)
            else:
                kept.append(f"Raises: {said}")
    kept += ["\n    ".join([f"{title}:", *lines]) for title, lines in sections.items() if lines]
    return "\n\n".join(filter(None, kept))


def errors_of(sentence: str) -> list[str]:
    """Return a line for each error of a sentence that begins with one: its name, a colon, the condition."""
    found = []
    for part in NEXT_ERROR.sub("\n", sentence).split("\n"):
        name, _, condition = part.partition(" ")
        found.append(f"{name.strip(',.;')}: {condition.strip(' .') or '-'}")
    return found
