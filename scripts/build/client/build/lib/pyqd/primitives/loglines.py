"""Log lines in nsqd's form, `<prefix>YYYY/MM/DD HH:MM:SS.micros LEVEL: text`, or as JSON; on stderr.

In nsqd's form the time is local. As JSON a line is one object: `time` (RFC 3339 with microseconds and offset), `level`,
`message`, then further fields. These are the subject of a message that begins as `TOPIC(orders): ` does, under its name
in lower case; the fields that a caller adds (`extra=fields(...)`); and `traceback`.

Built on the logging module: modules log to children of the logger "pyqd", and a record below the level costs one cached
look-up. The process sets the prefix and the level once; the level may change while it runs.
"""

import datetime
import enum
import functools
import json
import logging
import re
import sys
import time
from typing import Any, Final, TextIO

DEFAULT_PREFIX: Final = "[pyqd] "
ROOT_LOGGER: Final = "pyqd"


class LogLevel(enum.IntEnum):
    """nsqd's levels with its numbers, as the HTTP API shows them; ten times the number is the level in logging."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5


class LogFormat(enum.Enum):
    """Form of a log line."""

    TEXT = "text"
    JSON = "json"


_LEVEL_WORDS = {10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR", 50: "FATAL"}
_LEVELS_BY_WORD = {level.name.lower(): level for level in LogLevel}
# Set by configure, for a start that fails later and prints its reason.
_format = LogFormat.TEXT
_SUBJECT = re.compile(r"([A-Z]+)\(([^)]*)\): ")
CONTROLS: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")


def parse_level(word: str) -> LogLevel:
    """Return the level of debug, info, warn, error or fatal in any case. Raises: ValueError with nsqd's text."""
    level = _LEVELS_BY_WORD.get(word.lower())
    if level is None:
        raise ValueError(f"invalid log level '{word}' (debug, info, warn, error, fatal)")
    return level


def parse_format(word: str) -> LogFormat:
    """Return the format of that name. Raises: ValueError."""
    try:
        return LogFormat(word)
    except ValueError:
        raise ValueError(f"invalid log format '{word}' (text, json)") from None


def fields(**values: Any) -> dict[str, Any]:
    """Return the argument `extra` of a logging call that adds fields to a line in JSON."""
    return {"fields": values}


def json_line(timestamp_s: float, level_word: str, text: str, more: dict[str, Any] | None = None) -> str:
    """Return one line as a JSON object, without a line end; timestamp_s is Unix time. more: further fields."""
    timestamp = datetime.datetime.fromtimestamp(timestamp_s).astimezone()
    line = {"time": timestamp.isoformat(timespec="microseconds"), "level": level_word, "message": text}
    subject = _SUBJECT.match(text)
    if subject:
        line[subject[1].lower()] = subject[2]
    # In ASCII, so that neither text from the network nor a lone surrogate can break a line.
    return json.dumps({**line, **(more or {})}, separators=(",", ":"), default=str)


@functools.lru_cache(1)
def local_time(seconds: int) -> str:
    """Return the local date and time of a Unix time. Many lines share a second, and formatting it takes 2 us."""
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(seconds))


def log_line(prefix: str, timestamp_s: float, level_word: str, text: str) -> str:
    """Return one line without a line end; timestamp_s is Unix time.

    Control characters except the tab become escapes, so that text from the network can neither forge a line nor control
    a terminal.
    """
    seconds = int(timestamp_s)
    micros = int((timestamp_s - seconds) * 1_000_000)
    return f"{prefix}{local_time(seconds)}.{micros:06d} {level_word}: {CONTROLS.sub(escape_control, text)}"


def escape_control(match: re.Match[str]) -> str:
    return "\\n" if match[0] == "\n" else f"\\x{ord(match[0]):02x}"


class LineFormatter(logging.Formatter):
    """Formatter of records as log lines; a traceback follows on its own lines."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        word = _LEVEL_WORDS.get(record.levelno, record.levelname)
        line = log_line(self._prefix, record.created, word, record.getMessage())
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """Formatter of records as JSON objects, one per line."""

    def format(self, record: logging.LogRecord) -> str:
        more = dict(getattr(record, "fields", {}))
        if record.exc_info:
            more["traceback"] = self.formatException(record.exc_info)
        word = _LEVEL_WORDS.get(record.levelno, record.levelname)
        return json_line(record.created, word, record.getMessage(), more)


def configure(
    prefix: str, level: LogLevel, stream: TextIO | None = None, form: LogFormat = LogFormat.TEXT
) -> logging.Logger:
    """Send the records of "pyqd" and its children to stream, stderr if None, and return the logger.

    A second call replaces the set-up of the first.
    """
    # No line shows these values, and each costs a system call or a look-up per record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # As Python's logging HOWTO says: no line names its caller, so no record looks for it.
    logging._srcfile = None
    handler = logging.StreamHandler(stream or sys.stderr)
    global _format
    _format = form
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else LineFormatter(prefix))
    logger = logging.getLogger(ROOT_LOGGER)
    for former in logger.handlers[:]:
        logger.removeHandler(former)
    logger.addHandler(handler)
    logger.propagate = False
    set_level(level)
    return logger


def set_level(level: LogLevel) -> None:
    """Drop records below the level from now on."""
    logging.getLogger(ROOT_LOGGER).setLevel(level * 10)


def print_fatal(text: str, prefix: str = DEFAULT_PREFIX) -> None:
    """Print the FATAL line of a failed start on stderr, with the program's prefix."""
    as_json = _format is LogFormat.JSON
    line = json_line(time.time(), "FATAL", text) if as_json else log_line(prefix, time.time(), "FATAL", text)
    print(line, file=sys.stderr, flush=True)
