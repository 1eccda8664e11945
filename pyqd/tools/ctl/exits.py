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

MEANINGS: Final = {
    OK: "done",
    FAILED: "refused by a broker, done in part, not answered with yes, or the output cannot be written",
    USAGE: "wrong use: unknown option, invalid value, or a question that no terminal can answer",
    NO_ANSWER: "a broker or lookup daemon does not answer, or TLS fails",
    NOT_FOUND: "no broker has the topic, the channel or the message",
    LOGIN: "the token is missing or wrong, or it has not the right",
    UNSUPPORTED: "the broker does not have this call: it is nsqd, or an older pyqd",
    UNHEALTHY: "doctor found a failure",
    INTERRUPTED: "interrupted by Ctrl-C",
}


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
