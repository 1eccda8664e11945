"""Figures of one measurement, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from pyqd.hot.tools.histogram import LatencyHistogram
from pyqd.primitives.quantities import format_span
from pyqd.tools.bench.run import LoadRun

SHARES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999))
# Above this share of its core the generator may be the limit.
BUSY_PERCENT: Final = 95.0
# A rate that is lower by more than this share was not kept.
RATE_SHARE: Final = 0.99


@dataclass(frozen=True)
class BenchFigures:
    """Figures of a measurement. settings: of the command line. latencies: by name, in order.

    cpu_s: of the broker; None if it is not on this machine. unfinished: messages without answer, or not delivered.
    problems: reasons why the run counts as failed. warnings: limits of its meaning.
    """

    command: str
    settings: dict[str, Any]
    seconds: float
    messages: int
    message_bytes: int
    latencies: dict[str, LatencyHistogram]
    cpu_s: float | None
    generator_busy_percent: float
    unfinished: int = 0
    duplicates: int = 0
    is_interrupted: bool = False
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default_factory=tuple)

    @property
    def rate_per_s(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.message_bytes / self.seconds if self.seconds else 0.0

    @property
    def cpu_percent(self) -> float:
        return 100 * (self.cpu_s or 0.0) / self.seconds if self.seconds else 0.0

    @property
    def cpu_ns(self) -> float:
        """CPU time of the broker for a message, in ns."""
        return (self.cpu_s or 0.0) * 1e9 / self.messages if self.messages else 0.0

    def to_json(self) -> str:
        broker = None
        if self.cpu_s is not None:
            percent, message_ns = round(self.cpu_percent, 1), round(self.cpu_ns)
            broker = {"seconds": round(self.cpu_s, 2), "percent": percent, "ns_per_message": message_ns}
        return json.dumps(
            {
                "command": self.command,
                **self.settings,
                "seconds": round(self.seconds, 6),
                "messages": self.messages,
                "messages_per_s": round(self.rate_per_s, 1),
                "bytes_per_s": round(self.bytes_per_s, 1),
                "latency_ns": {name: quantiles(histogram) for name, histogram in self.latencies.items()},
                "broker_cpu": broker,
                "generator_busy_percent": round(self.generator_busy_percent, 1),
                "unfinished": self.unfinished,
                "duplicates": self.duplicates,
                "interrupted": self.is_interrupted,
                "problems": self.problems,
                "warnings": self.warnings,
            }
        )

    def to_text(self) -> str:
        ended = ", ended by a signal" if self.is_interrupted else ""
        rows = [
            ("messages", f"{self.messages:,} in {self.seconds:.2f} s{ended}"),
            ("rate", f"{self.rate_per_s:,.0f} messages/s, {self.bytes_per_s / 1e6:,.1f} MB/s"),
        ]
        for name, histogram in self.latencies.items():
            rows.append((name, ", ".join(f"{key} {format_span(value)}" for key, value in shown(histogram))))
        if self.cpu_s is not None and self.messages:
            rows.append(("broker", f"{self.cpu_percent:.0f} % of a core, {self.cpu_ns / 1e3:.2f} us a message"))
        rows.append(("generator", f"{self.generator_busy_percent:.0f} % of a core"))
        if self.duplicates:
            rows.append(("duplicates", f"{self.duplicates:,}"))
        width = max(len(name) for name, _ in rows)
        return "\n".join([self.headline(), *(f"  {name:<{width}}  {text}" for name, text in rows)])

    def headline(self) -> str:
        """Return a line with the kind and the size of the measurement."""
        address, version, topic = (self.settings[name] for name in ("address", "version", "topic"))
        return f"{self.command}: {address} (version {version}), topic {topic}"


def shown(histogram: LatencyHistogram) -> list[tuple[str, int]]:
    """Return the named quantiles of a histogram in ns, and its maximum."""
    return [*((name, histogram.quantile(share)) for name, share in SHARES), ("max", histogram.most)]


def quantiles(histogram: LatencyHistogram) -> dict[str, int]:
    return {"count": histogram.count, **{name.replace(".", "_"): value for name, value in shown(histogram)}}


def cpu_between(run: LoadRun) -> float | None:
    if run.begin.cpu is None or run.end.cpu is None:
        return None
    # Two roundings to ticks can leave less than nothing.
    return max(0.0, (run.end.cpu - run.begin.cpu).total_s)


def busy_percent(run: LoadRun) -> float:
    seconds = run.end.counts.elapsed_s - run.begin.counts.elapsed_s
    return 100 * (run.end.counts.worked_s - run.begin.counts.worked_s) / seconds if seconds else 0.0


def warnings_of(run: LoadRun, rate: float, reached: float) -> tuple[str, ...]:
    """Return the limits of a measurement's meaning, as texts. rate: wanted; 0: none. reached: messages per second."""
    found = []
    if rate and reached < RATE_SHARE * rate and not run.is_interrupted:
        found.append(f"{reached:,.0f} messages/s were reached of the {rate:,.0f} of --rate: latencies include the wait")
    if busy_percent(run) > BUSY_PERCENT:
        found.append("the generator used its whole core, so the broker may be faster; run several at once")
    return tuple(found)
