"""Command lines in the syntax of Go's flag package.

-name and --name are the same. A value follows after "=" or, except for booleans, as the next argument in any form. The
first argument that is not a flag, or "--", ends the flags. The last value of a scalar flag wins, a list flag collects.
Source: the documentation of Go's flag package.

argparse does not fit: it takes "-1" and "-x" for options, which Go takes for the value of the flag before. It lets a
boolean with an optional value swallow the next argument, accepts abbreviations, continues after the first positional
argument, and words errors and help differently. Working around all of it would take more code than this parser.

Errors begin with Go's text and end with the remedy: the nearest flag, or a valid value.

The flags of a program are the fields of a dataclass: `declare` gives a field its flag, `declared_flags` collects them.
Parsing yields only the given values, so that a configuration file can stand between them and the defaults.
"""

import dataclasses
import difflib
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from pyqd.primitives.durations import (
    INT64_MAX,
    INT64_MIN,
    MILLISECOND_NS,
    PARSE_ERROR,
    format_duration,
    parse_bool,
    parse_decimal,
    parse_duration,
    parse_int,
)
from pyqd.primitives.goquote import go_quote_str
from pyqd.primitives.program_start import discard_stdout

EXIT_HELP = 0
EXIT_USAGE = 2
USAGE_WIDTH_MIN = 60
USAGE_WIDTH_MAX = 110
USAGE_INDENT = " " * 8
NEAREST_RATIO_MIN = 0.6

