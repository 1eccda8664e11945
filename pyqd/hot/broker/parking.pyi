from typing import Any, final

from pyqd.hot.broker.log_cursor import LogCursor
from pyqd.hot.broker.parked_log import ParkedLog

@final
class Parking:
    durable: bool
    def __init__(self, cursor: LogCursor, files: Any) -> None: ...
    @property
    def parked(self) -> ParkedLog | None: ...
    def adopt(self, parked: ParkedLog) -> int: ...
