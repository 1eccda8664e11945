"""Facts that clients and logs know of messages, against the trace events of the broker.

As long as nothing has gone wrong but kills, the trace is exact: every message of a log was published there once, and
every act of a client is there. After a power cut, on a full disk, or with a page that cannot be read, events may be
missing. The rest must be readable all the same, and positions grow.
"""

from collections import Counter
from typing import Any

from pyqd.broker.broker import Broker
from pyqd.primitives.names import is_ephemeral_str
from tests.simulation.model import expect
from tests.support.storage import number_in
from tests.support.tracing import events_of

# Kind, id, channel and attempt of an event.
Act = tuple[str, int, str, int]


class TraceFacts:
    """Facts of one machine."""

    def __init__(self) -> None:
        self.acts: Counter[Act] = Counter()
        self.published: set[int] = set()
        self.deleted: set[str] = set()
        self.exact = True
        # Pages have become unreadable, which only a reader that skips damaged blocks passes.
        self.has_unreadable = False
        self.oldest = 0

    def note(self, kind: str, guid: int, channel: str, attempt: int) -> None:
        """Note an act that a client has seen, or that the broker has answered."""
        self.acts[kind, guid, channel, attempt] += 1

    def check(self, broker: Broker) -> None:
        """Compare the events with the facts."""
        if broker.tracing.log is None:
            expect(not self.exact or not self.published, "there is no trace")
            return
        oldest = broker.tracing.log.oldest_position
        # Overwritten events are no failure.
        self.exact = self.exact and self.oldest in (0, oldest)
        self.oldest = self.oldest or oldest
        rows = events_of(broker, self.oldest, skip_damaged=self.has_unreadable)
        positions = [row.position for row in rows]
        expect(positions == sorted(set(positions)), "positions of events do not grow")
        if not self.exact:
            return
        expect(all(row.kind != "lost_events" for row in rows), "events are lost")
        single = [row for row in rows if row.message_id and row.channel]
        found = Counter((row.kind, row.guid, row.channel, row.attempt) for row in single)
        missing = self.acts - found
        expect(not missing, "the trace has no event of", *missing)
        publishes = [row for row in rows if row.kind == "published"]
        published = Counter(
            (row.topic, row.guid, row.size_bytes if row.body is None else number_in(row.body))
            for row in publishes
            if not is_ephemeral_str(row.topic)
        )
        bodiless = any(row.body is None for row in publishes)
        # The clock stands still, so ids begin again in an ephemeral topic, and in one that is created again.
        twice = [each for each in published if published[each] > 1 and not (bodiless and each[0] in self.deleted)]
        expect(not twice, "published twice:", *twice)
        numbers = self.published if bodiless else {number_in(row.body) for row in publishes}
        expect(self.published <= numbers, "the trace has no publish of", self.published - numbers)
        for topic in broker.topics.values():
            untraced = set() if topic.ephemeral else records_of(topic, bodiless) - set(published)
            expect(not untraced, "a log has messages that the trace has not:", *untraced)


def records_of(topic: Any, bodiless: bool) -> set[tuple[str, int, int]]:
    """Return topic, id and number, or size if the trace has no bodies, of each message in a topic's log."""
    return {(topic.name, guid, len(body) if bodiless else number_in(body)) for _, guid, *_, body in topic.log.records()}
