from typing import Any, final

from pyqd.hot.diskqueue.log import Log
from pyqd.hot.primitives.schedule import Scheduled, Scheduler

@final
class ReadableLog:
    def __init__(self, log: Log, scheduler: Scheduler, topic: Scheduled, end: int) -> None: ...
    @property
    def log(self) -> Log: ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def parking(self) -> set[Any]: ...
