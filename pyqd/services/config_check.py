"""`pyqd --check-config`: what the flags and the configuration file ask for, tried as far as that changes nothing.

What is printed is a configuration file: with it, and without flags, the same is in force.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from pyqd.primitives.configfile import shown
from pyqd.primitives.errors import StartupError
from pyqd.primitives.goflags import Flag
from pyqd.primitives.options import FLAGS, PROGRAM, Options, Settings
from pyqd.protocol.authd import AuthServers
from pyqd.protocol.listener import ListeningAddresses
from pyqd.protocol.tls import TlsServer
from pyqd.services.login import login_of

SHOWN_COLUMNS = 60


def check_config(settings: Settings) -> int:
    """Print what is in force on stdout, or what is wrong, a line each, on stderr. Returns: the exit code, 0 or 1."""
    for notice in settings.notices:
        print(f"warning: {notice}", file=sys.stderr)
    problems = list(settings.problems)
    if not problems:
        options = settings.options()
        problems = [problem for check in CHECKS if (problem := failed(check, options))]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return 1
    print(effective(settings), end="")
    return 0


def effective(settings: Settings) -> str:
    """Return what is in force as a configuration file, each value with where it comes from."""
    options = settings.options()
    lines: list[str] = []
    group = ""
    for flag in FLAGS:
        if flag.config_key is None:
            continue
        if flag.group != group:
            group = flag.group
            lines += ["", f"# {group}"] if lines else [f"# {group}"]
        setting = f"{flag.config_key} = {shown(flag, getattr(options, flag.attribute))}"
        lines.append(f"{setting:<{SHOWN_COLUMNS}}  # {origin(settings, flag)}")
    return "\n".join(lines) + "\n"


def origin(settings: Settings, flag: Flag) -> str:
    """Return where a flag's value comes from."""
    if flag.name in settings.in_file:
        assert settings.file is not None
        return settings.file.where(flag)
    return "command line" if flag.name in settings.values else "default"


def check_addresses(options: Options) -> None:
    """Raise StartupError for an address that is none; without a certificate nothing listens for HTTPS."""
    ListeningAddresses(options, https=bool(options.tls_cert))


def check_data_path(options: Options) -> None:
    """Raise StartupError where there is no such directory, or one that cannot be written to."""
    path = options.data_path or os.curdir
    reason = ""
    if not os.path.isdir(path):
        reason = "not a directory" if os.path.exists(path) else "no such file or directory"
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        reason = "permission denied"
    if reason:
        raise StartupError(f"failed to instantiate {PROGRAM} - failed to lock data-path: open {path}: {reason}")


def check_login(options: Options) -> None:
    """Raise StartupError where logins could not be decided about."""
    login_of(options, AuthServers(options))


CHECKS: tuple[Callable[[Options], Any], ...] = (
    check_data_path,
    TlsServer,
    check_login,
    check_addresses,
)


def failed(check: Callable[[Options], Any], options: Options) -> str:
    """Return why a check fails; empty where it does not."""
    try:
        check(options)
    except StartupError as error:
        return str(error)
    return ""
