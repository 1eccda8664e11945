"""Death of the simulated process at any store into its mapped files; the C half says how.

The C half is compiled when it is first wanted, with the compiler that builds the package, and kept in build/simulation.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI

SOURCE = Path(__file__).with_name("deaths.c")
BUILD = Path(__file__).parents[2] / "build" / "simulation"

_ffi = FFI()
_ffi.cdef(
    """
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset);
    int deaths_add(char *base, size_t size, int fd);
    int deaths_add_writer(int fd, unsigned long file);
    void deaths_forget(void);
    void deaths_watch_sockets(const int *fds, int count);
    int deaths_sent(int index);
    int deaths_dead(void);
    long deaths_stores(void);
    void deaths_die(void);
    void deaths_arm(long nth);
    void deaths_disarm(void);
    void deaths_again(void);
    void deaths_follow(uintptr_t state, uintptr_t handler, uintptr_t refused);
    """
)
_libc: Any = _ffi.dlopen(None)


def library() -> Any:
    """Return the C half, compiled if it has changed."""
    return compiled(SOURCE, _ffi)


def compiled(source: Path, ffi: FFI) -> Any:
    """Return a library of C source, compiled if it has changed, by the declarations of an FFI."""
    if platform.machine() != "x86_64":
        raise RuntimeError("the simulator steps over single stores, for which it knows x86-64 only")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    path = BUILD / f"{source.stem}-{digest}.so"
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as directory:
            made = Path(directory) / path.name
            flags = ["-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
            subprocess.run([*compiler, *flags, "-o", str(made), str(source)], check=True)
            made.rename(path)
    return ffi.dlopen(str(path))


def sockets_of(numbers: list[int]) -> Any:
    """Return descriptors as the C half takes them."""
    return _ffi.new("int[]", numbers)


def map_shared(fd: int, size_bytes: int) -> int:
    """Map a file, shared, to be read and written. Returns: the address."""
    read_write, shared = 0x1 | 0x2, 0x01
    address = _libc.mmap(_ffi.NULL, size_bytes, read_write, shared, fd, 0)
    return int(_ffi.cast("uintptr_t", address))


def pointer(address: int) -> Any:
    """Return an address as the C half takes it."""
    return _ffi.cast("char *", address)
