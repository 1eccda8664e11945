"""Flags that all programs with a configuration file have: version, configuration file, log lines."""

import dataclasses
import re
from typing import Any, Final

from pyqd.primitives.goflags import FlagType, declare_field
from pyqd.primitives.goquote import go_quote_str
from pyqd.primitives.loglines import LogFormat, LogLevel, parse_format, parse_level
from pyqd.primitives.sites import parse_host, parse_origin

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

HOST: Final = FlagType("name", parse_host, go_quote_str)
ORIGIN: Final = FlagType("origin", parse_origin, go_quote_str)


def declare_http_allow_host() -> Any:
    """Return the field of a flag that HTTP servers have."""
    return declare_field(
        (),
        "further name of this program in the URLs of HTTP clients, such as queue.example.org; '*.example.org' is for"
        " all of a domain; may be given several times",
        key="http_allow_hosts",
        kind=HOST,
    )


def declare_http_allow_origin() -> Any:
    """Return the field of a flag that HTTP servers have."""
    return declare_field(
        (),
        "origin of web pages that may call the HTTP API, such as https://tool.example.org, or '*' for all;"
        " may be given several times",
        key="http_allow_origins",
        kind=ORIGIN,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """Options of a program; a subclass declares the flags of its own.

    notices: one line for each given flag without effect; logged as warnings once logging is set up.
    """

    version: bool = declare_field(False, "print the version and exit", key=None)
    config: str = declare_field("", "path of a configuration file, TOML", key=None)
    check_config: bool = declare_field(
        False, "check flags and configuration file, print the settings in force, and exit", key=None
    )
    verbose: bool = declare_field(False, "deprecated, has no effect; use --log-level", key=None, without_effect=True)
    log_level: LogLevel = declare_field(  # noqa: RUF009 - makes a field, and an enum member is immutable
        LogLevel.INFO, "least level to log: debug, info, warn, error or fatal", kind=LEVEL
    )
    log_prefix: str = declare_field("", "text before each log line")
    log_format: LogFormat = declare_field(  # noqa: RUF009 - makes a field, and an enum member is immutable
        LogFormat.TEXT, "log lines as text, or as json: one object per line", kind=LOG_FORMAT
    )

    unix_socket_mode: int | None = declare_field(
        None, "mode of the files of unix sockets, such as 0660; default: by the umask", kind=FILE_MODE
    )

    notices: tuple[str, ...] = ()
