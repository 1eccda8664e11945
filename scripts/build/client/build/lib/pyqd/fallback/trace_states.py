"""States of a message in a channel, by its events. Needs no database."""

from __future__ import annotations

from typing import Final

WAITING: Final = "waiting"
IN_FLIGHT: Final = "in_flight"
# Outcomes of a delivery.
OUTCOMES: Final = (IN_FLIGHT, "finished", "requeued", "timed_out", "disconnected", "dead_lettered", "cancelled")
UNFINISHED: Final = "unfinished"
# States to search for.
STATES: Final = (UNFINISHED, WAITING, *OUTCOMES)
# State after an event; after all others it stays.
STATE_AFTER: Final = {
    "stored": WAITING,
    "sent": IN_FLIGHT,
    "requeued": WAITING,
    "timed_out": WAITING,
    "rescheduled": WAITING,
    "delivered_now": WAITING,
    "finished": "finished",
    "dead_lettered": "dead_lettered",
    "cancelled": "cancelled",
    "dropped": "dropped",
}
OVER: Final = ("finished", "dead_lettered", "cancelled", "dropped")

# Reasons for which a channel drops all its messages.
CLEARED: Final = ("emptied", "channel_deleted", "topic_deleted")
# A seek drops the messages up to an id, and delivers those above it again.
SEEK: Final = "seek"
# Messages that the topic had held come to a channel.
RELEASED: Final = "released"
