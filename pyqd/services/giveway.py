"""Yield to the event loop between slices of long work, so that it polls its sockets."""

import gevent

from pyqd.protocol.pieces import pieces_of


def give_way() -> None:
    """Return when the loop has polled, and others with long work have had their turn. Switches: yes."""
    pieces_of(gevent.get_hub()).wait()