_SIZE = re.compile(r"[0-9.]+ *([kmgt]i?b?|b)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class FlagType:
    """Parser and printer of one kind of values.

    usage_word: stands for the value in the usage text; empty for booleans. parse: text to value; raises ValueError with
    the reason that ends Go's error line. show: value to text, in the usage text's "(default ...)". is_boolean: the flag
    alone means true, and only "=" gives it a value. joined: combines the values of two occurrences; without it the last
    occurrence wins. check: raises ValueError with the whole text if a value from any source is not of this kind. read:
    converts a value of a configuration file that may be more than a string for `parse`; raises ValueError.
    """

    usage_word: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str
    is_boolean: bool = False
    joined: Callable[[Any, Any], Any] | None = None
    check: Callable[[Any], None] | None = None
    read: Callable[[Any], Any] | None = None

    def value_read(self, found: Any) -> Any:
        """Return the value for a TOML value of a configuration file. Raises: ValueError with the reason."""
        if self.read is not None:
            return self.read(found)
        if isinstance(found, str):
            return self.parse(found)
        raise ValueError("must be a string")


def _duration_of(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        reason = str(error).removeprefix("time: ")
    remedy = "durations are written as 250ms, 1.5s or 1h30m"
    if reason.startswith("missing unit"):
        remedy = f"write {text}s, {text}ms or {text}m"
    elif reason.startswith("unknown unit"):
        remedy = "the units are ns, us, ms, s, m and h"
    raise ValueError(f"{reason}; {remedy}")


def _bool_of(text: str) -> bool:
    try:
        return parse_bool(text)
    except ValueError:
        raise ValueError("must be true or false") from None


def _int_of(text: str, parse: Callable[[str], int] = parse_int) -> int:
    try:
        return parse(text)
    except ValueError as error:
        if str(error) != PARSE_ERROR:
            raise
    remedy = "; write it without a unit, 1 MiB as 1048576" if _SIZE.fullmatch(text) else ""
    raise ValueError(f"not a whole number{remedy}")


def _read_bool(found: Any) -> bool:
    if isinstance(found, bool):
        return found
    if isinstance(found, str):
        return _bool_of(found)
    raise ValueError("must be true or false")


def _read_int(found: Any) -> int:
    if isinstance(found, str):
        return _int_of(found, parse_decimal)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError("must be a whole number")
    if not INT64_MIN <= found <= INT64_MAX:
        raise ValueError("value out of range")
    return found


def _read_duration(found: Any) -> int:
    if isinstance(found, str):
        return _duration_of(found)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError('must be a duration like "250ms", or a whole number of milliseconds')
    if not INT64_MIN <= found * MILLISECOND_NS <= INT64_MAX:
        raise ValueError("value out of range")
    return found * MILLISECOND_NS


BOOL = FlagType("", _bool_of, lambda value: "true" if value else "false", is_boolean=True, read=_read_bool)
INT = FlagType("int", _int_of, read=_read_int)
DURATION = FlagType("duration", _duration_of, format_duration, read=_read_duration)
STRING = FlagType("string", str, go_quote_str)


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """One declared flag.

    name: as on the command line, without dashes.   attribute: of the options class, which may add a unit.
    default: a value, or a function that finds one on this machine; a tuple where repeatable.
    config_key: in a configuration file and over HTTP; None for a flag of the command line alone.
    minimum, maximum: inclusive, in the unit of the value.   range_text: replaces the words made from them.
    without_effect: accepted for the sake of old command lines; worth a warning where it is given.
    default_text: says what a default is that depends on the machine.
    live: the value may change while the program runs.
    require: raises ValueError with the words after the flag's name, "must ...", if a value is not allowed.
    group: heading that the flag stands under in the usage text.
    """

    name: str
    attribute: str
    type: FlagType
    default: Any
    help: str
    config_key: str | None
    repeatable: bool = False
    minimum: int | None = None
    maximum: int | None = None
    range_text: str = ""
    without_effect: bool = False
    default_text: str = ""
    live: bool = False
    require: Callable[[Any], None] | None = None
    group: str = ""

    def default_value(self) -> Any:
        """Return the default; a default that depends on the machine is found now."""
        return self.default() if callable(self.default) else self.default

    def default_shown(self) -> str:
        """Return the default in the form of the usage text; empty for a zero value."""
        if self.default_text:
            return self.default_text
        default = self.default_value()
        return self.type.show(default) if default else ""

    def check(self, value: Any) -> None:
        """Raise ValueError "--name must ..." if a value from any source is out of the flag's range."""
        if self.type.check is not None:
            self.type.check(value)
        if self.require is not None:
            try:
                self.require(value)
            except ValueError as error:
                raise ValueError(f"--{self.name} {error}") from None
        too_small = self.minimum is not None and value < self.minimum
        too_large = self.maximum is not None and value > self.maximum
        if too_small or too_large:
            raise ValueError(f"--{self.name} {self.range_text or self._range_words()}")

    def _range_words(self) -> str:
        if self.minimum is not None and self.maximum is not None:
            return f"must be [{self.type.show(self.minimum)},{self.type.show(self.maximum)}]"
        if self.maximum is not None:
            return f"must be at most {self.type.show(self.maximum)}"
        if self.minimum == 0:
            return "must not be negative"
        if self.minimum == 1:
            return "must be positive"
        return f"must be at least {self.type.show(self.minimum)}"


def declare(
    name: str,
    flag_type: FlagType,
    default: Any,
    help_text: str,
    *,
    key: str | None = "",
    **more: Any,
) -> Any:
    """Return a dataclass field that carries a flag; the parameters are those of Flag.

    name: "" for the name of the field with dashes, without its unit. key: "" for the name with
    underscores, None for no key.
    """
    declared = {"name": name, "type": flag_type, "default": default, "help": help_text, "config_key": key, **more}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata={"flag": declared})
    return dataclasses.field(default=default, metadata={"flag": declared})


_KINDS = {bool: BOOL, int: INT, str: STRING, tuple: STRING}


def declare_field(default: Any, help_text: str, *, kind: FlagType | None = None, **more: Any) -> Any:
    """Return a dataclass field that carries a flag with the name of the field. more: other parameters of `declare`.

    kind: by default that of a text, a whole number or a truth value, by `default`. A tuple makes the flag repeatable.
    """
    more.setdefault("repeatable", isinstance(default, tuple))
    return declare("", kind or _KINDS[type(default)], default, help_text, **more)


def flag_name(attribute: str) -> str:
    """Return the name of a flag that is named like its attribute, without the unit."""
    return attribute.removesuffix("_ns").replace("_", "-")


def declared_flags(options_class: type, groups: Mapping[str, str] | None = None) -> tuple[Flag, ...]:
    """Return the flags declared in a dataclass, in the order of its fields.

    groups: by the name of a group's first flag, the group's heading. Raises: ValueError for a duplicate flag, and for a
    group without a first flag.
    """
    headings = dict(groups or {})
    flags: list[Flag] = []
    group = ""
    for field in dataclasses.fields(options_class):
        if "flag" in field.metadata:
            declared = dict(field.metadata["flag"])
            declared["name"] = declared["name"] or flag_name(field.name)
            if declared["config_key"] == "":
                declared["config_key"] = declared["name"].replace("-", "_")
            group = headings.pop(declared["name"], group)
            flags.append(Flag(attribute=field.name, group=group, **declared))
    if len({flag.name for flag in flags}) != len(flags):
        raise ValueError(f"a flag of {options_class.__name__} is declared twice")
    if headings:
        raise ValueError(f"{options_class.__name__} has no flag {', '.join(headings)} for a group to begin with")
    return tuple(flags)


class FlagError(Exception):
    """A mistake in the command line; str() of it is Go's text, followed by the probable correction."""


class HelpRequested(Exception):  # noqa: N818 - a wish, not an error
    """The command line asks for help."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parsed:
    """Result of parsing: values by flag name (a tuple if repeatable), and the arguments after the flags."""

    values: Mapping[str, Any]
    leftovers: Sequence[str]


def parse(flags: Iterable[Flag], argv: Sequence[str]) -> Parsed:
    """Parse argv, which is without the program's name.

    Raises: FlagError at the first mistake; HelpRequested at -h or -help unless such a flag is declared.
    """
    by_name = {flag.name: flag for flag in flags}
    values: dict[str, Any] = {}
    rest = list(reversed(argv))
    while rest and len(rest[-1]) >= 2 and rest[-1][0] == "-":
        argument = rest.pop()
        if argument == "--":
            break
        name, equals, text = _split(argument)
        flag = by_name.get(name)
        if flag is None:
            if name in ("help", "h"):
                raise HelpRequested
            raise FlagError(f"flag provided but not defined: -{name}{suggestion(name, by_name, '--')}")
        if not equals:
            if flag.type.is_boolean:
                text = "true"
            elif rest:
                text = rest.pop()
            else:
                raise FlagError(f"flag needs an argument: -{name}")
        value = _value(flag, text)
        if flag.type.joined is not None and name in values:
            value = flag.type.joined(values[name], value)
        values[name] = (*values.get(name, ()), value) if flag.repeatable else value
    return Parsed(values, tuple(reversed(rest)))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word nearest to a misspelt one; empty if none is similar."""
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=NEAREST_RATIO_MIN)
    return close[0] if close else ""


