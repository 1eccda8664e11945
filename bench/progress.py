"""Progress of a session, on standard error."""

import sys
import time
from types import TracebackType
from typing import TextIO

from bench.setting import Result
from pyqd.primitives.progress import Progress as Shown


class Progress:
    """Progress over the runs of a session: a bar on a terminal, elsewhere a line per run. A context manager."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total = total
        self.started_s = time.monotonic()
        self.shown = Shown(total=total, unit="runs", stream=stream)

    def begin(self, workload: str, target: str) -> None:
        self.shown.describe(f"{workload} {target}")

    def end(self, result: Result) -> None:
        self.shown.advance()
        if not self.shown.on_terminal:
            state = f"FAILED: {result.problem}" if result.problem else "good"
            gone_s = time.monotonic() - self.started_s
            what = f"{result.workload} {result.target}"
            self.shown.say(f"run {self.shown.done} of {self.total}, {gone_s:.0f} s gone: {what}: {state}")

    def print(self, text: str) -> None:
        """Print text to standard output without leaving pieces of the bar in it."""
        self.shown.say(text, sys.stdout)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shown.close()
