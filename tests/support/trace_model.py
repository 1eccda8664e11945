"""Rows that the events of a broker must lead to: computed event by event, without batches and without a database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

ENDS = {"finished": "finished", "requeued": "requeued", "timed_out": "timed_out", "client_gone": "disconnected"}
FATES = {"dead_lettered": "dead_lettered", "cancelled": "cancelled", "dropped": "cancelled"}
TAKEN_BACK = ("emptied", "channel_deleted", "topic_deleted", "seek")


@dataclass
class ModelDelivery:
    message_id: str
    topic: str
    channel: str
    client: str | None
    attempt: int | None
    sent_ns: int
    outcome: str = "in_flight"
    outcome_ns: int | None = None

    def end(self, outcome: str, at_ns: int | None) -> None:
        self.outcome, self.outcome_ns = outcome, at_ns


@dataclass
class Model:
    """State after some events. events: names of those that must have a row of their own."""

    published: list[Any] = field(default_factory=list)
    deliveries: list[ModelDelivery] = field(default_factory=list)
    last: dict[tuple[str, str, str], ModelDelivery] = field(default_factory=dict)

    def add(self, row: Any) -> None:
        """Apply an event, as tests.support.tracing gives it."""
        if row.kind == "published":
            self.published.append(row)
        elif row.count is not None:
            if row.channel is not None and row.kind in ("dropped", "stored") and row.reason in TAKEN_BACK:
                self._take_back(row)
        elif row.channel is not None:
            self._add_to_channel(row, (row.message_id, row.topic, row.channel))

    def _add_to_channel(self, row: Any, key: tuple[str, str, str]) -> None:
        before = self.last.get(key)
        if row.kind == "sent":
            if before is not None and before.outcome == "in_flight":
                before.end("disconnected", None)
            made = ModelDelivery(*key, row.client, row.attempt, row.timestamp_ns)
            self.last[key] = made
            self.deliveries.append(made)
        elif before is not None and row.kind in ENDS and before.outcome == "in_flight":
            before.end(ENDS[row.kind], row.timestamp_ns)
        elif before is not None and row.kind in FATES and before.outcome != "finished":
            before.end(FATES[row.kind], row.timestamp_ns)

    def _take_back(self, row: Any) -> None:
        for (_, topic, channel), delivery in self.last.items():
            if (topic, channel) == (row.topic, row.channel) and delivery.outcome == "in_flight":
                delivery.end("cancelled", row.timestamp_ns)


def model_of(rows: Iterable[Any]) -> Model:
    model = Model()
    for row in rows:
        model.add(row)
    return model