def suggestion(word: str, known: Iterable[str], mark: str = "") -> str:
    """Return the question after a misspelt word, "; did you mean --name?"; empty if no known word is similar."""
    found = nearest(word, known)
    return f"; did you mean {mark}{found}?" if found else ""


def _split(argument: str) -> tuple[str, str, str]:
    body = argument[2:] if argument.startswith("--") else argument[1:]
    if not body or body[0] in "-=":
        raise FlagError(f"bad flag syntax: {argument}")
    return body.partition("=")


def _value(flag: Flag, text: str) -> Any:
    try:
        return flag.type.parse(text)
    except ValueError as error:
        kind, word = ("boolean value", "") if flag.type.is_boolean else ("value", "flag ")
        raise FlagError(f"invalid {kind} {go_quote_str(text)} for {word}-{flag.name}: {error}") from None


def usage(program: str, flags: Iterable[Flag], width: int | None = None) -> str:
    """Return the usage text: each flag with its help, and its default unless that is the zero value.

    Flags with groups come under their headings in the order of declaration, others by name. width: columns; None for
    the terminal's width.
    """
    columns = width or min(max(shutil.get_terminal_size().columns, USAGE_WIDTH_MIN), USAGE_WIDTH_MAX)
    lines = [f"Usage of {program}:"]
    flags = tuple(flags)
    group = ""
    for flag in flags if any(flag.group for flag in flags) else sorted(flags, key=lambda flag: flag.name):
        if flag.group != group:
            group = flag.group
            lines += ["", f"{group}:"]
        word = "value" if flag.repeatable else flag.type.usage_word
        lines.append(f"  --{flag.name} {word}".rstrip())
        default = flag.default_shown()
        text = f"{flag.help} (default {default})" if default else flag.help
        lines += textwrap.wrap(
            text,
            columns,
            initial_indent=USAGE_INDENT,
            subsequent_indent=USAGE_INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines) + "\n"


def parse_or_exit(
    program: str,
    flags: Sequence[Flag],
    argv: Sequence[str],
    synopsis: str = "",
    *,
    allows_arguments: bool = False,
) -> Parsed:
    """Parse argv like `parse`; exit the process after help or a mistake.

    Help: synopsis and usage on stdout, exit code 0. A mistake: its text on stderr, exit code 2. An argument after the
    flags is a mistake too, unless it is allowed: Go's programs ignore it, and with it all flags that follow.
    """
    try:
        parsed = parse(flags, argv)
    except HelpRequested:
        print_help(f"{synopsis}\n{usage(program, flags)}" if synopsis else usage(program, flags))
        sys.exit(EXIT_HELP)
    except FlagError as error:
        exit_with_mistake(program, str(error))
    if parsed.leftovers and not allows_arguments:
        exit_with_mistake(program, unexpected(flags, argv, parsed.leftovers))
    return parsed


def unexpected(flags: Iterable[Flag], argv: Sequence[str], leftovers: Sequence[str]) -> str:
    """Return the error for an argument after the flags. It may be meant as the value of the boolean flag before it."""
    word = leftovers[0]
    text = f"unexpected argument {go_quote_str(word)}"
    before = argv[-len(leftovers) - 1].lstrip("-") if len(argv) > len(leftovers) else ""
    if any(flag.type.is_boolean and flag.name == before for flag in flags):
        text += f"; the value of a boolean flag comes after =, as in --{before}={word}"
    return text


def print_help(text: str) -> None:
    """Print text on stdout, even if the reader of a pipe closes it early."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def exit_with_mistake(program: str, text: str) -> NoReturn:
    """Print a mistake in the command line on stderr, in one line, and exit with code 2."""
    sys.stderr.write(f"{program}: {text} ({program} --help lists all flags)\n")
    sys.exit(EXIT_USAGE)
