"""Files of a broker that lists and maps those of a start in a thread, ahead of the load."""

import contextlib
from collections.abc import Callable, Iterator

from pyqd.diskqueue.files import Files, no_preparation
from pyqd.hot.diskqueue import arena
from pyqd.hot.diskqueue.loadahead import LoadAhead
from pyqd.hot.diskqueue.mapping import Mapping


class FilesAhead(Files):
    """Files whose `load_ahead` opens the files of the next topics while one topic is loaded.

    A call for a path that the thread has not found, because it failed there or did not come to it, is the one of
    `Files`. So errors are reported, and missing blocks reserved, as without the thread.
    """

    def __init__(self) -> None:
        self._ahead: LoadAhead | None = None

    @contextlib.contextmanager
    def load_ahead(self, directory: str, entries: list[str]) -> Iterator[Callable[[], object]]:
        """Like `Files.load_ahead`, with a thread if there is an arena, in which a start needs few mappings."""
        assert self._ahead is None, "one load at a time"
        if not arena.is_reserved():
            yield no_preparation
            return
        try:
            ahead = LoadAhead(directory, entries)
        except OSError:
            # No thread or no descriptor: the load goes on without.
            yield no_preparation
            return
        self._ahead = ahead
        try:
            yield ahead.begin_next
        finally:
            self._ahead = None
            ahead.close()

    def list_directory(self, path: str) -> list[str]:
        names = None if self._ahead is None else self._ahead.take_names(path)
        return super().list_directory(path) if names is None else names

    def open_mapped(self, path: str) -> Mapping:
        mapping = None if self._ahead is None else self._ahead.take_mapping(path)
        if mapping is None:
            return super().open_mapped(path)
        mapping.failed_syncs = int(self.distrusted)
        return mapping
