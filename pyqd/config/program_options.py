"""Flags that all programs with a configuration file have: version, configuration file, log lines."""

import dataclasses
import re
from typing import Final

from pyqd.primitives.goflags import BOOL, STRING, FlagType, declare
from pyqd.primitives.loglines import LogFormat, LogLevel, parse_format, parse_level

MODE: Final = re.compile("0?[0-7]{3}")


def parse_mode(text: str) -> int | None:
    """Return the mode of a file in octal digits; None for an empty text. Raises: ValueError."""
    if not text:
        return None
    if not MODE.fullmatch(text):
        raise ValueError(f"expected three octal digits such as 0660, not {text!r}")
    return int(text, 8)


LEVEL: Final = FlagType("level", parse_level, lambda level: level.name.lower())
FILE_MODE: Final = FlagType("mode", parse_mode, lambda mode: "" if mode is None else f"{mode:04o}")
LOG_FORMAT: Final = FlagType("format", parse_format, lambda form: form.value)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """Options of a program; a subclass declares the flags of its own.

    notices: one line for each given flag without effect; logged as warnings once logging is set up.
    """

    version: bool = declare("version", BOOL, False, "print the version and exit", key=None)
    config: str = declare("config", STRING, "", "path of a configuration file, TOML", key=None)
    check_config: bool = declare(
        "check-config",
        BOOL,
        False,
        "check flags and configuration file, print the settings in force, and exit",
        key=None,
    )
    verbose: bool = declare(
        "verbose", BOOL, False, "deprecated, has no effect; use --log-level", key=None, without_effect=True
    )
    log_level: LogLevel = declare(  # noqa: RUF009 - makes a field, and an enum member is immutable
        "log-level", LEVEL, LogLevel.INFO, "least level to log: debug, info, warn, error or fatal"
    )
    log_prefix: str = declare("log-prefix", STRING, "", "text before each log line")
    log_format: LogFormat = declare(  # noqa: RUF009 - makes a field, and an enum member is immutable
        "log-format", LOG_FORMAT, LogFormat.TEXT, "log lines as text, or as json: one object per line"
    )

    unix_socket_mode: int | None = declare(
        "unix-socket-mode", FILE_MODE, None, "mode of the files of unix sockets, such as 0660; default: by the umask"
    )

    notices: tuple[str, ...] = ()
