from typing import final

@final
class DueHeap:
    def __init__(self) -> None: ...
    @property
    def count(self) -> int: ...
