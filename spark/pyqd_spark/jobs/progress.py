"""Progress of a job: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from pyqd.primitives.progress import Progress as Shown

POLL_S = 0.3
LINE_S = 10.0


class JobProgress:
    """Progress of the steps of a job. quiet: show nothing. stream: standard error unless given."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.quiet = quiet

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=self.stream, flush=True)

    @contextlib.contextmanager
    def following(self, what: str, parts: int, rows: int, tally: Callable[[], tuple[int, int]]) -> Iterator[None]:
        """Show the progress of a step while it runs. tally: returns the numbers of finished parts and rows."""
        if self.quiet or parts == 0:
            yield
            return
        over = threading.Event()
        shown = Shown(what, rows, "rows", stream=self.stream, line_s=LINE_S, initial=tally()[1])

        def follow() -> None:
            ended = False
            while not ended:
                ended = over.wait(POLL_S)
                done_parts, done_rows = tally()
                shown.move_to(done_rows, f"{done_parts} of {parts} ranges")

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            shown.close()
            self.say(shown.line())
