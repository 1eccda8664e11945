"""The users' file: names, roles and hashed passwords, in TOML; and `pyqadmin user`, which changes it.

    [ada]
    password = "$argon2id$v=19$..."
    role = "operate"
    topics = ["orders*", "mail"]

The file is read again when it changes, so that a user can be added or removed while pyqadmin runs.

Source: docs/admin.md, "Access"; RFC 9106 for the hashes.
"""

from __future__ import annotations

import argparse
import dataclasses
import getpass
import hashlib
import hmac
import json
import logging
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from pyqd.admin.access.roles import User, UserRole
from pyqd.primitives.errors import StartupError
from pyqd.primitives.private_files import replace_private

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PASSWORD_MIN: Final = 8
# Takes as long as a check of a real one, so that an answer's time does not tell which names exist.
HASHER: Final = PasswordHasher()

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class UserEntry:
    """One user with the hash of the password."""

    user: User
    password_hash: str

    @property
    def stamp(self) -> str:
        """Text that changes with the password; a session is valid only with the stamp of its login."""
        return hashlib.sha256(self.password_hash.encode()).hexdigest()[:16]


class Users:
    """Users of a file. Raises: StartupError if it cannot be read."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._lock = Lock()
        self._seen: tuple[int, int] | None = None
        self._entries: Mapping[str, UserEntry] = {}
        # Scripts send their password with each request: the second check of the same one is quick.
        self._key = os.urandom(32)
        self._proofs: dict[str, bytes] = {}
        self._no_user_hash = HASHER.hash(os.urandom(16).hex())
        self._load()

    def entry(self, name: str) -> UserEntry | None:
        """Return a user, from the file as it is now. A file that is wrong leaves the users as they are."""
        try:
            found = self.path.stat()
            if (found.st_mtime_ns, found.st_ino) != self._seen:
                self._load()
        except (OSError, StartupError) as error:
            logger.error("%s; the users read before stay in force", error)
        return self._entries.get(name)

    def login(self, name: str, password: str) -> UserEntry | None:
        entry = self.entry(name)
        proof = hmac.digest(self._key, f"{entry.password_hash if entry else ''}\0{password}".encode(), "sha256")
        if entry is not None and hmac.compare_digest(self._proofs.get(name, b""), proof):
            return entry
        try:
            HASHER.verify(self._no_user_hash if entry is None else entry.password_hash, password)
        except (VerificationError, InvalidHashError):
            return None
        if entry is not None:
            self._proofs[name] = proof
        return entry

    def _load(self) -> None:
        with self._lock:
            try:
                found = self.path.stat()
                entries = entries_of(self.path.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise StartupError(f"failed to read --users-file {self.path} - {error}") from None
            if stat.S_IMODE(found.st_mode) & 0o077:
                logger.warning("%s can be read by other users of this machine: chmod 600 %s", self.path, self.path)
            self._entries = entries
            self._seen = (found.st_mtime_ns, found.st_ino)


def entries_of(text: str) -> dict[str, UserEntry]:
    """Return the users in the text of a file. Raises: ValueError."""
    found: dict[str, Any] = tomllib.loads(text)
    entries = {}
    for name, fields in found.items():
        if not isinstance(fields, dict):
            raise ValueError(f"{name} is no table: a user begins with [{name}]")
        unknown = fields.keys() - {"password", "role", "topics"}
        if unknown:
            raise ValueError(f"user {name} has the unknown key {sorted(unknown)[0]}")
        password = fields.get("password")
        if not isinstance(password, str) or not password.startswith("$argon2"):
            raise ValueError(f"user {name} has no password made by `pyqadmin user add`")
        topics = fields.get("topics", ["*"])
        if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
            raise ValueError(f"topics of user {name} are no list of patterns")
        entries[name] = UserEntry(User(name, UserRole.parse(str(fields.get("role", "view"))), tuple(topics)), password)
    return entries


def add_user(path: Path, name: str, password: str, role: UserRole, topics: tuple[str, ...]) -> None:
    """Add a user to a file, or replace one. Raises: ValueError, OSError."""
    if not name or not name.isprintable() or name != name.strip():
        raise ValueError(f"{name!r} is no name of a user")
    if len(password) < PASSWORD_MIN:
        raise ValueError(f"a password has at least {PASSWORD_MIN} characters")
    entries = entries_of(path.read_text("utf-8")) if path.exists() else {}
    entries[name] = UserEntry(User(name, role, topics), HASHER.hash(password))
    write_users(path, entries)


def remove_user(path: Path, name: str) -> None:
    """Remove a user from a file. Raises: ValueError, OSError."""
    entries = entries_of(path.read_text("utf-8"))
    if name not in entries:
        raise ValueError(f"there is no user {name} in {path}")
    del entries[name]
    write_users(path, entries)


def write_users(path: Path, entries: Mapping[str, UserEntry]) -> None:
    """Replace the file in one step. Raises: OSError."""
    lines = []
    for name, entry in entries.items():
        lines += [
            f"[{toml(name)}]",
            f"password = {toml(entry.password_hash)}",
            f'role = "{entry.user.role.name.lower()}"',
            f"topics = {toml(list(entry.user.topics))}",
            "",
        ]
    replace_private(path, "\n".join(lines))


def toml(value: str | list[str]) -> str:
    """Return a string or a list of strings in TOML."""
    # JSON is TOML, except its pairs of escapes for characters beyond 16 bits, and a bare DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


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
        return 1
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
