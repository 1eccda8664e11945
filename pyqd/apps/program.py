"""Frame of a daemon's `main`: logging, limits of the process, errors of the start, and `--check-config`.

`--check-config` checks flags and configuration file as far as that changes nothing. Its output is a configuration
file: a daemon with that file and without flags runs with the same settings.
"""

import errno
import logging
import os
import shlex
import stat
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from pyqd.api.login import login_of
from pyqd.apps.listeners import ADDRESS_FLAGS, check_addresses, tls_flags, tls_server
from pyqd.config.configfile import shown
from pyqd.config.options import FLAGS, PROGRAM, Options
from pyqd.config.program_options import ProgramOptions
from pyqd.config.settings import ProgramSettings, version_line
from pyqd.primitives.errors import StartupError
from pyqd.primitives.goflags import Flag
from pyqd.primitives.loglines import configure, print_fatal
from pyqd.primitives.machine import raise_descriptor_limit
from pyqd.tcp.authd import AuthServers

SHOWN_COLUMNS = 60

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=ProgramOptions)
# Each check with the flags it depends on. A check is skipped if one of them has a doubtful value.
Checks = Mapping[Callable[[T], Any], tuple[str, ...]]


def run_program(
    settings: ProgramSettings[T],
    checks: Checks[T],
    run: Callable[[T], int],
    on_refusal: Callable[[str], None] = lambda _reason: None,
) -> int:
    """Check the configuration if --check-config is given, else run(options). Returns: the exit code.

    run: its StartupError becomes a FATAL line. on_refusal: is called with the reason why the program cannot start.
    """
    if settings.values.get("check-config"):
        return check_config(settings, checks)
    try:
        options = settings.options()
        raise_descriptor_limit()
        configure(options.log_prefix, options.log_level, form=options.log_format)
        logger.info("%s", version_line(settings.program.name))
        for notice in options.notices:
            logger.warning("%s", notice)
        return run(options)
    except StartupError as error:
        print_fatal(str(error), f"[{settings.program.name}] ")
        on_refusal(str(error))
        return 1


def check_config(settings: ProgramSettings[T], checks: Checks[T]) -> int:
    """Print the settings on stdout, or the problems on stderr, one per line. Returns: the exit code, 0 or 1."""
    for notice in settings.notices:
        print(f"warning: {notice}", file=sys.stderr)
    options = settings.options_without_doubtful()
    problems = list(settings.problems)
    problems += [failed(check, options) for check, flags in checks.items() if not settings.doubtful.intersection(flags)]
    problems = [problem for problem in problems if problem]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return 1
    print(effective(settings), end="")
    return 0


def effective(settings: ProgramSettings[Any]) -> str:
    """Return the settings as a configuration file, each value with its origin."""
    options = settings.options()
    lines: list[str] = []
    group = ""
    for flag in settings.program.flags:
        if flag.config_key is None:
            continue
        if flag.group != group:
            group = flag.group
            lines += ["", f"# {group}"] if lines else [f"# {group}"]
        setting = f"{flag.config_key} = {shown(flag, getattr(options, flag.attribute))}"
        lines.append(f"{setting:<{SHOWN_COLUMNS}}  # {origin(settings, flag)}")
    return "\n".join(lines) + "\n"


def origin(settings: ProgramSettings[Any], flag: Flag) -> str:
    if flag.name in settings.in_file:
        assert settings.file is not None
        return settings.file.where(flag)
    return "command line" if flag.name in settings.values else "default"


def check_data_path(options: Options) -> None:
    """Raise StartupError if the data path is not a directory that this process may read and write."""
    path = os.path.abspath(options.data_path or os.curdir)
    remedy = "--data-path names another"
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno != errno.ENOENT:
            problem = f"cannot be reached: {(error.strerror or str(error)).lower()}"
        else:
            problem = f"does not exist; create it with mkdir -p {shlex.quote(path)}"
    else:
        if not stat.S_ISDIR(found.st_mode):
            problem = "is not a directory"
        elif os.statvfs(path).f_flag & os.ST_RDONLY:
            problem = "is on a file system that is mounted read-only"
        elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            problem = f"cannot be read and written by this process with user id {os.geteuid()}"
        else:
            return
    raise StartupError(f"failed to instantiate {PROGRAM} - data path {path} {problem}; {remedy}")


DAEMON_CHECKS: Final[Checks[Options]] = {
    check_data_path: ("data-path",),
    tls_server: tls_flags(FLAGS),
    lambda options: login_of(options, AuthServers(options)): ("auth-http-address", "http-auth", "http-auth-token-file"),
    check_addresses: ADDRESS_FLAGS,
}


def failed(check: Callable[[T], Any], options: T) -> str:
    """Return why a check fails; empty if it succeeds."""
    try:
        check(options)
    except StartupError as error:
        return str(error)
    return ""
