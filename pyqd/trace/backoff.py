"""Growing delays between retries, and log lines that are not repeated."""

from __future__ import annotations

import logging
import random
import time
from typing import Final

FIRST_S: Final = 0.5
LONGEST_S: Final = 30.0
# An unchanged failure is logged again after so long.
REPEAT_S: Final = 60.0

logger = logging.getLogger("pyqd.trace")


class Backoff:
    """Retries of one operation."""

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        # Failures since the last success, and all.
        self.count = self.total = 0
        self._first_s = first_s
        self._longest_s = longest_s
        self._text = ""
        self._logged_s = 0.0
        self._since_s = 0.0

    def note(self, text: str) -> None:
        """Log a failure, unless it is that of the last attempt."""
        now_s = time.monotonic()
        if not self.count:
            self._since_s = now_s
        if text != self._text or now_s - self._logged_s > REPEAT_S:
            logger.warning("%s; trying again", text)
            self._text, self._logged_s = text, now_s

    def next_s(self) -> float:
        """Return the delay before the next attempt."""
        delay_s = min(self._longest_s, self._first_s * float(1 << min(self.count, 16)))
        self.count += 1
        self.total += 1
        # Shippers that lost their database at the same time do not come back at the same time.
        return delay_s * random.uniform(0.75, 1.25)

    def recovered(self, text: str) -> None:
        """Note a success after failures."""
        if self.count:
            logger.info("%s, after %.1f s", text, time.monotonic() - self._since_s)
            self.count, self._text = 0, ""
