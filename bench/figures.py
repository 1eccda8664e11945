"""The table of measured quantities."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A measured quantity: its key in Result.figures, its name for people, the factor and digits to print it with.

    better: the better direction, "more" or "less"; "" if neither is, as for the seconds of a load of free size. A ratio
    of two servers is meaningful only with a better direction.
    """

    key: str
    label: str
    factor: float = 1.0
    digits: int = 1
    better: str = ""

    def show(self, value: float) -> str:
        return f"{value * self.factor:,.{self.digits}f}"


def latency_figures(prefix: str, label: str, better: str) -> tuple[Figure, ...]:
    """Return the figures of one pyqd.tools.bench.outcome.Latency, which runner.latency_values makes."""
    return tuple(
        Figure(f"{prefix}_{part}_us", f"{label}, {name}, us", better=better)
        for part, name in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9"), ("max", "max"))
    )


FIGURES = (
    Figure("rate_per_s", "messages, k/s", 1e-3, better="more"),
    Figure("seconds", "time of the load, s", digits=2),
    Figure("cpu_ns", "server CPU, ns/message", digits=0, better="less"),
    Figure("user_ns", "  of it user", digits=0, better="less"),
    Figure("system_ns", "  of it system", digits=0, better="less"),
    Figure("loop_faults", "page faults of the main thread/message", digits=3, better="less"),
    Figure("loop_switches", "its context switches/message", digits=3, better="less"),
    Figure("lost_count", "lost", digits=0),
    Figure("twice_count", "delivered twice", digits=0),
    Figure("server_busy_percent", "server busy, %", digits=0),
    Figure("generator_busy_percent", "generator busy, %", digits=0),
    Figure("others_percent", "others on its cores, %", digits=0),
    Figure("published_per_s", "published, k/s", 1e-3, better="more"),
    Figure("delivered_per_s", "delivered over all channels, k/s", 1e-3, better="more"),
    *latency_figures("answer", "answer to a command", "less"),
    *latency_figures("latency", "from sending to delivery", "less"),
    *latency_figures("lateness", "delivery after due time", "less"),
    Figure("early_count", "delivered before due time", digits=0),
    *latency_figures("behind", "generator behind its plan", ""),
    Figure("settled_s", "rest after the fill, s"),
    Figure("published_s", "all published after, s", digits=2),
    Figure("private_bytes", "private, B/connection", digits=0, better="less"),
    Figure("anonymous_bytes", "anonymous, B/connection", digits=0, better="less"),
    Figure("rss_bytes", "RSS, B/connection", digits=0),
    Figure("opened_s", "all opened after, s", digits=2),
    Figure("cpu_percent", "CPU, % of a core", digits=2, better="less"),
    Figure("heartbeats", "heartbeats answered", digits=0),
    Figure("message_anonymous_bytes", "memory, B/message", digits=1, better="less"),
    Figure("message_private_bytes", "  with its own file pages", digits=1, better="less"),
    Figure("message_rss_bytes", "RSS, B/message", digits=1),
    Figure("start_s", "start, s", digits=3, better="less"),
    Figure("identify_s", "  IDENTIFY answered after, s", digits=3, better="less"),
    Figure("ping_s", "  /ping answered after, s", digits=3, better="less"),
    Figure("start_cpu_s", "  its CPU time, s", digits=3, better="less"),
    Figure("filled_s", "filled after, s"),
    Figure("stopped_s", "stopped after, s", digits=2),
)


def figure_of(key: str) -> Figure:
    """Return the figure of that key. Raises: KeyError."""
    return {figure.key: figure for figure in FIGURES}[key]
