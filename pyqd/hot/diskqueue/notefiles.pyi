from collections.abc import Callable, Iterator
from typing import Any, final

from pyqd.diskqueue.space_limit import SpaceLimit
from pyqd.hot.diskqueue.mapping import Mapping

AHEAD: str
MAKING: str
ahead_numbers: Iterator[int]

@final
class NoteFiles:
    limit: SpaceLimit
    def __init__(
        self,
        magic: int,
        content: str,
        files: Any,
        directory: str | None,
        limit: SpaceLimit,
        prepare: Callable[[NoteFiles, str, int], object] | None = None,
    ) -> None: ...
    @property
    def files(self) -> Any: ...
    @property
    def directory(self) -> str | None: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def name_changes(self) -> int: ...
    def path_of(self, number: int) -> str: ...
    def offer(self, mapping: Mapping | None) -> None: ...
    def changed_directories(self) -> list[str]: ...
    def note_names_synced(self, name_changes: int) -> None: ...
    def files_moved(self, directory: str) -> None: ...
