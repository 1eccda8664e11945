"""Result of one load as the generator saw it."""

from dataclasses import dataclass

from pyqd.hot.tools.histogram import LatencyHistogram


@dataclass(frozen=True, slots=True)
class ChannelCount:
    """Messages that the consumers of one channel received: received = unique + duplicates + foreign."""

    unique: int
    duplicates: int
    foreign: int


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """Counters of a load that runs. elapsed_s: since its start. worked_s: of these, spent on events."""

    elapsed_s: float = 0.0
    worked_s: float = 0.0
    sent: int = 0
    confirmed: int = 0
    received: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Counters of one load.

    confirmed counts messages whose command was answered OK; received = unique + duplicates + foreign, each over all
    channels. Times are in seconds since the first byte of the load was sent; 0 for an event that never came. worked_s
    is the time spent on events; the generator spent the rest of elapsed_s waiting for the server.

    sent_s: time of the last command. answers: for each command, from sending it to its answer. deliveries: for each
    message that the same load published, from sending it, or from its due time if it was deferred. In a load with a
    rate both begin at the intended time, and behind is how much later a command was sent. early: deferred messages that
    came before their due time, which count as 0 in deliveries.
    """

    messages: int
    confirmed: int
    received: int
    unique: int
    duplicates: int
    foreign: int
    heartbeats: int
    elapsed_s: float
    published_s: float
    consumed_s: float
    worked_s: float
    timed_out: bool
    sent_s: float
    answers: LatencyHistogram
    deliveries: LatencyHistogram
    behind: LatencyHistogram
    early: int
    channels: tuple[ChannelCount, ...]
