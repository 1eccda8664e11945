"""The three loads of `pyq_bench`: each opens connections, runs a load, and returns its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from pyqd.client.core.commands import check_channel
from pyqd.hot.tools.histogram import LatencyHistogram
from pyqd.hot.tools.loadgen import Load
from pyqd.primitives.durations import SECOND_NS
from pyqd.tools.bench.options import ConsumeOptions, Consuming, LatencyOptions, PublishOptions
from pyqd.tools.bench.outcome import LoadCounts
from pyqd.tools.bench.process import settled
from pyqd.tools.bench.run import Course, LoadProgress, LoadRun, carry_out
from pyqd.tools.bench.summary import BenchFigures, busy_percent, cpu_between, warnings_of
from pyqd.tools.bench.target import BenchTarget, BenchTopic, with_remedy
from pyqd.tools.common import Fatal

RUNFOR_S: Final = 10.0
# Messages that are published before a consumption is measured.
STOCK_COUNT: Final = 1_000_000
STOCK_BATCH: Final = 200
STOCK_BATCH_BYTES: Final = 1 << 20
STOCK_OUTSTANDING: Final = 4
CHANNEL: Final = "pyq_bench"

confirmed: Final[Callable[[LoadCounts], int]] = attrgetter("confirmed")
received: Final[Callable[[LoadCounts], int]] = attrgetter("received")


class StoppedError(Exception):
    """A signal came before the measurement."""


@dataclass(frozen=True)
class Bench:
    """A broker and a topic to measure with."""

    target: BenchTarget
    topic: BenchTopic

    async def publish(self, options: PublishOptions) -> BenchFigures:
        load = Load(messages=options.count or None, body_bytes=options.size)
        course = course_of(options, 0.0 if options.count else RUNFOR_S)
        progress = LoadProgress("publishing", options.count, whole_s(course), options.size, options.quiet)
        with self.target.open(options.connections) as connections:
            self._add_publishers(load, connections.fds(), options)
            run = LoadRun(load, course, self.target.process, publishes=True, consumes=False)
            await carry_out(run, progress, confirmed, course.stall_s)
        counts = load.counts()
        settings = publishing_settings(options)
        latencies = {"answers": load.answers()}
        return self._figures(
            "publish", options, settings, run, confirmed, latencies, counts.sent - counts.confirmed, "answered"
        )

    async def consume(self, options: ConsumeOptions) -> BenchFigures:
        """Consume a new topic that is filled before, or a topic of the user."""
        self._check_rdy(options.rdy)
        is_new, channel = self.topic.is_new, self._channel(options)
        messages = options.count or (STOCK_COUNT if is_new else 0)
        if is_new:
            await self._fill(options, channel, messages)
        # Messages that others publish bear no numbers.
        load = Load(messages=messages or None, body_bytes=options.size, tallied=is_new)
        course = course_of(options, 0.0 if messages else RUNFOR_S)
        progress = LoadProgress("consuming", messages, whole_s(course), options.size, options.quiet)
        with self.target.open(options.connections, self.topic.name, channel) as connections:
            load.add_consumers(connections.fds(), rdy=options.rdy)
            run = LoadRun(load, course, self.target.process, publishes=False, consumes=True)
            source = "" if is_new else f"channel {channel} of topic {self.topic.name}"
            await carry_out(run, progress, received, course.stall_s, source)
        report = load.report()
        missing = 0 if run.is_interrupted or course.runfor_s or not is_new else messages - report.unique
        settings = {"channel": channel, "rdy": options.rdy}
        return self._figures("consume", options, settings, run, received, {}, missing, "delivered", report.duplicates)

    async def _fill(self, options: ConsumeOptions, channel: str, messages: int) -> None:
        """Publish the messages to consume. Raises: Fatal, StoppedError."""
        self.target.open(1, self.topic.name, channel).close()
        largest = max(1, min(STOCK_BATCH, STOCK_BATCH_BYTES // options.size))
        batch = next(size for size in range(largest, 0, -1) if messages % size == 0)
        load = Load(messages=messages, body_bytes=options.size, tallied=False)
        with self.target.open(options.connections) as connections:
            load.add_publishers(connections.fds(), topic=self.topic.name, batch=batch, outstanding=STOCK_OUTSTANDING)
            run = LoadRun(load, Course(0.0, 0.0, options.timeout_s), None, publishes=True, consumes=False)
            progress = LoadProgress("filling the topic", messages, 0.0, options.size, options.quiet)
            await carry_out(run, progress, confirmed, options.timeout_s)
        if run.error:
            raise Fatal(f"cannot fill topic {self.topic.name}: {self.target.name}: {with_remedy(run.error)}")
        if run.is_interrupted:
            raise StoppedError
        if self.target.process is not None:
            await settled(self.target.process, options.timeout_s)

    async def latency(self, options: LatencyOptions) -> BenchFigures:
        """Publish at a rate and consume at once; latencies begin at the intended times."""
        self._check_rdy(options.rdy)
        course = course_of(options, 0.0 if options.count else RUNFOR_S)
        channel = self._channel(options)
        batches = -(-int(options.rate * whole_s(course)) // options.batch_size)
        messages = options.count or max(1, batches) * options.batch_size
        load = Load(messages=messages, body_bytes=options.size)
        progress = LoadProgress("measuring", messages, whole_s(course), options.size, options.quiet)
        with (
            self.target.open(options.connections, self.topic.name, channel) as consumers,
            self.target.open(options.connections) as publishers,
        ):
            load.add_consumers(consumers.fds(), rdy=options.rdy)
            self._add_publishers(load, publishers.fds(), options)
            run = LoadRun(load, course, self.target.process, publishes=True, consumes=True)
            await carry_out(run, progress, received, course.stall_s)
        report = load.report()
        settings = {"channel": channel, "rdy": options.rdy, **publishing_settings(options)}
        latencies = {"deliveries": load.deliveries(), "answers": load.answers(), "behind": load.behind()}
        missing = report.messages - report.unique
        figures = self._figures(
            "latency", options, settings, run, received, latencies, missing, "delivered", report.duplicates
        )
        if not report.foreign:
            return figures
        warning = f"{report.foreign:,} messages in the channel are not of this run; use a topic without other messages"
        return replace(figures, warnings=(*figures.warnings, warning))

    def _add_publishers(self, load: Load, fds: Iterable[int], options: PublishOptions) -> None:
        rates = {"outstanding": options.outstanding, "rate_per_s": options.rate}
        load.add_publishers(fds, topic=self.topic.name, batch=options.batch_size, **rates)

    def _channel(self, options: Consuming) -> str:
        """Return the channel to consume. Raises: InvalidNameError."""
        if options.channel:
            check_channel(options.channel)
            return options.channel
        # In a topic of others an ephemeral channel takes nothing from their channels, and leaves nothing.
        return CHANNEL if self.topic.is_new else f"{CHANNEL}-{options.seed}#ephemeral"

    def _check_rdy(self, rdy: int) -> None:
        if rdy > self.target.rdy_max:
            raise Fatal(f"--rdy must be at most {self.target.rdy_max}, the --max-rdy-count of {self.target.name}")

    def _figures(
        self,
        command: str,
        options: PublishOptions | ConsumeOptions,
        settings: Mapping[str, object],
        run: LoadRun,
        count: Callable[[LoadCounts], int],
        latencies: dict[str, LatencyHistogram],
        missing: int,
        verb: str,
        duplicates: int = 0,
    ) -> BenchFigures:
        """Return the figures of a run that has ended. missing: messages that were not `verb`."""
        begin, end = run.begin.counts, run.end.counts
        messages, seconds = count(end) - count(begin), end.elapsed_s - begin.elapsed_s
        consumed_bytes = end.received_bytes - begin.received_bytes
        problems = []
        if run.error:
            problems.append(f"{self.target.name}: {with_remedy(run.error.removeprefix('error frame: '))}")
        elif missing:
            problems.append(f"{missing:,} messages were not {verb} within {options.timeout_s:g} s after the others")
        common: dict[str, object] = {
            "address": self.target.name,
            "version": self.target.version,
            "topic": self.topic.name,
            "connections": options.connections,
            "size_bytes": options.size,
        }
        rate = float(getattr(options, "rate", 0))
        return BenchFigures(
            command=command,
            settings={**common, **settings},
            seconds=seconds,
            messages=messages,
            message_bytes=consumed_bytes if count is received else messages * options.size,
            latencies={name: histogram for name, histogram in latencies.items() if histogram.count},
            cpu_s=cpu_between(run),
            generator_busy_percent=busy_percent(run),
            unfinished=missing,
            duplicates=duplicates,
            is_interrupted=run.is_interrupted,
            problems=tuple(problems),
            warnings=warnings_of(run, rate, messages / seconds if seconds else 0.0),
        )


def publishing_settings(options: PublishOptions) -> dict[str, object]:
    return {"batch_size": options.batch_size, "outstanding": options.outstanding, "rate_per_s": options.rate}


def course_of(options: PublishOptions | ConsumeOptions, otherwise_s: float) -> Course:
    runfor_s = options.runfor_ns / SECOND_NS or otherwise_s
    return Course(options.warm_up_ns / SECOND_NS, runfor_s, options.timeout_s, options.spin)


def whole_s(course: Course) -> float:
    """Return the duration of a load with its warm-up; 0 if it has no limit."""
    return course.warm_up_s + course.runfor_s if course.runfor_s else 0.0
