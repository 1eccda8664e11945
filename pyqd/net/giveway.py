"""Yield to the event loop between slices of long work, so that it polls its sockets."""

import time
from collections.abc import Iterable

import gevent

from pyqd.net.pieces import pieces_of

SLICE_S = 0.003


def give_way() -> None:
    """Return when the loop has polled, and others with long work have had their turn. Switches: yes."""
    pieces_of(gevent.get_hub()).wait()


def in_slices(steps: Iterable[object]) -> None:
    """Run through short steps, and yield to the event loop after each few milliseconds of them. Switches: it may."""
    end_s = time.monotonic() + SLICE_S
    for _ in steps:
        if time.monotonic() >= end_s:
            give_way()
            end_s = time.monotonic() + SLICE_S
