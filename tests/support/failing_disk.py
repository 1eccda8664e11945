"""Disk with an unreadable part: ext4 on a loop device with a truncated backing file. Needs root."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

BLOCK_BYTES = 4096
# A segment at its smallest.
LAST_BYTES = 64 << 10
TOOLS = ("losetup", "mkfs.ext4", "mount", "umount", "filefrag", "blockdev")


def run(*words: str) -> str:
    """Run a command and return its output. Raises: CalledProcessError, FileNotFoundError."""
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


class FailingDisk:
    """A mounted file system. image: its backing file, path: the mount point. Both are made."""

    def __init__(self, image: Path, path: Path, size_bytes: int) -> None:
        self.image = image
        self.path = path
        image.touch()
        os.truncate(image, size_bytes)
        self.device = run("losetup", "--find", "--show", str(image)).strip()
        path.mkdir()
        run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-b", str(BLOCK_BYTES), self.device)
        self.mount()
        self.last = self.keep_the_end()

    def mount(self) -> None:
        run("mount", self.device, str(self.path))

    def unmount(self) -> None:
        run("umount", str(self.path))
        run("blockdev", "--flushbufs", self.device)

    def keep_the_end(self) -> Path:
        """Return a file on the last free blocks. No free block lies behind it, so nothing is written there later.

        A write beyond the end of the backing file would make it grow again, and the removed part would read as zeros.
        """
        # ext4 reserves some blocks for itself, at unknown places.
        Path("/sys/fs/ext4", Path(self.device).name, "reserved_clusters").write_text("0")
        ballast = self.path / "ballast"
        ballast.mkdir()
        whole, small = self.slice_queue_of(ballast, LAST_BYTES), self.slice_queue_of(ballast, BLOCK_BYTES)
        place_of = {piece: self.block_of(piece, 0) for piece in whole + small}
        last = max(whole, key=lambda piece: place_of[piece])
        for piece, place in place_of.items():
            if place < place_of[last]:
                piece.unlink()
        return last

    def move_to_the_end(self, file: Path) -> None:
        """Have a file of LAST_BYTES lie on the last blocks."""
        with self.last.open("r+b") as target:
            assert target.write(file.read_bytes()) == LAST_BYTES
            os.fsync(target.fileno())
        self.last.replace(file)

    def slice_queue_of(self, directory: Path, size_bytes: int) -> list[Path]:
        """Fill the disk with files of a size and return them."""
        pieces: list[Path] = []
        with contextlib.suppress(OSError):
            while True:
                piece = directory / f"{size_bytes}.{len(pieces)}"
                with piece.open("wb") as target:
                    target.write(bytes(size_bytes))
                    os.fsync(target.fileno())
                pieces.append(piece)
        piece.unlink()
        return pieces

    def block_of(self, file: Path, page: int) -> int:
        """Return the block of the disk that holds a page of a file."""
        for line in run("filefrag", "-v", str(file)).splitlines():
            found = re.match(r"\s*\d+:\s*(\d+)\.\.\s*(\d+):\s*(\d+)\.\.", line)
            if found and int(found[1]) <= page <= int(found[2]):
                return int(found[3]) + page - int(found[1])
        raise AssertionError(f"page {page} of {file} has no block")

    def fail_from(self, block: int) -> None:
        """Have every read of that block and of those behind it fail, with nothing of them in memory."""
        self.unmount()
        os.truncate(self.image, block * BLOCK_BYTES)
        self.mount()

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            run("umount", "--lazy", str(self.path))
        with contextlib.suppress(subprocess.CalledProcessError):
            run("losetup", "--detach", self.device)


@contextlib.contextmanager
def failing_disk_or_skipped(directory: Path, size_bytes: int) -> Iterator[FailingDisk]:
    """Create a disk in a directory for the block of the context. Skip the test if this user or machine cannot."""
    try:
        disk = FailingDisk(directory / "image", directory / "disk", size_bytes)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a disk of its own takes root, loop devices and {', '.join(TOOLS)} - {error}")
    try:
        yield disk
    finally:
        disk.close()
