from typing import final

@final
class SlotTable: ...

@final
class ReadyRing:
    run: int
