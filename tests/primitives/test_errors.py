"""The kinds of errors and their fields."""

import errno

import pytest

from pyqd.primitives.errors import (
    CommandError,
    CorruptionError,
    DiskFull,
    StorageError,
    reason_of,
    storage_error,
)


def test_a_frame_without_text_is_the_code_alone() -> None:
    assert CommandError("E_BAD_PROTOCOL").frame() == b"E_BAD_PROTOCOL"


def test_a_frame_keeps_raw_client_bytes() -> None:
    error = CommandError("E_INVALID", b"invalid command \xff\x00")
    assert error.frame() == b"E_INVALID invalid command \xff\x00"
    assert str(error) == "E_INVALID invalid command \\xff\x00"


@pytest.mark.parametrize("code", ["E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"])
def test_the_three_failures_of_a_message_are_not_fatal(code: str) -> None:
    assert not CommandError(code, "FIN x failed").fatal


@pytest.mark.parametrize("code", ["E_INVALID", "E_BAD_TOPIC", "E_PUB_FAILED", "E_UNAUTHORIZED"])
def test_every_other_error_is_fatal(code: str) -> None:
    assert CommandError(code, "x").fatal


def test_the_raiser_may_decide_whether_an_error_is_fatal() -> None:
    assert not CommandError("E_INVALID", "x", fatal=False).fatal
    assert CommandError("E_FIN_FAILED", "x", fatal=True).fatal


def test_a_storage_error_names_operation_path_and_reason() -> None:
    error = storage_error("sync", "/data/1", OSError(errno.EIO, "Input/output error", "other"))
    assert type(error) is StorageError
    assert (error.operation, error.path, error.filename, error.errno) == ("sync", "/data/1", "/data/1", errno.EIO)
    assert str(error) == "failed to sync /data/1 - Input/output error"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_lack_of_space_or_quota_is_a_full_disk(number: int) -> None:
    error = storage_error("reserve", "/data/1", OSError(number, "no room"))
    assert type(error) is DiskFull
    assert error.operation == "reserve"


def test_a_storage_error_is_not_wrapped_twice() -> None:
    inner = DiskFull("reserve", "/data/1", errno.ENOSPC, "no room")
    assert storage_error("map", "/data", inner) is inner


def test_an_os_error_without_number_becomes_an_input_output_error() -> None:
    error = storage_error("map", "/data/1", OSError("odd"))
    assert (error.errno, error.strerror) == (errno.EIO, "odd")


def test_corruption_names_file_offset_and_detail() -> None:
    error = CorruptionError("/data/1", 4096, "bad checksum")
    assert (error.file, error.offset, error.detail) == ("/data/1", 4096, "bad checksum")
    assert str(error) == "/data/1 is corrupt at offset 4096 - bad checksum"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (OSError("timed out"), "timed out"),
        (StorageError("sync", "/data/x", 5, "Input/output error"), "failed to sync /data/x - Input/output error"),
        (MemoryError(), "MemoryError"),
        (ValueError("no port"), "no port"),
    ],
)
def test_the_reason_of_an_error_is_words(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason
