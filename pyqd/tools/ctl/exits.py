"""Exit codes of pyqctl, and the errors that lead to them. Source: docs/tools/pyqctl.md, "Exit codes"."""

from __future__ import annotations

from typing import Final

from pyqd.client.errors import (
    AuthenticationError,
    ClientError,
    NotConnectedError,
    NotFoundError,
    SettingError,
    TlsError,
)

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NO_ANSWER: Final = 3
NOT_FOUND: Final = 4
LOGIN: Final = 5
UNSUPPORTED: Final = 6
UNHEALTHY: Final = 7
INTERRUPTED: Final = 130


class UnsupportedError(ClientError):
    """The broker does not have the call."""


class PartlyDoneError(ClientError):
    """A change was made in part, or not at all, for a reason that is in the output."""


_CODES: Final[tuple[tuple[type[ClientError], int], ...]] = (
    (SettingError, USAGE),
    (TlsError, NO_ANSWER),
    (NotConnectedError, NO_ANSWER),
    (NotFoundError, NOT_FOUND),
    (AuthenticationError, LOGIN),
    (UnsupportedError, UNSUPPORTED),
)


def code_of(error: ClientError) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
