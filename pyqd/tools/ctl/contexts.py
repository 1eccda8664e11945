"""Brokers and lookup daemons that a command line means: from its flags, the environment, and the context file.

The context file has named sets of addresses, tokens and certificates: docs/tools/pyqctl.md, "Contexts". It is TOML,
written as a whole, with mode 0600, and keeps the comments that a user put into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import ssl
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyqd.client.errors import SettingError
from pyqd.client.http import parse_http_address
from pyqd.client.trust import TrustedBrokers
from pyqd.primitives.private_files import replace_private

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
LISTS: Final = ("nsqd_http_addresses", "lookupd_http_addresses", "trusted_brokers")
SECRETS: Final = ("token", "lookupd_token")
DEFAULT_ADDRESS: Final = "127.0.0.1:4151"
CONTEXT_VARIABLE: Final = "PYQD_CONTEXT"
VARIABLES: Final = {
    "nsqd_http_addresses": "PYQD_HTTP_ADDRESS",
    "lookupd_http_addresses": "PYQD_LOOKUPD_HTTP_ADDRESS",
    "trusted_brokers": "PYQD_TRUSTED_BROKER",
    "token": "PYQD_TOKEN",
    "token_file": "PYQD_TOKEN_FILE",
    "lookupd_token": "PYQD_LOOKUPD_TOKEN",
    "ca": "PYQD_CA",
    "cert": "PYQD_CERT",
    "key": "PYQD_KEY",
}
ADDRESSES: Final = LISTS[:2]
TOKENS: Final = ("token", "token_file")


@dataclass(frozen=True, kw_only=True)
class Context:
    """Addresses of brokers or of lookup daemons, and the means to log in. trusted_brokers: those that get the token."""

    nsqd_http_addresses: tuple[str, ...] = ()
    lookupd_http_addresses: tuple[str, ...] = ()
    trusted_brokers: tuple[str, ...] = ()
    token: str | None = None
    token_file: str | None = None
    lookupd_token: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def given(self) -> dict[str, Any]:
        return {name: list(value) if name in LISTS else value for name, value in asdict(self).items() if value}

    def check(self) -> None:
        """Check addresses and combinations. Raises: SettingError."""
        for address in (*self.nsqd_http_addresses, *self.lookupd_http_addresses):
            parse_http_address(address)
        TrustedBrokers(self.trusted_brokers)
        if self.nsqd_http_addresses and self.lookupd_http_addresses:
            raise SettingError("give addresses of brokers or of lookup daemons, not both")
        if self.key is not None and self.cert is None:
            raise SettingError("a key needs its certificate: --cert")


class ContextFile:
    """The file with all contexts. A missing file has none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ContextFile:
        """Return the file of a user, in the directory that the XDG specification names."""
        base = environment.get("XDG_CONFIG_HOME") or ""
        # The specification says that relative paths are ignored.
        directory = Path(base) if base.startswith("/") else Path(environment.get("HOME") or Path.home()) / ".config"
        return cls(directory / "pyqd" / "contexts.toml")

    def read(self) -> tuple[str | None, dict[str, Context]]:
        """Return the name of the current context, and all contexts. Raises: SettingError."""
        try:
            values = tomllib.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None, {}
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SettingError(f"cannot read {self.path}: {error}") from None
        tables = values.get("contexts", {})
        current = values.get("current")
        if not isinstance(tables, dict) or not isinstance(current, str | None):
            raise SettingError(f"{self.path}: `current` must be a string and `contexts` a table")
        return current, {name: self._context(name, table) for name, table in tables.items()}

    def _context(self, name: str, table: object) -> Context:
        """Return the context of a table. Raises: SettingError."""
        if not isinstance(table, dict):
            raise SettingError(f"{self.path}: contexts.{name} must be a table")
        known = [field.name for field in fields(Context)]
        if unknown := sorted(table.keys() - set(known)):
            raise SettingError(f"{self.path}: contexts.{name}: unknown key {unknown[0]!r}; keys are {', '.join(known)}")
        values: dict[str, Any] = {}
        for key, value in table.items():
            texts = value if key in LISTS and isinstance(value, list) else [value]
            if not all(isinstance(text, str) for text in texts):
                kind = "a list of strings" if key in LISTS else "a string"
                raise SettingError(f"{self.path}: contexts.{name}.{key} must be {kind}")
            values[key] = tuple(texts) if key in LISTS else value
        return Context(**values)

    def readable_by_others(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.path.stat().st_mode & OTHERS)
        return False

    def add(self, name: str, context: Context) -> None:
        """Store a context, in place of one with the same name; the first one becomes the current one."""
        with self._changed() as document:
            import tomlkit

            table = tomlkit.table()
            table.update(context.given())
            document.setdefault("contexts", tomlkit.table(is_super_table=True))[name] = table
            document.setdefault("current", name)

    def use(self, name: str) -> None:
        """Make a context the current one. Raises: SettingError if it does not exist."""
        with self._changed() as document:
            self._require(document, name)
            document["current"] = name

    def remove(self, name: str) -> None:
        """Remove a context. Raises: SettingError if it does not exist."""
        with self._changed() as document:
            self._require(document, name)
            del document["contexts"][name]
            if document.get("current") == name:
                del document["current"]

    def _require(self, document: TOMLDocument, name: str) -> None:
        if name not in document.get("contexts", {}):
            raise unknown_context(name, document.get("contexts", {}))

    @contextlib.contextmanager
    def _changed(self) -> Iterator[TOMLDocument]:
        """Give the file's content to a block, and write the content as the block leaves it. Raises: SettingError."""
        # Takes longer to load than a reading command runs.
        try:
            import tomlkit
        except ModuleNotFoundError:
            raise SettingError("contexts are changed with the package tomlkit: pip install 'pyqd[contexts]'") from None

        self.read()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.path.parent):
                # A link, such as that of a manager of dotfiles, stays: its target is replaced.
                target = self.path.resolve()
                document = tomlkit.parse(target.read_text(encoding="utf-8")) if target.exists() else tomlkit.document()
                yield document
                replace_private(target, tomlkit.dumps(document))
        except OSError as error:
            raise SettingError(f"cannot write {self.path}: {error.strerror or error}") from error


