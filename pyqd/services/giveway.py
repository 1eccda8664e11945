"""Between the pieces of long work: let everybody else have a turn.

gevent.sleep(0) does not do that. What asks for the next callback of the loop is called again before the loop looks at
its sockets, fifty times and more in a row: measured with pieces of a millisecond, a socket waited for ninety of them.
A short sleep is a timer, and timers are seen to where the loop polls: there the socket waited for one piece.
"""

import gevent

PAUSE_S = 0.0005


def give_way() -> None:
    """Return when the loop has polled and served whoever was ready. Switches: yes."""
    gevent.sleep(PAUSE_S)
