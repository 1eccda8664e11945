"""Fan-out whose publishers wait for the slowest channel: few messages are published and not yet consumed."""

import time
from dataclasses import replace

from pyqd.hot.tools.loadgen import Load
from pyqd.tools.bench.outcome import LoadReport

# Publishers have little to do beside the deliveries of many channels.
PUBLISH_S = 10e-6
CONSUME_S = 50e-6


def run(publishing: Load, consuming: Load, unconsumed: int, deadline_s: float) -> LoadReport:
    """Run two loads of the same messages in turns, polling, until both are complete or the deadline has passed.

    Returns: the counts of both; there are no latencies of deliveries. Raises: LoadError.
    """
    end_s = time.monotonic() + deadline_s
    publishing.start(spin=True)
    consuming.start(spin=True)
    published = consumed = False
    while not (published and consumed) and time.monotonic() < end_s:
        if not published and publishing.counts().sent - consumed_everywhere(consuming) < unconsumed:
            published = publishing.advance(PUBLISH_S)
        if not consumed:
            consumed = consuming.advance(CONSUME_S)
    sent = publishing.report()
    received = consuming.report()
    return replace(
        received,
        confirmed=sent.confirmed,
        published_s=sent.published_s,
        sent_s=sent.sent_s,
        answers=sent.answers,
        worked_s=sent.worked_s + received.worked_s,
        timed_out=not (published and consumed),
    )


def consumed_everywhere(consuming: Load) -> int:
    """Return the messages that the slowest channel has delivered."""
    return min(channel.unique for channel in consuming.report().channels)
