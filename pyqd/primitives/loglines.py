"""Log lines in nsqd's form: `<prefix>YYYY/MM/DD HH:MM:SS.micros LEVEL: text`, local time, on stderr.

Built on the logging module: modules log to children of the logger "pyqd", and a record below the level costs one cached
look-up. The process sets the prefix and the level once, the level may change while it runs.
"""

import enum
import logging
import re
import sys
import time
from typing import Final, TextIO

DEFAULT_PREFIX: Final = "[pyqd] "
ROOT_LOGGER: Final = "pyqd"


class LogLevel(enum.IntEnum):
    """nsqd's levels with its numbers, as the HTTP API shows them; ten times that is the number in logging."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5


_LEVEL_WORDS = {10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR", 50: "FATAL"}
_LEVELS_BY_WORD = {level.name.lower(): level for level in LogLevel}
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f]")


def parse_level(word: str) -> LogLevel:
    """Return the level of debug, info, warn, error or fatal in any case. Raises: ValueError with nsqd's text."""
    level = _LEVELS_BY_WORD.get(word.lower())
    if level is None:
        raise ValueError(f"invalid log level '{word}' (debug, info, warn, error, fatal)")
    return level


def log_line(prefix: str, timestamp_s: float, level_word: str, text: str) -> str:
    """Return one line without its end; timestamp_s is Unix time.

    Control characters but the tab become escapes, so that text from the network neither forges a line nor drives a
    terminal.
    """
    seconds = int(timestamp_s)
    micros = int((timestamp_s - seconds) * 1_000_000)
    moment = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(seconds))
    return f"{prefix}{moment}.{micros:06d} {level_word}: {_CONTROLS.sub(_escape, text)}"


def _escape(match: re.Match[str]) -> str:
    return "\\n" if match[0] == "\n" else f"\\x{ord(match[0]):02x}"


class LineFormatter(logging.Formatter):
    """Formats records as log lines; a traceback follows on lines of its own."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, and its traceback if it has one."""
        word = _LEVEL_WORDS.get(record.levelno, record.levelname)
        line = log_line(self._prefix, record.created, word, record.getMessage())
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure(prefix: str, level: LogLevel, stream: TextIO | None = None) -> logging.Logger:
    """Send the records of "pyqd" and its children to stream, stderr if None, and return its logger.

    A second call replaces what the first one set up.
    """
    # Nothing of this stands in the lines, and each costs a system call or a look-up per record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(prefix))
    logger = logging.getLogger(ROOT_LOGGER)
    for former in logger.handlers[:]:
        logger.removeHandler(former)
    logger.addHandler(handler)
    logger.propagate = False
    set_level(level)
    return logger


def set_level(level: LogLevel) -> None:
    """Drop from now on the records below level."""
    logging.getLogger(ROOT_LOGGER).setLevel(level * 10)


def print_fatal(text: str, prefix: str = DEFAULT_PREFIX) -> None:
    """Print the FATAL line of a start that failed, on stderr; the prefix is the program's, whatever was configured."""
    print(log_line(prefix, time.time(), "FATAL", text), file=sys.stderr, flush=True)
