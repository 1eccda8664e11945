"""Configuration files: TOML with nsqd's keys.

A key is the name of a flag with underscores, or the key that the flag declares. A value has its TOML type, or is a
string in the form of the flag. A whole number is a duration in milliseconds. A string with commas replaces a list.
Unknown keys and tables have no effect. Source: docs/nsq/config.md, "Configuration file".
"""

import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyqd.primitives.errors import StartupError
from pyqd.primitives.goflags import BOOL, INT, STRING, Flag, suggestion

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BYTE_ORDER_MARK: Final = "\ufeff"

_STATEMENT = re.compile(r"""[ \t]*(?:"(?P<basic>[^"\\]*)"|'(?P<literal>[^']*)'|(?P<bare>[A-Za-z0-9_-]+))[ \t]*=""")
# The one character that TOML escapes in a string and JSON does not.
_DELETE: Final = "\x7f"


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigFile:
    """A parsed configuration file: its path, its lines, and its values with their TOML types."""

    path: str
    lines: tuple[str, ...]
    values: Mapping[str, Any]

    def line_of(self, key: str) -> int:
        """Return the line, from 1, that gives a top-level key its value; 0 if there is none."""
        for number, line in enumerate(self.lines):
            match = _STATEMENT.match(line)
            if match is not None and key in match.groups() and self._is_statement(number, key):
                return number + 1
        return 0

    def where(self, flag: Flag) -> str:
        """Return the place of a flag's value in the file, for people."""
        assert flag.config_key is not None
        return f"{self.path}, line {self.line_of(flag.config_key)}, {flag.config_key}"

    def _is_statement(self, number: int, key: str) -> bool:
        """Return whether a line that looks like `key = value` is a statement, not part of a string, an array or a
        table.
        """
        before = "\n".join(self.lines[:number])
        try:
            return bool(tomllib.loads(f"{before}\n{json.dumps(key)} = 0\n").get(key) == 0)
        except tomllib.TOMLDecodeError:
            return False


def read_config(path: str) -> ConfigFile:
    """Return the parsed file at path. Raises: StartupError if it cannot be read or is not TOML."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8").removeprefix(BYTE_ORDER_MARK)
        values = tomllib.loads(text)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise StartupError(f"{failure(path)} - open {path}: {reason}") from error
    except UnicodeDecodeError as error:
        raise StartupError(f"{failure(path)} - not UTF-8: {error.reason} at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise StartupError(f"{failure(path)} - {error}") from error
    return ConfigFile(path, tuple(text.splitlines()), values)


def failure(path: str) -> str:
    return f"failed to load config file {path}"


def value_of(flag: Flag, found: Any) -> Any:
    """Return a flag's value from its TOML value. Raises: ValueError with the reason."""
    if not flag.repeatable:
        return flag.type.value_read(found)
    if isinstance(found, str):
        return tuple(map(flag.type.parse, found.split(","))) if found else ()
    if isinstance(found, list):
        return tuple(map(flag.type.value_read, found))
    raise ValueError("must be an array of strings, or a string with commas")


def values_of(file: ConfigFile, flags: Iterable[Flag]) -> tuple[dict[str, Any], list[str]]:
    """Return the file's values by flag name, and the problems of the invalid ones."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for flag in flags:
        key = flag.config_key
        if key is None or key not in file.values:
            continue
        try:
            values[flag.name] = value_of(flag, file.values[key])
        except ValueError as error:
            problems.append(f"{failure(file.path)} - line {file.line_of(key)}, {key}: {error}")
    return values, problems


def unknown_keys(file: ConfigFile, flags: Iterable[Flag]) -> list[str]:
    """Return a line of text for each key of the file that belongs to no flag."""
    flags = tuple(flags)
    known = {flag.config_key for flag in flags}
    key_of_name = {flag.name.replace("-", "_"): flag.config_key for flag in flags}
    lines = []
    for key in file.values:
        if key in known:
            continue
        what = "table" if isinstance(file.values[key], dict) else "key"
        place = f"{file.path}, line {file.line_of(key)}" if file.line_of(key) else file.path
        line = f"{place}: there is no {what} {json.dumps(key, ensure_ascii=False)}, it has no effect"
        if key in key_of_name:
            instead = key_of_name[key]
            line += f"; the key is {instead}" if instead else "; the flag is one of the command line alone"
        else:
            line += suggestion(key, [name for name in known if name is not None])
        lines.append(line)
    return lines


def shown(flag: Flag, value: Any) -> str:
    """Return a flag's value in TOML, in a form that `value_of` reads back."""
    if flag.repeatable:
        # A change over HTTP may set a list to null.
        return "[" + ", ".join(quoted(item) for item in value or ()) + "]"
    if flag.type in (BOOL, INT):
        return flag.type.show(value)
    return quoted(value if flag.type is STRING else flag.type.show(value))


def quoted(text: str) -> str:
    readable = text.encode("utf-8", "replace").decode("utf-8")
    return json.dumps(readable, ensure_ascii=False).replace(_DELETE, "\\u007f")
