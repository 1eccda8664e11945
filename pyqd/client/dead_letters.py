"""Dead letters of a channel at one broker: find them, and publish them again in the topic that they came from.

A dead letter is a message of the channel's dead-letter topic, so that it is held by a channel of that topic. Returning
publishes the body in the original topic and then cancels the dead letter: a kill between the two leaves both. If the
dead-letter topic has no channel, its other messages get new ids.

Source: docs/http.md, "Dead letters".
"""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from pyqd.client.errors import ClientError, ProtocolError, RefusedError
from pyqd.client.http import Reply
from pyqd.fallback.records import decode
from pyqd.primitives.names import is_ephemeral_str

Row = dict[str, Any]

PAGE_MAX: Final = 1000
ID_HEADER: Final = "x-nsq-message-id"
# A dead letter in flight belongs to its client.
STATES: Final = ("ready", "deferred")
# Meanwhile no consumer gets a dead letter that is being returned; after a kill, it waits for the rest of this time.
HOLD_MS: Final = 60_000
# Messages that are copied if the dead-letter topic has no channel, and the bytes of one request for some of them.
LENT_MAX: Final = 10_000
BATCH_BYTES: Final = 512 << 10
COUNT: Final = struct.Struct(">I")
DONE: Final = "done"
RETURNED: Final = "returned"
FAILED: Final = "failed"


class BrokerCalls(Protocol):
    """HTTP calls of one broker, which raise ClientError. Parameters that are None are left out."""

    @property
    def address(self) -> str:
        """The address, for texts."""

    def send(self, method: str, path: str, query: Mapping[str, object], body: bytes | None = None) -> Reply:
        """Return the answer to a request if it is a success."""

    def get(self, path: str, **query: object) -> Row:
        """Return the JSON object of a GET."""

    def post(self, path: str, **query: object) -> Row:
        """Return the JSON object of a POST."""


class UnreadableError(ClientError):
    """The whole body of a dead letter cannot be read."""


class DeadLetterTopic(NamedTuple):
    """Dead-letter topic of a channel. target: its name. held_by: its channels. others: `topic/channel` of other topics
    with the same dead-letter topic. receivers: the channels that a returned message reaches."""

    target: str
    held_by: list[str]
    others: list[str]
    receivers: list[str]


def find_dead_letter_topic(
    broker: BrokerCalls, topic: str, channel: str, target: str | None = None
) -> DeadLetterTopic | None:
    """Return the dead-letter topic of a channel; None if it has none. Raises: ClientError.

    target: the topic of a client's own retry policy, in place of the one that the broker knows.
    """
    target = target or read_limits(broker, topic, channel)["dead_letter_topic"]
    if target is None:
        return None
    stats = broker.get("/stats", format="json", include_clients="false", include_mem="false")
    topics: dict[str, list[Row]] = {entry["topic_name"]: entry["channels"] for entry in stats.get("topics") or ()}
    others = [
        f"{name}/{entry['channel_name']}"
        for name, channels in topics.items()
        for entry in channels
        if name != topic and entry.get("limits", {}).get("dead_letter_topic") == target
    ]
    return DeadLetterTopic(target, channel_names(topics.get(target)), others, channel_names(topics.get(topic)))


def read_limits(broker: BrokerCalls, topic: str, channel: str) -> Row:
    """Return the limits of a channel. Raises: ClientError."""
    return broker.get("/channel/limits", topic=topic, channel=channel)


def channel_names(channels: Iterable[Row] | None) -> list[str]:
    return [entry["channel_name"] for entry in channels or ()]


def read_messages(
    broker: BrokerCalls, topic: str, channel: str | None, state: str, limit: int, body: str, after: str | None = None
) -> tuple[list[Row], str | None]:
    """Return messages of one broker, and the cursor behind them; None at the end. Raises: ClientError."""
    rows: list[Row] = []
    while True:
        page = broker.get(
            "/channel/messages",
            topic=topic,
            channel=channel,
            state=state,
            limit=min(PAGE_MAX, limit - len(rows)),
            body=body,
            after=after,
        )
        rows += page["messages"]
        after = page["next"]
        # A page may be short, or even empty, without being the last.
        if after is None or len(rows) >= limit:
            return rows, after


