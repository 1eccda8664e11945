from typing import final

from pyqd.hot.broker.readable_log import ReadableLog
from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.diskqueue.log import Position
from pyqd.hot.diskqueue.segment import Segment

@final
class LogCursor:
    reads: bool
    def __init__(self, readable: ReadableLog, ledger: Ledger, position: Position) -> None: ...
    def note_read(self, segment: Segment, start: int, end: int) -> None: ...
