"""Parser of the part of YAML that the manifests for Kubernetes use: block collections, JSON values, plain scalars.

The tests have no library for YAML. Everything outside this part is refused, so that the parser and kubectl cannot read
one file in two ways.
"""

from __future__ import annotations

import json
import re
from typing import Any

KEY = re.compile(r"([A-Za-z][\w./-]*):(?: +(.*))?")
PLAIN = re.compile(r"[A-Za-z/][\w./-]*")
NUMBER = re.compile(r"0|[1-9][0-9]*")
# YAML 1.1 reads more words than these two as booleans or null.
BOOLEANS = {"true": True, "false": False}
REFUSED = ("yes", "no", "on", "off", "y", "n", "null")

Line = tuple[int, str]


def documents(text: str) -> list[dict[str, Any]]:
    """Return the documents of a file's text. Raises: ValueError."""
    return [document(part) for part in text.split("\n---\n")]


def document(text: str) -> dict[str, Any]:
    """Return one document, whose top level is a mapping. Raises: ValueError for YAML outside the part above."""
    lines = [
        (len(line) - len(line.lstrip(" ")), line.strip())
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    found, rest = node(lines, lines[0][0])
    if rest or not isinstance(found, dict):
        raise ValueError(f"cannot read from {rest[:1]} on")
    return found


def node(lines: list[Line], indent: int) -> tuple[Any, list[Line]]:
    """Return the value that begins with the first line, and the lines after it."""
    text = lines[0][1]
    if text.startswith("- "):
        return sequence(lines, indent)
    if KEY.fullmatch(text):
        return mapping(lines, indent)
    return scalar(text), lines[1:]


def sequence(lines: list[Line], indent: int) -> tuple[list[Any], list[Line]]:
    items = []
    while lines and lines[0][0] == indent and lines[0][1].startswith("- "):
        item, lines = node([(indent + 2, lines[0][1][2:].lstrip()), *lines[1:]], indent + 2)
        items.append(item)
    return items, lines


def mapping(lines: list[Line], indent: int) -> tuple[dict[str, Any], list[Line]]:
    entries: dict[str, Any] = {}
    while lines and lines[0][0] == indent:
        match = KEY.fullmatch(lines[0][1])
        if match is None or match[1] in entries:
            raise ValueError(f"no key, or one that comes twice: {lines[0][1]}")
        lines = lines[1:]
        if match[2] is not None:
            entries[match[1]] = scalar(match[2])
        elif lines and lines[0][0] > indent:
            entries[match[1]], lines = node(lines, lines[0][0])
        else:
            raise ValueError(f"no value: {match[1]}")
    return entries, lines


def scalar(text: str) -> Any:
    if text[0] in '"[':
        return json.loads(text)
    if NUMBER.fullmatch(text):
        return int(text)
    if text in BOOLEANS:
        return BOOLEANS[text]
    # Quantities such as 100m and 20Gi begin with a digit.
    if (not PLAIN.fullmatch(text) and not re.fullmatch(r"[0-9]+(m|Mi|Gi)", text)) or text.lower() in REFUSED:
        raise ValueError(f"a value to be quoted: {text}")
    return text
