"""The kinds of errors, each translated in one place only.

ClientError      what a client did wrong; becomes an error frame, and mostly a close, in the connection.
StorageError     what the system refused: made where files are touched, sets the health of the daemon.
CorruptionError  what stands in a file and cannot be so; counted and set aside, never silently reset.
LaterFormatError a file written by a later pyqd: nothing is touched.
LimitReached     what this daemon is told not to make more of; becomes an error frame, or 403. A MachineLimitReached,
                 what the machine has no more of, becomes an error frame, or 503.
StartupError     why the daemon cannot start; becomes a FATAL line and exit code 1 in its main.

Misuse of an interface is a ValueError or TypeError, and a bug an AssertionError; neither is caught.
"""

import errno
from typing import Final

# Every other code closes the connection after its frame (docs/nsq/tcp-protocol.md, "Fatal and other errors").
NON_FATAL_CODES: Final = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})

_DISK_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class ClientError(Exception):
    """A client's mistake, with nsqd's code and text.

    code: one of nsqd's codes, for example E_BAD_TOPIC.
    text: bytes, as it may echo raw bytes of the client; given as str it is taken as UTF-8. May be empty.
    fatal: whether the connection closes after the frame; follows from the code unless given.
    The cause, if any, is for the log alone: raise ClientError(...) from cause.
    """

    def __init__(self, code: str, text: bytes | str = b"", *, fatal: bool | None = None) -> None:
        self.code = code
        self.text = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        self.fatal = code not in NON_FATAL_CODES if fatal is None else fatal
        super().__init__(code, self.text)

    def frame(self) -> bytes:
        """Return the data of the error frame: the code, and after one space the text if there is any."""
        code = self.code.encode("ascii")
        return code + b" " + self.text if self.text else code

    def __str__(self) -> str:
        return self.frame().decode("utf-8", "backslashreplace")


class StorageError(OSError):
    """A file operation the system refused; errno, strerror and filename are those of the OSError it stands for.

    operation: what was tried, one word of ours: reserve, map, sync, rename, remove, ...
    path: the file or directory it was tried on.
    """

    def __init__(self, operation: str, path: str, error_number: int, reason: str) -> None:
        super().__init__(error_number, reason, path)
        self.operation = operation
        self.path = path

    def __str__(self) -> str:
        return f"failed to {self.operation} {self.path} - {self.strerror}"


class DiskFull(StorageError):  # noqa: N818 - a condition, named as such by its users
    """There is no room for what was to be written, or no quota; nothing was written."""


def storage_error(operation: str, path: str, error: OSError) -> StorageError:
    """Return the StorageError that stands for error, a DiskFull where room or quota is what lacks.

    A StorageError is returned as it is: the innermost place knows best which file it was.
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
    """Bytes in a file that no writer of ours can have meant.

    file: path; offset: of the first bad byte in it; detail: what is wrong there.
    """

    def __init__(self, file: str, offset: int, detail: str) -> None:
        super().__init__(file, offset, detail)
        self.file = file
        self.offset = offset
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.file} is corrupt at offset {self.offset} - {self.detail}"


class LaterFormatError(CorruptionError):
    """A file in a version of its format that this pyqd does not know; not damaged, so it is left as it is."""

    def __str__(self) -> str:
        return f"{self.file} was written by a later pyqd - {self.detail}"


class LimitReached(Exception):  # noqa: N818 - a condition, named as such by its users
    """There are as many as a limit allows; nothing was made. code: of the answer, without the E_ of an error frame."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class MachineLimitReached(LimitReached):
    """Only the reserve of a limit of the machine is left. The text names the limit and what raises it."""


class StartupError(Exception):
    """A reason not to start; str() of it is the whole text of the FATAL line."""
