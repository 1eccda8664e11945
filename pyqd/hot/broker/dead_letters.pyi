from typing import Any, final

@final
class DeadLetterPolicy:
    durable: bool
    @property
    def attempts_max(self) -> int: ...
    @property
    def target(self) -> Any: ...
