"""Progress of a load on standard error: a bar on a terminal, elsewhere a line per second."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from pyqd.tools.common import log

# A refresh costs some milliseconds of CPU time, which the generator should have.
BAR_INTERVAL_S: Final = 0.25
LINE_INTERVAL_S: Final = 1.0


class Progress:
    """Progress of one load. A context manager, which removes the bar at the end.

    what: the work, such as "publishing". messages, seconds: the goal, 0 if there is none. size: bytes of a message.
    """

    def __init__(self, what: str, messages: int, seconds: float, size: int, quiet: bool) -> None:
        self.interval_s = LINE_INTERVAL_S
        self._what, self._messages, self._seconds, self._size = what, messages, seconds, size
        self._quiet = quiet
        self._done, self._elapsed_s = 0, 0.0
        self._bar: Bar | None = None
        if not quiet and sys.stderr is not None and sys.stderr.isatty():
            self.interval_s = BAR_INTERVAL_S
            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
            self._task = self._bar.add_task(what, total=None if not (messages or seconds) else 1.0, note="")

    def show(self, done: int, elapsed_s: float, phase: str = "") -> None:
        """Show the number of messages so far. phase: replaces the name of the work."""
        since_s = elapsed_s - self._elapsed_s
        if self._quiet or since_s <= 0:
            return
        rate = max(0, done - self._done) / since_s
        self._done, self._elapsed_s = done, elapsed_s
        what = phase or self._what
        note = f"{done:,} messages, {rate:,.0f} messages/s, {rate * self._size / 1e6:,.1f} MB/s"
        if self._bar is not None:
            self._bar.update(self._task, description=what, completed=self._share(done, elapsed_s), note=note)
            self._bar.refresh()
        elif elapsed_s >= LINE_INTERVAL_S:
            log(f"{what}: {elapsed_s:.0f} s, {note}")

    def _share(self, done: int, elapsed_s: float) -> float:
        by_count = done / self._messages if self._messages else 0.0
        by_time = elapsed_s / self._seconds if self._seconds else 0.0
        return min(1.0, max(by_count, by_time))

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
