"""Names of output files: the tokens of --filename-format, and the revision that keeps two files apart.

<TOPIC> <HOST> <PID>   fixed while the tool runs
<DATETIME>             local time in the form of --datetime-format: a new name begins a new file
<REV>                  -000000, -000001 and so on: raised while a file of that name exists
"""

from __future__ import annotations

import glob
import os
import re
import time
from dataclasses import dataclass
from typing import Final

REVISION: Final = "<REV>"
REVISION_MAX: Final = 999_999
# Components of a path that lead out of a directory. Both are valid names of topics.
PATH_WORDS: Final = (os.curdir, os.pardir)

# Conversions of --datetime-format; any other % stands for itself.
_CONVERSION = re.compile("%([BbmAadHIMSYypZz%])")
_TOKEN = re.compile("(<DATETIME>|<REV>|<PID>)")


class NameFormatError(ValueError):
    """The options give no usable file name for a topic."""


def format_time(form: str, time_s: float) -> str:
    """Return a Unix time as local time in a form such as %Y-%m-%d_%H."""
    moment = time.localtime(time_s)
    return _CONVERSION.sub(lambda match: "%" if match[1] == "%" else time.strftime(match[0], moment), form)


def wildcard_of(form: str) -> str:
    """Return the glob pattern of all times in a form."""
    words = _CONVERSION.split(form)
    # Texts alternate with letters of conversions.
    return "".join(
        glob.escape(word) if number % 2 == 0 else word if word == "%" else "*" for number, word in enumerate(words)
    )


def host_of(identifier: str, hostname: str) -> str:
    """Return the text for <HOST>. identifier: the value of --host-identifier; empty for the short host name."""
    short = hostname.split(".", 1)[0]
    return identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname) if identifier else short


@dataclass(frozen=True)
class FileNames:
    """Relative paths of the output files of one topic. form: with <DATETIME>, <REV> and <PID> only.

    keeps_revision: whether every file has a revision; otherwise only a file whose name is in use gets one.
    """

    form: str
    datetime_form: str
    keeps_revision: bool

    @classmethod
    def of(
        cls, form: str, datetime_form: str, suffix: str, topic: str, host: str, *, keeps_revision: bool
    ) -> FileNames:
        """Return the names for a topic. suffix: the end of every name. Raises: NameFormatError."""
        if keeps_revision and REVISION not in form:
            raise NameFormatError("missing <REV> in --filename-format when gzip, rotation, or work dir enabled")
        if topic in PATH_WORDS:
            raise NameFormatError("its name would lead out of --output-dir")
        form = form.replace("<TOPIC>", topic).replace("<HOST>", host)
        return cls(form if form.endswith(suffix) else form + suffix, datetime_form, keeps_revision)

    @property
    def has_revision(self) -> bool:
        return REVISION in self.form

    def at(self, time_s: float) -> str:
        name = self.form.replace("<PID>", str(os.getpid()))
        return name.replace("<DATETIME>", format_time(self.datetime_form, time_s))

    def revised(self, name: str, revision: int) -> str:
        return name.replace(REVISION, f"-{revision:06d}" if revision or self.keeps_revision else "")

    def wildcard(self) -> str:
        """Return the glob pattern of all names of the topic: of any time, revision and process."""
        patterns = {"<DATETIME>": wildcard_of(self.datetime_form), REVISION: "-*", "<PID>": "*"}
        return "".join(patterns.get(word) or glob.escape(word) for word in _TOKEN.split(self.form))

    def parse(self, relative: str) -> tuple[str, int] | None:
        """Return a file's name, with <REV>, and its revision; None if it is no name of the topic's files."""
        patterns = {"<DATETIME>": "(.+)", REVISION: "(-[0-9]{6})", "<PID>": "([0-9]+)"}
        words = _TOKEN.split(self.form)
        match = re.fullmatch("".join(patterns.get(word) or re.escape(word) for word in words), relative)
        if match is None:
            return None
        found = iter(match.groups())
        name, revision = "", 0
        for word in words:
            text = next(found) if word in patterns else word
            if word == REVISION:
                text, revision = REVISION, int(text[1:])
            name += text
        return name, revision
