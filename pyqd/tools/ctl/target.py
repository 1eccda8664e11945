"""Brokers and lookup daemons that a command line means: from its flags, the environment, and the context file."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyqd.client.errors import SettingError
from pyqd.tools.ctl.contexts import LISTS, Context, ContextFile, unknown_context

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
