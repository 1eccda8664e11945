"""The kinds of errors; each is translated into an answer in one place only.

CommandError      a client's mistake; becomes an error frame, and mostly a close, in the connection.
StorageError     a failed file operation: raised by the code that touches files, sets the health of the daemon.
CorruptionError  invalid bytes in a file; counted and set aside, never silently reset.
LaterFormatError a file written by a later pyqd: nothing is touched.
LimitReached     a configured limit of this daemon; becomes an error frame, or 403. A MachineLimitReached, a limit of
                 the machine, becomes an error frame, or 503.
StartupError     the reason why the daemon cannot start; becomes a FATAL line and exit code 1 in its main.

Misuse of an interface raises ValueError or TypeError, and an internal error AssertionError; neither is caught.
"""

import errno
from typing import Final

# Every other code closes the connection after its frame (docs/nsq/tcp-protocol.md, "Fatal and other errors").
NON_FATAL_CODES: Final = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})

_DISK_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class CommandError(Exception):
    """A command that is refused, with nsqd's code and text.

    code: one of nsqd's codes, for example E_BAD_TOPIC. text: bytes, because it may echo raw bytes of the client; a str
    is encoded as UTF-8. May be empty. fatal: whether the connection closes after the frame; by default it follows from
    the code. The cause, if any, is only logged: raise CommandError(...) from cause.
    """

    def __init__(self, code: str, text: bytes | str = b"", *, fatal: bool | None = None) -> None:
        self.code = code
        self.text = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        self.fatal = code not in NON_FATAL_CODES if fatal is None else fatal
        super().__init__(code, self.text)

    def frame(self) -> bytes:
        """Return the data of the error frame: the code, followed by a space and the text if there is a text."""
        code = self.code.encode("ascii")
        return code + b" " + self.text if self.text else code

    def __str__(self) -> str:
        return self.frame().decode("utf-8", "backslashreplace")


class StorageError(OSError):
    """A file operation that the system refused; errno, strerror and filename are those of the original OSError.

    operation: one word of pyqd's: reserve, map, sync, rename, remove, ... path: of the file or directory.
    """

    def __init__(self, operation: str, path: str, error_number: int, reason: str) -> None:
        super().__init__(error_number, reason, path)
        self.operation = operation
        self.path = path

    def __str__(self) -> str:
        return f"failed to {self.operation} {self.path} - {self.strerror}"


class DiskFull(StorageError):  # noqa: N818 - a condition, named as such by its users
    """The disk or the quota has no space for a write; nothing was written."""


def storage_error(operation: str, path: str, error: OSError) -> StorageError:
    """Return a StorageError for an OSError: a DiskFull if space or quota is missing.

    A StorageError is returned as it is: the innermost code knows best which file it was.
    """
    if isinstance(error, StorageError):
        return error
    kind = DiskFull if error.errno in _DISK_FULL_ERRNOS else StorageError
    return kind(operation, path, error.errno or errno.EIO, error.strerror or str(error))


def reason_of(error: BaseException) -> str:
    """Return the reason of an error for a log line: without an errno in brackets, and never empty."""
    if isinstance(error, OSError) and not isinstance(error, StorageError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


class CorruptionError(Exception):
    """Invalid bytes in a file, which pyqd cannot have written there.

    file: path; offset: of the first bad byte; detail: the description of the damage.
    """

    def __init__(self, file: str, offset: int, detail: str) -> None:
        super().__init__(file, offset, detail)
        self.file = file
        self.offset = offset
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.file} is corrupt at offset {self.offset} - {self.detail}"


class LaterFormatError(CorruptionError):
    """A file with a version of its format that this pyqd does not know. It is not damaged, so it is left as it is."""

    def __str__(self) -> str:
        return f"{self.file} was written by a later pyqd - {self.detail}"


class LimitReached(Exception):  # noqa: N818 - a condition, named as such by its users
    """A configured limit is reached; nothing was created. code: of the answer, without the E_ of an error frame."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class MachineLimitReached(LimitReached):
    """Only the reserve of a machine's limit remains. The text names the limit and how to raise it."""


class StartupError(Exception):
    """The reason not to start; str() of it is the whole text of the FATAL line."""