def returnable_states(channel: str | None) -> tuple[str, ...]:
    """Return the states of dead letters that can return. A topic without channels defers none."""
    return STATES if channel is not None else STATES[:1]


def select_dead_letters(
    broker: BrokerCalls, target: str, channel: str | None, wanted: frozenset[str] | None = None
) -> Iterator[Row]:
    """Yield the dead letters that wait in a channel, with bodies in base64. wanted: only these ids.

    channel: None as the topic itself holds them. Raises: ClientError.
    """
    missing = None if wanted is None else set(wanted)
    for state in returnable_states(channel):
        after: str | None = None
        while True:
            rows, after = read_messages(broker, target, channel, state, PAGE_MAX, "base64", after)
            for row in rows:
                if missing is None or row["id"] in missing:
                    yield row
                    (missing or set()).discard(row["id"])
            if after is None or missing == set():
                break


def return_dead_letters(
    broker: BrokerCalls, target: str, channel: str | None, rows: Iterable[Row], topic: str, new_channel: str
) -> Iterator[Row]:
    """Publish dead letters in their topic, and yield the result of each; end after a failure of the broker.

    channel: the one of `target` that holds them; None as the topic itself does. Nothing can cancel messages there, so
    `new_channel` is created meanwhile. rows: as `select_dead_letters` yields them. Raises: ClientError.
    """
    rows = list(rows)
    if not rows:
        return
    if channel is None:
        with lent_channel(broker, target, new_channel):
            yield from return_from(broker, target, new_channel, rows, topic)
        return
    yield from return_from(broker, target, channel, rows, topic)
    if channel == new_channel:
        take_back_left(broker, target, channel)


@contextlib.contextmanager
def lent_channel(broker: BrokerCalls, target: str, channel: str) -> Iterator[None]:
    """Give the messages that a topic without channels holds to a channel, and back to the topic afterwards.

    The topic is paused meanwhile: it holds new messages, and the copies of those that remain in the channel. A kill
    leaves the channel and the pause, and may leave two of a message; no message is lost. Raises: ClientError, also if
    the topic holds too many messages.
    """
    held = entry_of(broker, target)
    if held is not None and held["paused"]:
        raise RefusedError("PAUSED", broker.address, f"topic {target} is paused: unpause it first")
    if held is not None and held["depth"] > LENT_MAX:
        text = f"topic {target} has no channel and holds more than {LENT_MAX} messages: create a channel for them first"
        raise RefusedError("TOO_MANY_MESSAGES", broker.address, text)
    broker.post("/channel/create", topic=target, channel=channel)
    broker.post("/topic/pause", topic=target)
    try:
        yield
    finally:
        is_used = bool(channel_of(broker, target, channel)["client_count"])
        # An ephemeral topic goes with its last channel.
        if not is_used and not is_ephemeral_str(target):
            give_back(broker, target, channel)
        broker.post("/topic/unpause", topic=target)
        if is_used:
            text = f"channel {channel} of topic {target} stays with all messages: a client reads it"
            raise RefusedError("CHANNEL_IN_USE", broker.address, text)


def take_back_left(broker: BrokerCalls, target: str, channel: str) -> None:
    """Take back a channel that an earlier run has lent and, killed, left behind. Raises: ClientError."""
    entry = channel_of(broker, target, channel)
    if not entry["client_count"] and entry["depth"] <= LENT_MAX and not is_ephemeral_str(target):
        broker.post("/topic/pause", topic=target)
        give_back(broker, target, channel)
        broker.post("/topic/unpause", topic=target)