def unknown_context(name: str, known: Mapping[str, object]) -> SettingError:
    names = ", ".join(known) or "none; `pyqctl context add` makes one"
    return SettingError(f"no context {name!r}; contexts are: {names}")


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a lock on a directory, so that of two changes at a time none is lost."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class CtlTarget:
    """Settings in force. is_default: nothing names a broker. context: name of the context that counts, if any."""

    settings: Context
    is_default: bool = False
    context: str | None = None

    def token(self) -> str | None:
        """Return the token for brokers. Raises: SettingError if its file cannot be read."""
        path = self.settings.token_file
        if self.settings.token is not None or path is None:
            return self.settings.token
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"cannot read the token in {path}: {error}") from None
        if not text:
            raise SettingError(f"{path} has no token")
        return text

    @property
    def wants_tls(self) -> bool:
        """True if an address without a scheme means HTTPS."""
        return self.settings.ca is not None or self.settings.cert is not None

    def tls_context(self) -> ssl.SSLContext:
        """Return the context for HTTPS. Raises: SettingError for its files."""
        settings = self.settings
        try:
            context = ssl.create_default_context(cafile=settings.ca)
            if settings.cert is not None:
                context.load_cert_chain(settings.cert, settings.key)
        except (OSError, ssl.SSLError) as error:
            raise SettingError(f"--ca, --cert or --key: {error}") from None
        return context


def environment_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, variable in VARIABLES.items():
        if text := environment.get(variable):
            found[name] = split_list(text) if name in LISTS else text
    return found


def split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def find_target(
    flags: Mapping[str, Any], context_name: str | None, environment: Mapping[str, str], file: ContextFile
) -> CtlTarget:
    """Return the settings in force. Raises: SettingError.

    Flags win over the context that --context names. Without --context, flags win over the environment, and the current
    context counts only if neither has an address, so that its token goes only to the brokers it was stored for.
    """
    given = dict(flags)
    name = context_name
    if context_name is None:
        given = merged(environment_settings(environment), given)
        if not any(key in given for key in ADDRESSES):
            name = environment.get(CONTEXT_VARIABLE) or file.read()[0]
    if name is not None:
        contexts = file.read()[1]
        if name not in contexts:
            raise unknown_context(name, contexts)
        given = merged(contexts[name].given(), given)
    given = {key: tuple(value) if key in LISTS else value for key, value in given.items()}
    has_addresses = any(key in given for key in ADDRESSES)
    if not has_addresses:
        given["nsqd_http_addresses"] = (DEFAULT_ADDRESS,)
    settings = Context(**given)
    settings.check()
    return CtlTarget(settings, is_default=not has_addresses, context=name)


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of which the upper ones win; addresses of one kind displace those of both kinds, and a token
    displaces a file with one.
    """
    displaced = {name for group in (ADDRESSES, TOKENS) if any(key in upper for key in group) for name in group}
    return {**{name: value for name, value in lower.items() if name not in displaced}, **upper}
