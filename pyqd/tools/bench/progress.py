"""Progress of a load on standard error: a bar on a terminal, elsewhere a line per second."""

from __future__ import annotations

from typing import Final

from pyqd.primitives.progress import REFRESH_S, Progress
from pyqd.tools.common import log

LINE_INTERVAL_S: Final = 1.0
# Parts of the goal, for loads that are limited by a time.
PARTS: Final = 1000


class LoadProgress(Progress):
    """Progress of one load.

    what: the work, such as "publishing". messages, seconds: the goal, 0 if there is none. size: bytes of a message.
    """

    def __init__(self, what: str, messages: int, seconds: float, size: int, quiet: bool) -> None:
        super().__init__(what, PARTS if messages or seconds else None, quiet=quiet)
        self.interval_s = REFRESH_S if self.on_terminal else LINE_INTERVAL_S
        self._work, self._messages, self._seconds, self._size = what, messages, seconds, size
        self._message_count, self._elapsed_s = 0, 0.0

    def show(self, done: int, elapsed_s: float, phase: str = "") -> None:
        """Show the number of messages so far. phase: replaces the name of the work."""
        since_s = elapsed_s - self._elapsed_s
        if self.quiet or since_s <= 0:
            return
        rate = max(0, done - self._message_count) / since_s
        self._message_count, self._elapsed_s = done, elapsed_s
        what = phase or self._work
        note = f"{done:,} messages, {rate:,.0f} messages/s, {rate * self._size / 1e6:,.1f} MB/s"
        if self.on_terminal:
            self.move_to(round(PARTS * self._share(done, elapsed_s)), note)
            self.describe(what)
        elif elapsed_s >= LINE_INTERVAL_S:
            log(f"{what}: {elapsed_s:.0f} s, {note}")

    def _share(self, done: int, elapsed_s: float) -> float:
        by_count = done / self._messages if self._messages else 0.0
        by_time = elapsed_s / self._seconds if self._seconds else 0.0
        return min(1.0, max(by_count, by_time))
