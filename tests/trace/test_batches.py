"""Rows do not depend on how events are cut into batches: random events, in random batches, against a model."""

from __future__ import annotations

import random

import pytest

from pyqd.trace import database as database_module
from pyqd.trace.database import Database
from pyqd.trace.recent import RecentDeliveries
from tests.support.trace_log import AT_US, TraceLog
from tests.support.trace_model import Model, model_of
from tests.support.trace_tables import rows_of
from tests.support.tracing import rows_of as events_of

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

MESSAGES = 12
STEPS = 400
CHANNELS = ("a", "b")
ENDS = ("finished", "requeued", "timed_out", "client_gone", "dead_lettered", "cancelled", "dropped", "touched")
BULK = (
    ("dropped", "emptied"),
    ("dropped", "seek"),
    ("stored", "seek"),
    ("dropped", "ephemeral"),
    ("stored", "released"),
    ("expired", None),
)


def add_random(log: TraceLog, choose: random.Random) -> None:
    """Add events as they come from a broker: each delivery of a message has one attempt more than the one before."""
    attempts: dict[tuple[int, str], int] = {}
    for step in range(STEPS):
        guid, channel = choose.randint(1, MESSAGES), choose.choice(CHANNELS)
        attempt = attempts.get((guid, channel), 0)
        kind = choose.choice(("published", "stored", "sent", "sent", "end", "end", "end", "bulk"))
        client = f"10.0.0.{choose.randint(1, 3)}:5"
        if kind == "published":
            log.add("published", guid + step * 100, client=client, size=step)
        elif kind == "stored":
            if not attempt:
                log.add("stored", guid, channel=channel)
        elif kind == "sent":
            attempts[guid, channel] = attempt + 1
            log.add("sent", guid, channel=channel, client=client, attempt=attempt + 1)
        elif kind == "end":
            log.add(choose.choice(ENDS), guid, channel=channel, client=client, attempt=attempt)
        elif choose.random() < 0.3:
            name, reason = choose.choice(BULK)
            log.add(name, guid, channel=choose.choice((*CHANNELS, "")), reason=reason, count=3)


def check(database: Database, model: Model) -> None:
    """Compare the tables with the model."""
    deliveries = [
        (
            row["message_id"],
            row["topic"],
            row["channel"],
            row["client"],
            row["attempt"],
            row["sent_at"],
            row["outcome"],
            row["outcome_at"],
        )
        for row in rows_of(database, "consume_log", "sent_at")
    ]
    assert deliveries == [
        (
            one.message_id,
            one.topic,
            one.channel,
            one.client,
            one.attempt,
            one.sent_ns // 1000 - AT_US,
            one.outcome,
            None if one.outcome_ns is None else one.outcome_ns // 1000 - AT_US,
        )
        for one in model.deliveries
    ]
    published = [
        (row["message_id"], row["client"], row["size"]) for row in rows_of(database, "publish_log", "published_at")
    ]
    assert published == [(row.message_id, row.client, row.size_bytes) for row in model.published]


@pytest.mark.parametrize("remembered", [0, 3, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_rows_do_not_depend_on_batches(
    sqlite: Database, seed: int, remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "RecentDeliveries", lambda: RecentDeliveries(remembered))
    choose = random.Random(seed)
    # Pages consist of whole blocks.
    log = TraceLog(events_of_a_block=1)
    add_random(log, choose)
    node = sqlite.node("log", "broker:4151")
    events = events_of(log.decoded(1))
    while node.position < log.next:
        decoded = log.decoded(max(node.position, 1), bytes_max=choose.choice((1, 400, 4000, 40_000)))
        node = sqlite.write(node, decoded)
    check(sqlite, model_of(events))
