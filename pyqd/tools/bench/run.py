"""Course of one load: warm-up, measurement, end. The load has a thread of its own, so that nothing else delays it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from pyqd.hot.tools.loadgen import Load, LoadError
from pyqd.primitives.progress import REFRESH_S, Progress
from pyqd.tools.bench.outcome import LoadCounts
from pyqd.tools.bench.process import CpuTime, read_cpu_time
from pyqd.tools.cluster import in_thread
from pyqd.tools.common import log, stop_on

LONGEST_S: Final = 1e9
LINE_INTERVAL_S: Final = 1.0
# Parts of the goal of a load's progress, for loads that are limited by a time.
PARTS: Final = 1000


@dataclass(frozen=True)
class Course:
    """Times of a load. runfor_s: 0 for no limit. drain_s: limit of the wait for what is missing at the end."""

    warm_up_s: float
    runfor_s: float
    drain_s: float
    spins: bool = False

    @property
    def stall_s(self) -> float:
        """Limit of the time without a message, for a load that would last until all messages are there; 0 for none."""
        return 0.0 if self.runfor_s else self.drain_s


@dataclass(frozen=True)
class Sample:
    """Reading at one end of the measurement. cpu: of the broker; None if it is not on this machine."""

    counts: LoadCounts = field(default_factory=LoadCounts)
    cpu: CpuTime | None = None


class LoadRun:
    """One load on its course. process: of the broker. After the run, `begin` and `end` enclose the measurement.

    error: of the broker or the connection, empty if there was none. is_interrupted: a signal ended the measurement.
    """

    def __init__(self, load: Load, course: Course, process: int | None, publishes: bool, consumes: bool) -> None:
        self.load = load
        self.begin = self.end = Sample()
        self.error = ""
        self.is_interrupted = False
        self.is_warming_up = course.warm_up_s > 0
        self._course = course
        self._process = process
        self._publishes, self._consumes = publishes, consumes
        self._is_abandoned = False

    def work(self) -> None:
        is_measured = False
        try:
            self.begin = replace(self._sample(), counts=LoadCounts())
            self.load.start(spin=self._course.spins)
            complete = self._warm_up()
            complete = complete or self.load.advance(self._course.runfor_s or LONGEST_S)
            self.end = self._sample()
            is_measured = True
            if not complete:
                self._drain()
        except LoadError as error:
            self.error = str(error)
        if not is_measured:
            self.end = self._sample()

    def _warm_up(self) -> bool:
        """Run without measuring. Returns: whether the load is complete."""
        if not self.is_warming_up:
            return False
        complete = self.load.advance(self._course.warm_up_s)
        self.is_warming_up = False
        # Otherwise nothing is left to measure, and the warm-up is better than nothing.
        if not complete and not self.is_interrupted:
            self.load.reset_latencies()
            self.begin = self._sample()
        return complete

    def _drain(self) -> None:
        """Wait for answers and deliveries that are missing, and let the consumers leave."""
        complete = False
        if self._publishes and not self._is_abandoned:
            self.load.finish()
            complete = self.load.advance(self._course.drain_s)
        if self._consumes and not complete and not self._is_abandoned:
            self.load.leave()
            self.load.advance(self._course.drain_s)

    def _sample(self) -> Sample:
        cpu = None
        if self._process is not None:
            # A broker that has died has no CPU time.
            with contextlib.suppress(OSError):
                cpu = read_cpu_time(self._process)
        return Sample(self.load.counts(), cpu)

    def interrupt(self) -> None:
        self.is_interrupted = True
        self.load.interrupt()

    def fail(self, error: str) -> None:
        """End the measurement soon, in good order, with an error."""
        self.error = self.error or error
        self.load.interrupt()

    def abandon(self, error: str) -> None:
        """End everything soon, with an error."""
        self._is_abandoned = True
        self.fail(error)


class LoadProgress(Progress):
    """Progress of one load on standard error: a bar on a terminal, elsewhere a line per second.

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


async def carry_out(
    run: LoadRun, progress: LoadProgress, done: Callable[[LoadCounts], int], stall_s: float = 0.0, source: str = ""
) -> None:
    """Run a load to its end, with progress; SIGINT and SIGTERM end the measurement.

    done: the number of messages to show. stall_s: limit of the time without a message that is expected; 0 for none.
    source: of the messages, if others publish them, so that a stall is not the broker's fault.
    """
    work = in_thread(run.work)
    latest, latest_s = -1, 0.0
    try:
        with stop_on(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, on_signal=run.interrupt), progress:
            while not work.done():
                counts = run.load.counts()
                # At a low rate there may be nothing to wait for.
                waits = not counts.sent or counts.sent > done(counts)
                if done(counts) != latest or not waits:
                    latest, latest_s = done(counts), counts.elapsed_s
                elif stall_s and counts.elapsed_s - latest_s > stall_s and not run.error:
                    if source:
                        run.fail(f"{source} has brought no message for {stall_s:g} s")
                    else:
                        run.abandon(f"the broker has done nothing for {stall_s:g} s")
                progress.show(done(counts), counts.elapsed_s, "warming up" if run.is_warming_up else "")
                await asyncio.wait({work}, timeout=min(progress.interval_s, stall_s or progress.interval_s))
    finally:
        if not work.done():
            # The sockets are closed after this, and the load must not write to others that get their numbers.
            run.abandon("stopped")
            await asyncio.wait({work})
    work.result()
