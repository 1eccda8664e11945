"""What the routes of the HTTP API ask for, and what a login grants. docs/security.md has the table of routes."""

from typing import Final, Protocol

# Each route names one of these. OPEN needs no login, STATUS any.
OPEN: Final = "open"
STATUS: Final = "status"
PUBLISH: Final = "publish"
CONSUME: Final = "consume"
ADMIN: Final = "admin"

RIGHTS: Final = (OPEN, STATUS, PUBLISH, CONSUME, ADMIN)
# What a token may be given. No right includes another, but STATUS comes with each.
GRANTED: Final = (STATUS, PUBLISH, CONSUME, ADMIN)


class Grant(Protocol):
    """What a login may do."""

    def allows(self, right: str, topics: tuple[str, ...], channel: str) -> bool:
        """Return whether a right is granted on each of the topics. No topics: on the daemon as a whole.

        channel: empty where all of a topic's are meant.
        """
