"""A wall clock that a test sets for the programs it starts."""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SHIFTED_CLOCK = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long long none;
static volatile long long *shift_s = &none;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CLOCK_SHIFT_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0)
        shift_s = mmap(NULL, sizeof *shift_s, PROT_READ, MAP_SHARED, fd, 0);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME)
        now->tv_sec += *shift_s;
    return (int)failed;
}
"""


class Clock:
    """The wall clock of the daemons started while it is set up."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("shifting a daemon's clock takes a C compiler")
        source, self.library = directory / "clock.c", directory / "clock.so"
        source.write_text(SHIFTED_CLOCK)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", self.library, source], check=True, timeout=60)
        self.path = directory / "shift"
        self.path.write_bytes(bytes(8))

    def shift(self, seconds: int) -> None:
        """Set the clock that far from the true time."""
        with self.path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            shared[:] = struct.pack("=q", seconds)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(tmp_path)
    monkeypatch.setenv("LD_PRELOAD", str(made.library))
    monkeypatch.setenv("CLOCK_SHIFT_FILE", str(made.path))
    return made
