from typing import final

from pyqd.hot.diskqueue.dues import Dues
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.primitives.schedule import Scheduled, Scheduler

@final
class ReadableLog:
    def __init__(self, log: Log, dues: Dues, scheduler: Scheduler, topic: Scheduled, end: int) -> None: ...
    @property
    def end(self) -> int: ...
    @property
    def log(self) -> Log: ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def dues(self) -> Dues: ...
