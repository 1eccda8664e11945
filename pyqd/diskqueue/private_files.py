"""Files of a data directory that is only read: all changes to them are made in memory, and no other process sees them.

The methods are those of `Files`. A broker over these files concludes from a directory the same as a start would, and
changes no byte in it. A segment is mapped privately: a page takes memory once something is stored to it. Other files
are small and are copied. A daemon may run on the directory meanwhile. A copy is of one point in time; a segment is not,
so `is_unchanged` tells whether the daemon has reused or removed it.

Memory: the changes of a start to the files, until `forget_changes`. Most are a few pages; after a power failure, all
that the journal holds.

Source: mmap(2), MAP_PRIVATE.
"""

import errno
import os
import sys
from collections.abc import Collection

from pyqd.diskqueue.files import PAGE_BYTES, Files, map_memory, opened, reporting
from pyqd.hot.diskqueue.logstart import SUFFIX
from pyqd.hot.diskqueue.mapping import Mapping, map_file
from pyqd.hot.diskqueue.segment import SEGMENT_HEADER_SIZE, segment_identity
from pyqd.primitives.errors import CorruptionError, StorageError, storage_error

# A small file that changes all the time is taken as the last of these reads finds it.
READS_MAX = 100


class PrivateFiles(Files):
    """Files that are read from the disk and changed in memory. problems: damage that logs have reported, as texts."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        # Present content of changed paths, and of mapped ones: memory, or another path on the disk; None: removed.
        self._contents: dict[str, Mapping | bytes | str | None] = {}
        self._made: set[str] = set()
        self._identities: dict[str, tuple[int, int]] = {}

    def forget_changes(self, directory: str) -> None:
        """Forget all changes in a directory, whose files are not in use any more."""
        for path in _within(self._contents, directory):
            del self._contents[path]
        for path in _within(self._identities, directory):
            del self._identities[path]
        self._made.difference_update(_within(self._made, directory))

    def is_unchanged(self, directory: str) -> bool:
        """Return whether the segments that were opened in a directory are still those of that time."""
        return all(self._identity_at(path) == self._identities[path] for path in _within(self._identities, directory))

    def note_damage(self, text: str) -> None:
        """List damage that a log has found."""
        self.problems.append(text)

    def _identity_at(self, path: str) -> tuple[int, int] | None:
        try:
            return segment_identity(super().read_range(path, 0, SEGMENT_HEADER_SIZE))
        except StorageError:
            return None

    def _content_at(self, path: str) -> Mapping | bytes | str | None:
        """Return the content of a path: memory, or the path on the disk where it is; None: it was removed."""
        above, rest = path, ""
        while above not in self._contents:
            above, name = os.path.split(above)
            if not name:
                return path
            rest = os.path.join(name, rest) if rest else name
        content = self._contents[above]
        return os.path.join(content, rest) if rest and isinstance(content, str) else content

    def _memory_at(self, path: str) -> memoryview:
        content = self._content_at(path)
        if content is None:
            raise storage_error("read", path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        assert not isinstance(content, str)
        return content.view() if isinstance(content, Mapping) else memoryview(content)

    def new_mapped(self, path: str | None, size_bytes: int, populate: bool) -> Mapping:  # noqa: ARG002
        """Return memory of zeros in place of a new file."""
        mapping = map_memory(size_bytes)
        if path is not None:
            mapping.moved(path)
            self._contents[path] = mapping
        return mapping

    def open_mapped(self, path: str) -> Mapping:
        """Map a file privately, or return the mapping that it has."""
        content = self._content_at(path)
        if isinstance(content, Mapping):
            return content
        mapping = self._map(content, path) if isinstance(content, str) else self._copy(self._memory_at(path), path)
        self._contents[path] = mapping
        return mapping

    def _map(self, source: str, path: str) -> Mapping:
        if not source.endswith(SUFFIX):
            try:
                return self._copy(self._settled(source), path)
            except StorageError as error:
                if error.errno != errno.EIO:
                    raise
        with reporting("read", path), opened("open", source, os.O_RDONLY) as fd:
            size_bytes = os.fstat(fd).st_size
            if size_bytes == 0:
                raise CorruptionError(path, 0, "the file is empty")
            self._identities[source] = segment_identity(os.pread(fd, SEGMENT_HEADER_SIZE, 0))
            return map_file(fd, size_bytes, path, private=True)

    def _settled(self, path: str) -> bytes:
        """Return the content of a small file that another process may be changing, as of one point in time."""
        content = super().read(path)
        for _ in range(READS_MAX):
            before, content = content, super().read(path)
            if before == content:
                break
        return content

    def _copy(self, content: bytes | memoryview, path: str) -> Mapping:
        if not content:
            raise CorruptionError(path, 0, "the file is empty")
        mapping = self.new_mapped(path, len(content), False)
        mapping.view()[:] = content
        return mapping

    def exists(self, path: str) -> bool:
        content = self._content_at(path)
        return path in self._made or (os.path.lexists(content) if isinstance(content, str) else content is not None)

    def is_directory(self, path: str) -> bool:
        content = self._content_at(path)
        return path in self._made or (isinstance(content, str) and os.path.isdir(content))

    def list_directory(self, path: str) -> list[str]:
        content = self._content_at(path)
        names: set[str] = set()
        if isinstance(content, str) and (path not in self._made or os.path.lexists(content)):
            names.update(super().list_directory(content))
        names |= {os.path.basename(made) for made in self._made if os.path.dirname(made) == path}
        for known, present in self._contents.items():
            if os.path.dirname(known) == path:
                (names.discard if present is None else names.add)(os.path.basename(known))
        return list(names)

    def read(self, path: str) -> bytes:
        content = self._content_at(path)
        return super().read(content) if isinstance(content, str) else bytes(self._memory_at(path))

    def size_of(self, path: str) -> int:
        content = self._content_at(path)
        return super().size_of(content) if isinstance(content, str) else len(self._memory_at(path))

    def read_range(self, path: str, start_bytes: int, length_bytes: int) -> bytes:
        content = self._content_at(path)
        if isinstance(content, str):
            return super().read_range(content, start_bytes, length_bytes)
        return bytes(self._memory_at(path)[start_bytes : start_bytes + length_bytes])

    def overwrite(self, path: str, start_bytes: int, content: bytes) -> None:
        """Store bytes into a file that has them. Raises: StorageError if a page of them cannot be read."""
        mapping = self.open_mapped(path)
        page = start_bytes // PAGE_BYTES * PAGE_BYTES
        self.populate(mapping, page, start_bytes + len(content) - page)
        mapping.view()[start_bytes : start_bytes + len(content)] = content

    def write(self, path: str, content: bytes) -> None:
        self._contents[path] = content

    write_in_place = write

    def rename(self, source: str, target: str) -> None:
        content = self._content_at(source)
        self.remove_tree(target)
        for path in _within(self._contents, source):
            self._contents[target + path.removeprefix(source)] = self._contents.pop(path)
        for path in _within(self._made, source):
            self._made.add(target + path.removeprefix(source))
        self._contents[target] = content
        self.remove_tree(source)

    def remove(self, path: str) -> None:
        self._contents[path] = None

    def remove_tree(self, path: str) -> None:
        self._made.difference_update(_within(self._made, path))
        for known in _within(self._contents, path):
            del self._contents[known]
        self._contents[path] = None

    def make_directory(self, path: str) -> None:
        if not self.exists(path):
            self._made.add(path)

    def check_reserving(self, directory: str) -> None:
        """Nothing is reserved on the disk."""

    def free_bytes(self, path: str) -> int:  # noqa: ARG002
        """Return a number that is always enough, as nothing takes space."""
        return sys.maxsize

    def open_for_writing(self, path: str) -> int:
        """Refuse it: bytes are stored through the mapping then. Raises: StorageError."""
        raise storage_error("open", path, OSError(errno.EROFS, os.strerror(errno.EROFS)))

    def sync(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        """Nothing is written."""

    write_out = dirty_again = sync

    def sync_directory(self, path: str) -> None:
        """Nothing is written."""


def _within(paths: Collection[str], directory: str) -> list[str]:
    """Return those of some paths that are a directory or lie in it."""
    return [path for path in paths if path == directory or path.startswith(directory + os.sep)]
