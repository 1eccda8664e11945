from typing import final

from pyqd.hot.broker.consumer import Consumer

@final
class UnsyncedFins:
    def begin_sync(self) -> list[tuple[Consumer, int]]: ...
    def fail_sync(self, covered: list[tuple[Consumer, int]]) -> int: ...
