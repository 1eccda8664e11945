"""Retries of one operation while it fails, with log lines that are not repeated."""

from __future__ import annotations

import logging
import time
from typing import Final

from pyqd.primitives.backoff import Backoff

FIRST_S: Final = 0.5
LONGEST_S: Final = 30.0
# An unchanged failure is logged again after so long.
REPEAT_S: Final = 60.0
# Shippers that lost their database at the same time do not come back at the same time.
JITTER: Final = (0.75, 1.25)

logger = logging.getLogger("pyqd.trace")


class Outage:
    """Failures of one operation since its last success."""

    def __init__(self) -> None:
        # Failures since the last success, and all.
        self.count = self.total = 0
        self._delays = Backoff(FIRST_S, LONGEST_S, jitter=JITTER)
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
        self.count += 1
        self.total += 1
        return self._delays.next_s()

    def recovered(self, text: str) -> None:
        """Note a success after failures."""
        if self.count:
            logger.info("%s, after %.1f s", text, time.monotonic() - self._since_s)
            self.count, self._text = 0, ""
            self._delays.reset()
