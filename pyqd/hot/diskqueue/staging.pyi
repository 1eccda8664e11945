from typing import final

@final
class Staging:
    @property
    def busy(self) -> bool: ...
