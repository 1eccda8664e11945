from typing import Any, final

@final
class DeadLetterPolicy:
    @property
    def attempts_max(self) -> int: ...
    @property
    def target(self) -> Any: ...
