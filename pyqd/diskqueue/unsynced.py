"""Names that no sync has covered yet: a file without a durable name does not exist after a power failure.

A change of a directory is numbered. A sync covers the changes that it gathered. A directory that changed again after
the gathering stays, as the sync may have read it before. So several syncs may run at a time and end in any order.
"""

from typing import NamedTuple

from pyqd.hot.diskqueue.ledger import Ledger


class Change(NamedTuple):
    """The last change of a directory's entries, and the ledgers among them that are new."""

    number: int
    ledgers: tuple[Ledger, ...]


Gathered = dict[str, Change]


class Names:
    """Directories of one topic with entries that may not be on stable storage."""

    def __init__(self) -> None:
        self.change_count = 0
        self._change_of: Gathered = {}

    def changed(self, directory: str, *ledgers: Ledger) -> None:
        """Record that the entries of a directory have changed. ledgers: new ones in it, which no sync has covered."""
        self.change_count += 1
        before = self._change_of.get(directory)
        waiting = () if before is None else before.ledgers
        self._change_of[directory] = Change(self.change_count, tuple(dict.fromkeys(waiting + ledgers)))

    def forget(self, directory: str) -> None:
        """Drop a directory that is gone."""
        self._change_of.pop(directory, None)

    def forget_all(self) -> None:
        """Drop all directories: the topic is deleted."""
        self._change_of.clear()

    def gather(self) -> Gathered:
        """Return the changes that a sync about to begin covers."""
        return dict(self._change_of)

    def note_synced(self, gathered: Gathered) -> None:
        """Record that the gathered names are on stable storage."""
        for directory, change in gathered.items():
            if self._change_of.get(directory) == change:
                del self._change_of[directory]

    def __bool__(self) -> bool:
        return bool(self._change_of)
