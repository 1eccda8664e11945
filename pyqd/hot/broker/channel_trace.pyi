from typing import final

from pyqd.hot.broker.trace import TracePlace

@final
class ChannelTrace:
    def __init__(self, place: TracePlace) -> None: ...
    @property
    def place(self) -> TracePlace: ...
    def moved(self, guid: int, dropped_count: int, stored_count: int) -> None: ...
