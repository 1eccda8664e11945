from collections.abc import Callable
from typing import Any, final

from pyqd.diskqueue.space_limit import SpaceLimit
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.notefiles import NoteFiles, SlotFile

@final
class DueFile(SlotFile): ...

@final
class Dues:
    def __init__(
        self,
        files: Any,
        directory: str | None,
        limit: SpaceLimit,
        prepare: Callable[[NoteFiles, str, int], object] | None = None,
    ) -> None: ...
    @property
    def store(self) -> NoteFiles: ...
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def ordinal_end(self) -> int: ...
    def add(self, seq: int, due_ns: int, place: int = 0) -> int: ...
    def reserve_files(self, count: int) -> int: ...
    def take_back(self, end: int) -> int: ...
    def trim(self, ordinal: int) -> int: ...
    def lower_bound(self, ordinal: int) -> int: ...
    def abandon(self) -> int: ...
    def rows(self) -> list[tuple[int, int, int, int]]: ...
    def check(self) -> None: ...

@final
class FoundDues:
    def __init__(
        self, dues: Dues, log: Log, due_below: int, synced_below: int, power_failed: bool, found: bool
    ) -> None: ...

def open_dues(
    files: Any,
    directory: str | None,
    limit: SpaceLimit,
    log: Log,
    *,
    due_below: int,
    synced_below: int,
    power_failed: bool,
    found: bool,
    prepare: Callable[[NoteFiles, str, int], object] | None = None,
) -> Dues: ...
