"""A machine whose kernel has pages of 64 KiB, as some with arm64: its calls refuse ranges that begin within a page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.flags("-sync-timeout=50ms")]

# Mappings begin with a large page. The calls that begin within one are refused, and named in a file.
LARGE_PAGES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 65536 };

long sysconf(int name)
{
    static long (*kernels)(int);
    if (!kernels)
        kernels = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_PAGESIZE ? PAGE : kernels(name);
}

int getpagesize(void) { return PAGE; }

static int refused(const char *name, uintptr_t at)
{
    if (at % PAGE == 0)
        return 0;
    int fd = open(getenv("REFUSED_FILE"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (write(fd, name, strlen(name)) < 0)
        abort();
    close(fd);
    errno = EINVAL;
    return 1;
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (refused("mmap ", offset) || (flags & MAP_FIXED && refused("mmap ", (uintptr_t)at)))
        return MAP_FAILED;
    if (!(flags & MAP_FIXED)) {
        /* What is reserved and not used stays. */
        uintptr_t room = syscall(
            SYS_mmap, NULL, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
        if ((void *)room == MAP_FAILED)
            return MAP_FAILED;
        at = (void *)((room + PAGE - 1) / PAGE * PAGE);
    }
    return (void *)syscall(SYS_mmap, at, size, protection, flags | MAP_FIXED, fd, offset);
}

#define CHECKED(name, last) \\
    int name(void *at, size_t size, last argument) \\
    { \\
        return refused(#name " ", (uintptr_t)at) ? -1 : syscall(SYS_##name, at, size, argument); \\
    }
CHECKED(madvise, int)
CHECKED(msync, int)
CHECKED(mprotect, int)
CHECKED(mincore, unsigned char *)
"""


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that names the refused calls of the daemons started by the test."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("pages of another size take a C compiler")
    source, library, named = tmp_path / "pages.c", tmp_path / "pages.so", tmp_path / "refused"
    source.write_text(LARGE_PAGES)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True, timeout=60)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("REFUSED_FILE", str(named))
    return named


@pytest.fixture
def daemon(refused: Path, daemon: Daemon) -> Daemon:
    return daemon


def test_all_calls_about_memory_begin_with_a_page_of_the_kernel(refused: Path, daemon: Daemon) -> None:
    with Client(daemon.tcp_address) as client:
        client.sub("orders", "c", rdy_count=0)
        for _ in range(20):
            client.mpub("orders", [b"%d" % number * 50 for number in range(2000)])
            client.dpub("orders", 60_000, b"later")
        client.rdy(500)
        for message in client.read_messages(500):
            client.fin(message)
        wait_until(lambda: daemon.http("GET", "/durability").json()["unsynced_messages"] == 0, "a sync")
    daemon.kill_and_start()
    with Client(daemon.tcp_address) as client:
        client.sub("orders", "c", rdy_count=1)
        client.fin(client.read_message())
    daemon.stop()
    assert not refused.exists(), refused.read_text()