def give_back(broker: BrokerCalls, target: str, channel: str) -> None:
    """Copy the messages of a channel to its paused topic, and delete the channel. Raises: ClientError."""
    count = 0
    for state in STATES:
        after: str | None = None
        while True:
            rows, after = read_messages(broker, target, channel, state, PAGE_MAX, "base64", after)
            for batch in batches(read_body(broker, target, row) for row in rows):
                broker.send("POST", "/mpub", {"topic": target, "binary": "true"}, batch)
            count += len(rows)
            if after is None:
                break
    entry = channel_of(broker, target, channel)
    if entry["depth"] + entry["deferred_count"] + entry["in_flight_count"] > count:
        text = f"channel {channel} of topic {target} stays, and the topic paused: a client reads the channel now"
        raise RefusedError("CHANNEL_IN_USE", broker.address, text)
    broker.post("/channel/delete", topic=target, channel=channel)


def entry_of(broker: BrokerCalls, topic: str) -> Row | None:
    """Return the numbers of a topic; None if there is none. Raises: ClientError."""
    found = broker.get("/stats", format="json", topic=topic, include_clients="false").get("topics") or ()
    return next((entry for entry in found if entry["topic_name"] == topic), None)


def channel_of(broker: BrokerCalls, topic: str, channel: str) -> Row:
    """Return the numbers of a channel. Raises: ClientError."""
    entry = entry_of(broker, topic) or {"channels": ()}
    found: Row | None = next((each for each in entry["channels"] if each["channel_name"] == channel), None)
    if found is None:
        raise ProtocolError(f"{broker.address}: channel {channel} of topic {topic} is gone")
    return found


def batches(bodies: Iterable[bytes]) -> Iterator[bytes]:
    """Yield bodies in the binary form of POST /mpub, as many as fit in BATCH_BYTES, or one."""
    parts: list[bytes] = []
    for body in bodies:
        if parts and sum(map(len, parts)) + len(body) > BATCH_BYTES:
            yield b"".join((COUNT.pack(len(parts)), *parts))
            parts = []
        parts.append(COUNT.pack(len(body)) + body)
    if parts:
        yield b"".join((COUNT.pack(len(parts)), *parts))


def return_from(broker: BrokerCalls, target: str, channel: str, rows: Iterable[Row], topic: str) -> Iterator[Row]:
    """Publish dead letters of a channel in their topic, and yield the result of each, as `return_dead_letters`."""
    for row in rows:
        result: Row = {"id": row["id"], "new_id": None, "state": FAILED, "error": None}
        names = {"topic": target, "channel": channel, "id": row["id"]}
        try:
            body = read_body(broker, target, row)
            held = changed_status(broker.post("/message/reschedule", **names, defer=HOLD_MS))
            if held != DONE:
                yield {**result, "state": held}
                continue
            reply = broker.send("POST", "/pub", {"topic": topic}, body)
            result["new_id"] = reply.headers.get(ID_HEADER)
            after = changed_status(broker.post("/message/cancel", **names))
        except UnreadableError as error:
            yield {**result, "error": str(error)}
            continue
        except ClientError as error:
            yield {**result, "error": str(error)}
            return
        yield {**result, "state": RETURNED if after == DONE else after}


def changed_status(answer: Row) -> str:
    """Return the status of a change on one channel."""
    return str(answer["results"][0]["status"])


def read_body(broker: BrokerCalls, topic: str, row: Row) -> bytes:
    """Return the whole body of a dead letter. Raises: ClientError."""
    if not row["truncated"]:
        return base64.b64decode(row["body"])
    position = row["position"]
    try:
        reply = broker.send("GET", "/topic/log", {"topic": topic, "from": position, "to": position + 1})
        for record in decode(reply.body):
            if record.id.decode() == row["id"]:
                return record.body
    except ClientError as error:
        # A rewritten segment keeps the message, and its positions are gone.
        if error.code != "POSITION_GONE":
            raise
    except ValueError as error:
        raise ProtocolError(f"{broker.address}: GET /topic/log: {error}") from None
    raise UnreadableError(
        f"{broker.address}: dead letter {row['id']}: its body of {row['size']} bytes cannot be read, because the log of"
        f" topic {topic} does not have it at {position}; consume it instead"
    )
