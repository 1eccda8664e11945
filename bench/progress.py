"""How far a session is, on standard error."""

import sys
import time
from types import TracebackType
from typing import TextIO

from tqdm import tqdm

from bench.setting import Result

BAR = "{desc:<28.28} |{bar}| run {n_fmt} of {total_fmt}, {elapsed} gone, {remaining} left"


class Progress:
    """A bar on a terminal; elsewhere a line per run. A context manager."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.total = total
        self.done = 0
        self.started_s = time.monotonic()
        # The mean of all runs is the better guess: those just made are of one workload and say little of the rest.
        self.bar = tqdm(
            total=total, file=self.stream, bar_format=BAR, smoothing=0, leave=False, disable=not self.stream.isatty()
        )

    def begin(self, workload: str, target: str) -> None:
        self.bar.set_description_str(f"{workload} {target}")

    def end(self, result: Result) -> None:
        self.done += 1
        self.bar.update()
        if self.bar.disable:
            state = f"FAILED: {result.problem}" if result.problem else "good"
            gone_s = time.monotonic() - self.started_s
            text = f"run {self.done} of {self.total}, {gone_s:.0f} s gone: {result.workload} {result.target}: {state}"
            print(text, file=self.stream, flush=True)

    def print(self, text: str) -> None:
        """Print text to standard output without leaving pieces of the bar in it."""
        with tqdm.external_write_mode(file=sys.stdout):
            print(text, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()
