from typing import final

from pyqd.hot.broker.channel import ChannelCore
from pyqd.hot.diskqueue.logreader import LogReader

AT_UNKNOWN: int
AT_FINISHED: int
AT_HELD: int
AT_QUEUED: int
AT_RETURNED: int
AT_DEFERRED: int
AT_IN_FLIGHT: int
AT_DEAD_LETTER: int
AT_NOTED: int

@final
class MessageLookup:
    def __init__(
        self,
        channel: ChannelCore,
        guid: int,
        *,
        notes_per_step: int = ...,
        entries_per_step: int = ...,
    ) -> None: ...
    @property
    def channel(self) -> ChannelCore: ...
    @property
    def guid(self) -> int: ...
    @property
    def place(self) -> int: ...
    def step(self, reader: LogReader) -> bool: ...
    def due_ns(self) -> int: ...
    def make_room(self, cancels: bool) -> bool: ...
    def cancel(self) -> None: ...
    def reschedule(self, due_ns: int, reader: LogReader, at_once: bool = False) -> None: ...
