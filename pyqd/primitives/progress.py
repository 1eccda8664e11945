"""Progress of a tool, on standard error: a bar by tqdm on a terminal, plain lines or nothing elsewhere."""

import contextlib
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

BAR: Final = "{desc} {percentage:3.0f}% |{bar}| {n_fmt} of {total_fmt}{unit}, {elapsed} gone, {remaining} left{postfix}"
# Used if the total is unknown.
COUNT: Final = "{desc} {n_fmt}{unit}, {elapsed} gone, {rate_noinv_fmt}{postfix}"


class Progress:
    """Progress of one job. A context manager, which removes the bar at the end.

    total: None if it is unknown. unit: name of the counted things, in the plural. quiet: show nothing at all. line_s:
    seconds between two lines if the stream is no terminal; None for no lines. initial: number of things that were done
    before and do not count for the rate.
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
        self._bar: tqdm[Any] | None = None
        if not quiet and self.stream.isatty():
            self._bar = bar(what, total, unit, self.stream, initial)
        self._line_s = None if quiet or self._bar is not None else line_s
        self._started_s = self._shown_s = time.monotonic()

    @property
    def on_terminal(self) -> bool:
        """Return whether there is a bar."""
        return self._bar is not None

    def describe(self, what: str) -> None:
        """Set the name of the current step."""
        self._what = what
        if self._bar is not None:
            self._bar.set_description_str(what)

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count more things as done. note: shown behind the figures."""
        self.move_to(self.done + count, note)

    def move_to(self, done: int, note: str = "") -> None:
        """Set the number of finished things. note: shown behind the figures."""
        step, self.done, self._note = done - self.done, done, note
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(step)
        elif self._line_s is not None and time.monotonic() - self._shown_s >= self._line_s:
            self._shown_s = time.monotonic()
            self.say(self.line())

    def line(self) -> str:
        """Return the progress as a line of text."""
        total = "" if self._total is None else f" of {self._total:,}"
        percent = "" if not self._total else f"{min(100, 100 * self.done // self._total)}%, "
        rate = (self.done - self._initial) / max(time.monotonic() - self._started_s, 1e-3)
        head = f"{self._what}: " if self._what else ""
        note = f", {self._note}" if self._note else ""
        return f"{head}{percent}{self.done:,}{total} {self._unit}, {rate:,.0f} {self._unit} per second{note}"

    def say(self, text: str, stream: TextIO | None = None) -> None:
        """Print a line without leaving parts of the bar in it. stream: by default the stream of the progress."""
        if self.quiet:
            return
        target = self.stream if stream is None else stream
        with contextlib.nullcontext() if self._bar is None else self._bar.external_write_mode(file=target):
            print(text, file=target, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def bar(what: str, total: int | None, unit: str, stream: TextIO, initial: int) -> "tqdm[Any] | None":
    """Return a bar; None if tqdm is not installed, as in a Spark program that ships only the zip."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return None
    # tqdm's monitor thread refreshes bars; a process forked beside it would inherit its locks.
    tqdm.monitor_interval = 0
    # smoothing=0: the mean over all steps predicts the rest better if steps are of different kinds.
    return tqdm(
        desc=what,
        total=total,
        unit=f" {unit}",
        file=stream,
        initial=initial,
        bar_format=COUNT if total is None else BAR,
        smoothing=0,
        miniters=1,
        leave=False,
        dynamic_ncols=True,
    )
