"""Progress of a tool, on standard error: a bar by rich on a terminal, plain lines or nothing elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

if TYPE_CHECKING:
    import rich.progress

Self = TypeVar("Self", bound="Progress")

# A refresh costs some milliseconds of CPU time.
REFRESH_S: Final = 0.25


class Progress:
    """Progress of one job. A context manager, which removes the bar at the end.

    total: None if it is unknown. unit: name of the counted things, in the plural; without one the bar shows no numbers.
    quiet: show nothing at all. line_s: seconds between two lines if the stream is no terminal; None for no lines.
    initial: number of things that were done before and do not count for the rate.
    """

    def __init__(
        self,
        what: str = "",
        total: int | None = None,
        unit: str = "",
        *,
        stream: TextIO | None = None,
        quiet: bool = False,
        line_s: float | None = None,
        initial: int = 0,
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.quiet = quiet
        self.done = initial
        self._what, self._note = what, ""
        self._total, self._unit, self._initial = total, unit, initial
        is_terminal = self.stream is not None and self.stream.isatty()
        self._bar = new_bar(self.stream) if is_terminal and not quiet else None
        self._line_s = None if quiet or self._bar is not None else line_s
        self._started_s = self._shown_s = time.monotonic()
        if self._bar is not None:
            self._task = self._bar.add_task(what, total=total, completed=initial, count=self._count(), note="")
            self._bar.start()

    @property
    def on_terminal(self) -> bool:
        return self._bar is not None

    def describe(self, what: str) -> None:
        self._what = what
        self._refresh()

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count more things as done. note: shown behind the figures."""
        self.move_to(self.done + count, note)

    def move_to(self, done: int, note: str = "") -> None:
        """Set the number of finished things. note: shown behind the figures."""
        self.done, self._note = done, note
        since_s = time.monotonic() - self._shown_s
        if self._bar is not None and (since_s >= REFRESH_S or done == self._total):
            self._refresh()
        elif self._line_s is not None and since_s >= self._line_s:
            self._shown_s = time.monotonic()
            self.say(self.line())

    def _refresh(self) -> None:
        if self._bar is not None:
            self._shown_s = time.monotonic()
            self._bar.update(
                self._task, completed=self.done, description=self._what, count=self._count(), note=self._note
            )
            self._bar.refresh()

    def _count(self) -> str:
        total = "" if self._total is None else f" of {self._total:,}"
        return f"{self.done:,}{total} {self._unit}" if self._unit else ""

    def line(self) -> str:
        percent = "" if not self._total else f"{min(100, 100 * self.done // self._total)}%, "
        rate = (self.done - self._initial) / max(time.monotonic() - self._started_s, 1e-3)
        head = f"{self._what}: " if self._what else ""
        note = f", {self._note}" if self._note else ""
        return f"{head}{percent}{self._count()}, {rate:,.0f} {self._unit} per second{note}"

    def say(self, text: str, stream: TextIO | None = None) -> None:
        """Print a line without leaving parts of the bar in it. stream: by default the stream of the progress."""
        if self.quiet:
            return
        self.close()
        print(text, file=self.stream if stream is None else stream, flush=True)
        if self._bar is not None:
            self._bar.start()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def new_bar(stream: TextIO) -> rich.progress.Progress | None:
    """Return a bar; None if rich is not installed, as in a Spark program that ships only the zip."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    except ModuleNotFoundError:
        return None
    # Without a thread that refreshes the bar: a process forked while it runs would inherit its locks.
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}% {task.fields[count]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left {task.fields[note]}", markup=False),
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
    )
