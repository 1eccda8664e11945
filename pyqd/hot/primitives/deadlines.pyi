from typing import final

@final
class DeadlineQueue:
    def __init__(self) -> None: ...
