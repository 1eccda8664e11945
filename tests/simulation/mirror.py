"""Names of the simulated disk in the real file system, by which the broker's arena maps a file again.

The arena opens a file by its path in a signal handler. So there is a directory of links to the descriptors of the
simulated files. It has a descriptor of a number that each process uses, and the paths of the simulated disk begin
there: so no process, and no broker of a process, sees the files of another.
"""

import contextlib
import functools
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.disk import Inode

DESCRIPTOR = 900
ROOT = f"/proc/self/fd/{DESCRIPTOR}"


@functools.cache
def home(_process: int) -> tempfile.TemporaryDirectory[str]:
    """Return the directory of a process, with its descriptor."""
    made = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None, prefix="pyqd-simulation-")
    fd = os.open(made.name, os.O_RDONLY | os.O_DIRECTORY)
    os.dup2(fd, DESCRIPTOR, inheritable=False)
    os.close(fd)
    return made


class Mirror:
    """The names of one disk, as they are when its process starts and as that changes them."""

    def __init__(self, root: Any) -> None:
        directory = home(os.getpid()).name
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        self.add(root, ROOT)

    def add(self, directory: Any, path: str) -> None:
        """Add all that is in a directory of the disk."""
        for name, node in directory.entries.items():
            if hasattr(node, "fd"):
                self.link(node, f"{path}/{name}")
            else:
                os.mkdir(f"{path}/{name}")
                self.add(node, f"{path}/{name}")

    def link(self, inode: "Inode", path: str) -> None:
        """Give a file a name, replacing the former owner of the name."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.symlink(f"/proc/self/fd/{inode.fd}", path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory. Small files have no name here unless the process has found them."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(source, target)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with names of small files that the process had found and the disk has lost."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
