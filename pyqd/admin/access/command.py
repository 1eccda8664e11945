"""`pyqadmin user`: adds, lists and removes users of the users' file."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyqd.admin.access.roles import UserRole
from pyqd.admin.access.users import add_user, entries_of, remove_user

EXIT_ERROR: Final = 1


def user_command(argv: Sequence[str]) -> int:
    """Run `pyqadmin user`. argv: the words after these two. Returns: the exit code."""
    arguments = parser().parse_args(argv)
    path = Path(arguments.users_file)
    try:
        if arguments.verb == "add":
            add_user(
                path, arguments.name, read_password(), UserRole.parse(arguments.role), tuple(arguments.topic or "*")
            )
        elif arguments.verb == "remove":
            remove_user(path, arguments.name)
        else:
            for name, entry in sorted(entries_of(path.read_text("utf-8")).items()):
                print(f"{name}\t{entry.user.role.name.lower()}\t{' '.join(entry.user.topics)}")
    except (OSError, ValueError) as error:
        print(f"pyqadmin user {arguments.verb}: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        "pyqadmin user", description="Users of the web admin. A running one sees changes at once."
    )
    verbs = whole.add_subparsers(dest="verb", required=True)
    for verb, text in (
        ("add", "add a user, or replace one"),
        ("list", "print names, roles and topics"),
        ("remove", "remove a user"),
    ):
        each = verbs.add_parser(verb, help=text, description=text)
        each.add_argument("--users-file", required=True, help="path of the file")
        if verb != "list":
            each.add_argument("name")
        if verb == "add":
            each.add_argument("--role", default="view", help="view (default), operate or admin")
            each.add_argument(
                "--topic", action="append", help="pattern of topics, such as 'orders*'; repeatable; all without it"
            )
    return whole


def read_password() -> str:
    """Return a password: typed twice on a terminal, else the first line of standard input. Raises: ValueError."""
    if sys.stdin is None:
        raise ValueError("cannot read the password from standard input: it is closed")
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise ValueError("the two passwords differ")
    return password
