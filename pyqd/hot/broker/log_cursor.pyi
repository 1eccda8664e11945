from typing import final

from pyqd.hot.broker.readable_log import ReadableLog
from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.diskqueue.log import Position

@final
class LogCursor:
    def __init__(self, readable: ReadableLog, ledger: Ledger, position: Position) -> None: ...
