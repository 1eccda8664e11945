"""A disk that can be full for real: a small file system in memory, mounted by the test, that can be made larger."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

DETACH = 2
REMOUNT = 32

_libc = ctypes.CDLL(None, use_errno=True)


def mount(path: Path, size_bytes: int, flags: int = 0) -> None:
    """Mount a file system in memory, or with REMOUNT change its size. Raises: OSError if this user may not."""
    options = f"size={size_bytes}".encode()
    if _libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, options) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def mounted(path: Path, size_bytes: int) -> Iterator[Path]:
    """Make a directory with a file system of that size; it goes with the block. Raises: OSError."""
    path.mkdir()
    mount(path, size_bytes)
    try:
        yield path
    finally:
        _libc.umount2(os.fsencode(path), DETACH)


def enlarge(path: Path, size_bytes: int) -> None:
    mount(path, size_bytes, REMOUNT)


def fill(path: Path) -> None:
    """Fill the remaining space of a disk with one file."""
    found = os.statvfs(path.parent)
    with open(path, "wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, found.f_bfree * found.f_frsize)
    assert os.statvfs(path.parent).f_bfree == 0


@contextmanager
def mounted_or_skipped(path: Path, size_bytes: int) -> Iterator[Path]:
    """Do as `mounted`; skip the test if this user may not mount."""
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(mounted(path, size_bytes))
        except OSError as error:
            pytest.skip(f"mounting a small file system takes root here - {error.strerror}")
        yield disk
