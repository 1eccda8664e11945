"""Unreadable pages: a mapped file some of whose pages raise SIGBUS, as when the disk returns EIO.

Such a page is covered by a page of an empty file: for a page beyond the end of a file the kernel raises the same
signal, with the same code, as for one that it cannot read.
"""

import os
import tempfile
from collections.abc import Callable
from typing import Any

from cffi import FFI

from pyqd.diskqueue.files import PAGE_BYTES, Files
from pyqd.hot.diskqueue.mapping import Mapping

PROT_READ_WRITE = 0x1 | 0x2
MAP_SHARED_FIXED = 0x01 | 0x10

_ffi = FFI()
_ffi.cdef("void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset);")
_libc: Any = _ffi.dlopen(None)


def make_unreadable(mapping: Mapping, page: int) -> None:
    """Have every access to a page of a mapping raise SIGBUS."""
    with tempfile.TemporaryFile() as empty:
        at = _ffi.cast("void *", mapping.address + page * PAGE_BYTES)
        assert _libc.mmap(at, PAGE_BYTES, PROT_READ_WRITE, MAP_SHARED_FIXED, empty.fileno(), 0) == at


class UnreadableFiles(Files):
    """Files with bad blocks. is_bad: says of a path and a page whether the page cannot be read."""

    def __init__(self, is_bad: Callable[[str, int], bool]) -> None:
        self.is_bad = is_bad

    def open_mapped(self, path: str) -> Mapping:
        mapping = super().open_mapped(path)
        for page in range(os.stat(path).st_size // PAGE_BYTES):
            if self.is_bad(path, page):
                make_unreadable(mapping, page)
        return mapping
