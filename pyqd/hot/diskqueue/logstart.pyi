from typing import Any, final

from pyqd.diskqueue.damage import DamageReport
from pyqd.hot.diskqueue.segment import Segment

SUFFIX: str
HALF_MADE: str

def segment_place(segment: Segment) -> tuple[int, int]: ...

@final
class FoundSegments:
    def __init__(
        self,
        files: Any,
        directory: str,
        damage: DamageReport,
        power_failed: bool,
        known: tuple[int, int] = (0, 0),
    ) -> None: ...
