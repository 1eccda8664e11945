"""What one load produced, as the generator saw it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Counters of one `Load.run`.

    confirmed counts messages whose command was answered OK; received = unique + duplicates + foreign.
    Times are in seconds since the first byte of the load was sent; one that never came is 0. worked_s is the
    time spent on events; what is missing to elapsed_s the generator spent waiting for the server.
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
