"""Disk that forgets failed writes, as Linux does: a page that failed is taken for clean from then on."""

from pyqd.diskqueue.files import PAGE_BYTES, Files
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.primitives.errors import StorageError

Pages = set[tuple[int, int]]


def pages_of(mapping: Mapping, start_bytes: int, length_bytes: int) -> Pages:
    """Return the pages of a range."""
    return {(mapping.address, at) for at in range(start_bytes, start_bytes + length_bytes, PAGE_BYTES)}


class ForgetfulFiles(Files):
    """Files whose syncs fail on request; the next one succeeds, and writes only dirty pages.

    failing: ends of the paths whose next sync fails, one for each. file_system_fails: the next sync of the file system
    fails too. missing: pages that some sync has silently skipped though they are not on the disk.
    """

    def __init__(self) -> None:
        self.failing: list[str] = []
        self.file_system_fails = False
        self.file_system_count = 0
        self.missing: Pages = set()
        self._known: Pages = set()
        self._lost: Pages = set()

    def new_mapped(self, path: str | None, size_bytes: int, populate: bool) -> Mapping:
        mapping = super().new_mapped(path, size_bytes, populate)
        if path is not None:
            pages = pages_of(mapping, 0, size_bytes)
            self._lost -= pages
            self._known |= pages
        return mapping

    def sync(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        path = mapping.path
        if path is None:
            return
        pages = pages_of(mapping, start_bytes, length_bytes)
        for end in self.failing:
            if path.endswith(end):
                self.failing.remove(end)
                self._lost |= pages
                raise StorageError("sync", path, 5, "Input/output error")
        self.missing |= pages & self._lost

    def sync_file_system(self, path: str) -> bool:
        self.file_system_count += 1
        if self.file_system_fails:
            self.file_system_fails = False
            self._lost |= self._known
            raise StorageError("sync", path, 5, "Input/output error")
        self.missing |= self._lost
        return True

    def dirty_again(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        super().dirty_again(mapping, start_bytes, length_bytes)
        self._lost -= pages_of(mapping, start_bytes, length_bytes)
