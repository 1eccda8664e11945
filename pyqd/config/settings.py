"""Settings of a program: the values of its command line and its configuration file, checked, with their origins.

A flag on the command line counts before its key in the file, and the file before the default.
"""

import dataclasses
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pyqd import __version__
from pyqd.config.configfile import ConfigFile, read_config, unknown_keys, values_of
from pyqd.primitives.errors import StartupError
from pyqd.primitives.goflags import Flag, parse_or_exit
from pyqd.primitives.nsq_compat import NSQ_VERSION

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramSettings(Generic[T]):
    """Result of parsing a command line and its configuration file.

    values: the given values by flag name. file: None if there is no file. in_file: names of the flags whose values come
    from the file. problems: whole texts that say why the options are invalid. notices: flags without effect. doubtful:
    names of the flags behind the problems. Their values are wrong, or unknown because the file cannot be read.
    """

    program: "Program[T]"
    values: Mapping[str, Any]
    file: ConfigFile | None
    in_file: frozenset[str]
    problems: tuple[str, ...]
    notices: tuple[str, ...]
    doubtful: frozenset[str] = frozenset()

    def options(self) -> T:
        """Return the options. Raises: StartupError with the first problem."""
        if self.problems:
            raise StartupError(self.problems[0])
        return self.options_without_doubtful()

    def options_without_doubtful(self) -> T:
        """Return the options with the defaults in place of doubtful values."""
        sure = self.values.keys() - self.doubtful
        given = {flag.attribute: self.values[flag.name] for flag in self.program.flags if flag.name in sure}
        return self.program.options_of(given, self.notices)


@dataclasses.dataclass(frozen=True, slots=True)
class Program(Generic[T]):
    """A program with flags. options_of: returns its options for values by attribute, and the notices."""

    name: str
    flags: tuple[Flag, ...]
    synopsis: str
    options_of: Callable[[Mapping[str, Any], tuple[str, ...]], T]

    def settings_of(self, given: Mapping[str, Any]) -> ProgramSettings[T]:
        """Return the settings of a command line's values, by flag name, and of the file that they name."""
        flags = self.flags
        try:
            file = read_config(given["config"]) if given.get("config") else None
        except StartupError as error:
            unknown = frozenset(flag.name for flag in flags if flag.name not in given)
            return ProgramSettings(self, given, None, frozenset(), (str(error),), (), unknown)
        from_file, problems = ({}, []) if file is None else values_of(file, [f for f in flags if f.name not in given])
        values = {**from_file, **given}
        notices: list[str] = []
        doubtful = {flag.name for flag in flags if file is not None and flag.config_key in file.values} - values.keys()
        for flag in flags:
            if flag.name not in values:
                continue
            place = f"{file.where(flag)}: " if file is not None and flag.name in from_file else ""
            try:
                flag.check(values[flag.name])
            except ValueError as error:
                problems.append(f"failed to instantiate {self.name} - {place}{error}")
                doubtful.add(flag.name)
            if flag.without_effect:
                notices.append(f"{place}--{flag.name} {flag.help.removeprefix('deprecated, ')}")
        if file is not None:
            notices += unknown_keys(file, flags)
        return ProgramSettings(
            self, values, file, frozenset(from_file), tuple(problems), tuple(notices), frozenset(doubtful)
        )

    def parse_settings(self, argv: Sequence[str]) -> ProgramSettings[T]:
        """Parse a command line, argv without the program's name.

        Exits the process after --version and --help (stdout, exit code 0) and after a wrong command line (stderr, 2).
        """
        values = parse_or_exit(self.name, self.flags, argv, self.synopsis).values
        if values.get("version"):
            print(version_line(self.name))
            raise SystemExit(0)
        return self.settings_of(values)


def version_line(program: str) -> str:
    """Return the line that --version prints, in the form of NSQ's programs, with the release of NSQ that it speaks."""
    return f"{program} v{__version__} (NSQ v{NSQ_VERSION}, built w/python{platform.python_version()})"
