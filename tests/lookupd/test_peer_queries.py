"""Tests of pyqd.lookupd.peer_queries without a lookup daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import gevent
import pytest
from gevent.event import Event

from pyqd.lookupd import peer_queries
from pyqd.lookupd.channel_query import ChannelQuery
from pyqd.lookupd.peer import LookupPeer
from pyqd.lookupd.peer_queries import PeerQueries

WAIT_S = 10.0


class UnknownPeer:
    """A lookup daemon to which no connection was made, so that each query ends at once."""

    def __init__(self) -> None:
        self.tried = Event()
        self.tried.set()
        self.info = None
        self.is_connected = False
        self.address = "lookup:4160"


@pytest.fixture
def queries() -> PeerQueries:
    """Queries that nothing but a free worker ends."""
    return PeerQueries(cast(LookupPeer, UnknownPeer()), ChannelQuery(), silent_s=WAIT_S)


def test_a_query_that_comes_just_as_the_others_end_is_asked_at_once(queries: PeerQueries) -> None:
    answers: list[Sequence[str] | None] = []
    for number in range(peer_queries.ASKED_AT_ONCE):
        queries.put(f"t{number}", answers.append)
    # The workers have ended, but the loop has not told of it yet.
    gevent.sleep(0)
    assert len(answers) == peer_queries.ASKED_AT_ONCE
    queries.put("late", answers.append)
    with gevent.Timeout(WAIT_S / 2):
        while len(answers) <= peer_queries.ASKED_AT_ONCE:
            gevent.sleep(0.001)


def test_queries_that_were_stopped_do_not_occupy_workers(queries: PeerQueries) -> None:
    answers: list[Sequence[str] | None] = []
    for _ in range(3):
        for number in range(2 * peer_queries.ASKED_AT_ONCE):
            queries.put(f"t{number}", answers.append)
        queries.stop()
        gevent.sleep(0)
    answers.clear()
    queries.put("late", answers.append)
    with gevent.Timeout(WAIT_S / 2):
        while not answers:
            gevent.sleep(0.001)
