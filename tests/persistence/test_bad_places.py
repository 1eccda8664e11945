"""Data paths that cannot be used: read-only, without permission, on a file system that cannot reserve blocks."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import REPOSITORY

pytestmark = pytest.mark.slow

DETACH = 2
READ_ONLY = 1
REMOUNT = 32
EXIT_WAIT_S = 30

_libc = ctypes.CDLL(None, use_errno=True)


def mount(kind: str, path: Path, flags: int = 0) -> None:
    """Mount a file system in memory; skip the test if this user may not."""
    name = kind.encode()
    if _libc.mount(name, os.fsencode(path), name, ctypes.c_ulong(flags), b"") != 0:
        pytest.skip(f"mounting takes root here - {os.strerror(ctypes.get_errno())}")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "place"
    path.mkdir()
    yield path
    _libc.umount2(os.fsencode(path), DETACH)


def start_on(path: Path, *command: str) -> str:
    """Start the daemon and wait for its end. Returns: its last line."""
    flags = [f"-data-path={path}", "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "pyqd.apps.daemon", *flags],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(REPOSITORY)])},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=EXIT_WAIT_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_a_data_path_without_permission_to_write_is_refused(tmp_path: Path) -> None:
    command: tuple[str, ...] = ()
    if os.geteuid() == 0:
        # Without the capability to override permissions, root is held to them like any user.
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("taking a capability from root needs setpriv")
        command = (setpriv, "--bounding-set=-dac_override")
    path = tmp_path / "data"
    path.mkdir(mode=0o555)
    said = start_on(path, *command)
    assert f"data path {path} cannot be read and written by this process" in said
    assert os.listdir(path) == []


def test_a_read_only_file_system_is_refused(place: Path) -> None:
    mount("tmpfs", place)
    mount("tmpfs", place, READ_ONLY | REMOUNT)
    said = start_on(place)
    assert f"data path {place} is on a file system that is mounted read-only; --data-path names another" in said


def test_a_file_system_that_cannot_reserve_blocks_is_refused(place: Path) -> None:
    mount("ramfs", place)
    said = start_on(place)
    assert f"failed to reserve {place}/reserving - Operation not supported" in said
    assert "the file system cannot reserve blocks: fallocate(2); use another data-path" in said
    assert os.listdir(place) == ["topics"]
