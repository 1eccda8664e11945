"""The lock on a data directory that another process hands over."""

import os
from pathlib import Path

import pytest

from pyqd.diskqueue.lock import DirectoryLock
from pyqd.primitives.errors import StartupError


def test_a_lock_that_was_handed_over_is_used(tmp_path: Path) -> None:
    first = DirectoryLock(str(tmp_path))
    second = DirectoryLock(str(tmp_path), os.dup(first.fd))
    first.release()
    with pytest.raises(StartupError, match="failed to lock data-path"):
        DirectoryLock(str(tmp_path))
    second.release()
    DirectoryLock(str(tmp_path)).release()


def test_a_lock_on_another_directory_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "former").mkdir()
    (tmp_path / "new").mkdir()
    former, other = DirectoryLock(str(tmp_path / "former")), DirectoryLock(str(tmp_path / "new"))
    with pytest.raises(StartupError, match="failed to lock data-path"):
        DirectoryLock(str(tmp_path / "new"), os.dup(former.fd))
    other.release()
    new = DirectoryLock(str(tmp_path / "new"), os.dup(former.fd))
    with pytest.raises(StartupError, match="failed to lock data-path"):
        DirectoryLock(str(tmp_path / "new"))
    new.release()
    former.release()
