from typing import final

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.segment import Segment

@final
class Presence:
    reads: bool
    absent: Segment | None
    def __init__(self, files: Files) -> None: ...
    @property
    def absent_start(self) -> int: ...
    @property
    def absent_end(self) -> int: ...
    def note_read(self, segment: Segment, start: int, end: int) -> None: ...
