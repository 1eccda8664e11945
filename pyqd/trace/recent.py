"""Memory of the deliveries that the shipper has stored and that may still change, which saves queries for them."""

from __future__ import annotations

from itertools import islice
from typing import Final

from pyqd.trace.rows import Place, TraceBatch

# A delivery takes some 300 bytes of memory.
DELIVERIES_MAX: Final = 100_000


class RecentDeliveries:
    """Position and outcome of the last delivery of messages of one broker, unless it was finished.

    It is valid for events that follow those it has learned from: another shipper may have stored the events between.
    """

    def __init__(self, limit: int = DELIVERIES_MAX) -> None:
        self._limit = limit
        self._found: dict[Place, tuple[int, str]] = {}
        # Of the event for which the memory is valid.
        self._position = 0

    def clear(self) -> None:
        self._found.clear()

    def begin(self, position: int) -> None:
        """Forget all, unless the events from a position on follow those that are known."""
        if position != self._position:
            self.clear()

    def find(self, place: Place) -> tuple[int, str] | None:
        """Return position and outcome; None if they are not known."""
        return self._found.get(place)

    def learn(self, batch: TraceBatch, changed: dict[Place, tuple[int, str]], following: int) -> None:
        """Take over the deliveries of a batch that has been stored.

        changed: those before the batch with another outcome. following: position after the batch.
        """
        found = self._found
        self._position = following
        if batch.drops:
            # Their deliveries are not looked for one by one.
            found.clear()
        for deliveries in (changed, batch.last):
            for place, delivery in deliveries.items():
                # The newest come last, the oldest go first.
                found.pop(place, None)
                if delivery[1] != "finished":
                    found[place] = delivery
        excess = len(found) - self._limit
        for place in list(islice(found, max(0, excess))):
            del found[place]
