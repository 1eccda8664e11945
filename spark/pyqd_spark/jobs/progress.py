"""What a job tells while it runs: one line that is written over on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

TERMINAL_INTERVAL_S = 0.3
PLAIN_INTERVAL_S = 10.0


class Progress:
    """Where progress is shown. quiet: nowhere. stream: standard error unless given."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.quiet = quiet
        self.on_terminal = self.stream.isatty()

    def say(self, text: str) -> None:
        """Show a line of its own."""
        if not self.quiet:
            print(text, file=self.stream, flush=True)

    @contextlib.contextmanager
    def following(self, what: str, parts: int, rows: int, tally: Callable[[], tuple[int, int]]) -> Iterator[None]:
        """Show how far something is while it runs. tally: returns how many parts and rows are done."""
        if self.quiet or parts == 0:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._follow, args=(what, parts, rows, tally, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _follow(
        self, what: str, parts: int, rows: int, tally: Callable[[], tuple[int, int]], over: threading.Event
    ) -> None:
        started_s = time.monotonic()
        interval_s = TERMINAL_INTERVAL_S if self.on_terminal else PLAIN_INTERVAL_S
        before = tally()[1]
        ended = False
        while not ended:
            ended = over.wait(interval_s)
            done_parts, done_rows = tally()
            elapsed_s = time.monotonic() - started_s
            self._show(status(what, parts, rows, done_parts, done_rows, (done_rows - before) / max(elapsed_s, 1e-3)))
        if self.on_terminal:
            print(file=self.stream, flush=True)

    def _show(self, text: str) -> None:
        if self.on_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:width]:<{width}}", end="", file=self.stream, flush=True)
        else:
            print(text, file=self.stream, flush=True)


def status(what: str, parts: int, rows: int, done_parts: int, done_rows: int, rate: float) -> str:
    """Return the line that says how far something is. rate: rows per second."""
    percent = 100 if rows == 0 else min(100, 100 * done_rows // rows)
    return f"{what}: {percent}%, {done_rows:,} of {rows:,} rows, {done_parts} of {parts} ranges, {rate:,.0f} rows/s"
