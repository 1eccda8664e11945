"""Changes of channels and topics during the load of a crash loop: made, deleted, paused, sought, limited.

A change counts when its answer was read. A kill before the answer leaves the change open; the next start shows which of
the two states the daemon is in, or, for a seek, both stay possible. A topic has one change at a time.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

from crash_checks import FOR_EVER, NEVER, Channel, Letters, Limits, Split, Topic, World
from crash_clients import Connection

HOST = "127.0.0.1"
WAIT_S = 20.0
EXTRA_NAMES = ("extra0", "extra1", "extra2")
CHANNELS_MAX = 4
MARKS_TRIED = 8
LETTERS = "letters"

Stats = dict[str, Any]
Decide = Callable[[Stats], None]
Subscribe = Callable[[Channel], Any]


class Cut(Exception):  # noqa: N818 (a condition, not an error)
    """A kill came before the answer."""


class Changes:
    """Changes of channels and topics, with their effects on the messages. subscribe: connects a consumer;
    raises Cut.
    """

    def __init__(self, world: World, daemon: Any, rng: random.Random, subscribe: Subscribe) -> None:
        self.world = world
        self.daemon = daemon
        self.rng = rng
        self.subscribe = subscribe
        self.connections: list[Connection] = []
        self.unsettled: list[Decide] = []
        self.kinds: dict[Callable[[Topic], Any], int] = {
            self.pause_something: 22,
            self.make_channel: 20,
            self.delete_channel: 14,
        }

    def extend(self) -> None:
        """Include the changes that only pyqd offers."""
        self.kinds |= {self.seek_something: 26, self.limit_something: 26, self.mark: 6}

    async def change_something(self) -> None:
        """Make a random change to a topic that has none under way."""
        topics = [topic for topic in self.world.topics if not topic.busy]
        if not topics:
            return
        topic = self.rng.choice(topics)
        kind = self.rng.choices(list(self.kinds), list(self.kinds.values()))[0]
        topic.busy = True
        try:
            await kind(topic)
        except Cut:
            self.world.totals["changes_cut"] += 1
        finally:
            topic.busy = False

    async def call(
        self, method: str, path: str, decide: Decide = lambda _stats: None, expected: tuple[int, ...] = (200,)
    ) -> dict[str, Any] | None:
        """Return the JSON of an answer, None for a refusal that is expected.

        decide: notes by the state after the next start whether the change took effect. Raises: Cut.
        """
        try:
            status, body = await asyncio.wait_for(request(self.daemon.http_port, method, path), WAIT_S)
        except (OSError, asyncio.IncompleteReadError) as error:
            if self.daemon.is_running:
                self.world.note("daemon_failures", f"{method} {path}: {error!r}")
            self.unsettled.append(decide)
            raise Cut from error
        if status not in expected:
            self.world.note("daemon_failures", f"{method} {path} was answered with {status} {body[:80]!r}")
            self.unsettled.append(decide)
            raise Cut
        return None if status != 200 else json.loads(body or b"{}")

    def settle(self, stats: Stats) -> None:
        """Decide by the state after a start which cut-off changes took effect."""
        for decide in self.unsettled:
            decide(stats)
        self.unsettled.clear()

    # Holding: a topic keeps its messages while it is paused or has no channel.

    def note_holding(self, topic: Topic, split: Split) -> None:
        """Note whether a topic holds its messages after a change. split: the time of the change."""
        if not topic.paused and topic.channels:
            topic.holding = None
        elif topic.holding is None:
            topic.holding = split

    def asked(self) -> int:
        """Return the event of a request: everything acknowledged so far is ahead of it."""
        return self.world.next_event()

    # Pause

    async def pause_something(self, topic: Topic) -> None:
        if not topic.channels or self.rng.random() < 0.3:
            await self.pause(topic, topic, not topic.paused)
        else:
            channel = self.rng.choice(topic.channels)
            await self.pause(topic, channel, not channel.paused)

    async def pause(self, topic: Topic, what: Topic | Channel, paused: bool) -> None:
        """Turn a pause on or off."""
        world, asked, before = self.world, self.asked(), what.paused
        of_channel = f"&channel={what.name}" if isinstance(what, Channel) else ""
        path = f"/{'channel' if of_channel else 'topic'}/{'pause' if paused else 'unpause'}?topic={topic.name}"

        def note(is_paused: bool) -> None:
            what.paused = is_paused
            what.paused_round = world.round
            self.note_holding(topic, Split(asked, topic.sent))

        def decide(stats: Stats) -> None:
            found = stats.get(topic.name, {"paused": before, "channels": {}})
            note((found["channels"].get(what.name, {"paused": before}) if of_channel else found)["paused"])

        what.paused = False
        await self.call("POST", path + of_channel, decide)
        world.totals["pauses"] += paused
        note(paused)

    # Channels

    async def make_channel(self, topic: Topic) -> None:
        """Make a channel: by subscribing, or over HTTP, perhaps at a place of the log."""
        there = {channel.name for channel in topic.channels}
        names = [name for name in ("plain", "rough", "late", *EXTRA_NAMES) if name not in there]
        if len(there) >= CHANNELS_MAX:
            return
        index, name = self.world.topics.index(topic), self.rng.choice(names)
        kind = name if name not in EXTRA_NAMES else self.rng.choice(("plain", "rough", "late"))
        channel = Channel(index, name, kind)
        place, asked, answer = None, self.asked(), None

        def decide(stats: Stats) -> None:
            if name in stats.get(topic.name, {"channels": ()})["channels"]:
                started = None if place is None else self.split_of(topic, place, asked)
                self.add(topic, channel, asked, started, confirmed=False)

        if self.rng.random() < 0.4:
            try:
                self.connections.append(await self.subscribe(channel))
            except Cut:
                self.unsettled.append(decide)
                raise
        else:
            path = f"/channel/create?topic={topic.name}&channel={name}"
            if self.seek_something in self.kinds and self.rng.random() < 0.4:
                place = self.some_place(topic)
                path += f"&start={place}"
            answer = await self.call("POST", path, decide, (200, 410))
            if answer is None:
                self.world.totals["seeks_refused"] += 1
                return
        started = None if place is None else self.split_found(topic, place, asked, answer["to"])
        self.add(topic, channel, asked, started, confirmed=True)
        self.world.totals["channels_made"] += 1

    def add(self, topic: Topic, channel: Channel, asked: int, started: Split | None, *, confirmed: bool) -> None:
        """Note a new channel. started: the place that it was moved to."""
        split = topic.holding or Split(asked, topic.sent)
        self.world.begin_channel(channel, split)
        topic.channels.append(channel)
        if started is not None:
            self.world.end_seek(channel, started, confirmed=confirmed)
        self.note_holding(topic, split)

    async def delete_channel(self, topic: Topic) -> None:
        """Delete a channel with its consumers; the others go on."""
        channels = [each for each in topic.channels if each.name in EXTRA_NAMES or self.rng.random() < 0.3]
        if not channels:
            return
        channel, asked = self.rng.choice(channels), self.asked()

        def remove() -> None:
            channel.deleted = True
            topic.channels.remove(channel)
            self.note_holding(topic, Split(asked, topic.sent))

        def decide(stats: Stats) -> None:
            if channel.name not in stats.get(topic.name, {"channels": ()})["channels"]:
                remove()

        await self.call("POST", f"/channel/delete?topic={topic.name}&channel={channel.name}", decide)
        remove()
        self.world.totals["channels_deleted"] += 1

    # Seek

    def some_place(self, topic: Topic) -> str:
        """Return a place of a topic's log to seek to."""
        lot = self.rng.random()
        if lot < 0.25 or not topic.marks:
            return "latest"
        if lot < 0.45:
            return "earliest"
        return str(self.rng.choice(topic.marks[-MARKS_TRIED:])[0])

    def split_of(self, topic: Topic, place: str, asked: int) -> Split:
        """Return the certain split of the messages at a place requested at an event."""
        if place == "latest":
            return Split(asked if topic.holding is None else NEVER, topic.sent)
        if place == "earliest":
            return Split(topic.split_at(topic.earliest).acknowledged_until, FOR_EVER)
        split = topic.split_at(int(place))
        # In a topic that holds messages the place is the end of the messages given to channels, if that comes first.
        return split if topic.holding is None else Split(NEVER, split.sent_from)

    def split_found(self, topic: Topic, place: str, asked: int, position: int) -> Split:
        """Return the split at the position in an answer."""
        split = topic.split_at(position)
        until = split.acknowledged_until
        if place == "latest" and topic.holding is None:
            until = max(until, asked)
        return Split(until, min(split.sent_from, topic.sent))

    async def seek_something(self, topic: Topic) -> None:
        """Move a channel while it is consumed."""
        if not topic.channels:
            return
        channel, place, asked = self.rng.choice(topic.channels), self.some_place(topic), self.asked()
        path = f"/channel/seek?topic={topic.name}&channel={channel.name}&to={place}"
        channel.seeking = True

        def decide(_stats: Stats) -> None:
            self.world.end_seek(channel, self.split_of(topic, place, asked), confirmed=False)

        answer = await self.call("POST", path, decide, (200, 410))
        if answer is None:
            self.world.totals["seeks_refused"] += 1
            channel.finished_while_seeking.clear()
            channel.seeking = False
            return
        self.world.totals["seeks"] += 1
        self.world.end_seek(channel, self.split_found(topic, place, asked, answer["to"]), confirmed=True)

    async def mark(self, topic: Topic) -> None:
        """Note which position comes next, for seeks to it."""
        asked = self.asked()
        positions = await self.call("GET", f"/topic/positions?topic={topic.name}")
        assert positions is not None
        self.note_positions(topic, positions, Split(asked, topic.sent))

    def note_positions(self, topic: Topic, positions: dict[str, Any], split: Split) -> None:
        """Note the answer of /topic/positions. split: the messages at that time."""
        topic.earliest = positions["earliest"]
        if topic.marks and positions["next"] < topic.marks[-1][0]:
            self.world.note("counter_errors", f"{topic.name}: next is {positions['next']}, was {topic.marks[-1][0]}")
            return
        topic.marks.append((positions["next"], split))

    # Limits

    async def limit_something(self, topic: Topic) -> None:
        """Limit a channel's rate or attempts, or take the limits away."""
        if not topic.channels:
            return
        channel = self.rng.choice(topic.channels)
        limits, query = Limits(), "rate=0&max_attempts=0"
        lot = self.rng.random()
        if lot < 0.35:
            rate, burst = self.rng.choice((10, 100, 500)), self.rng.choice((1, 5, 20))
            limits = Limits(rate, max(burst, rate / 100), 0)
            query = f"rate={rate}&burst={burst}&max_attempts=0"
        elif lot < 0.8:
            limits = Limits(0, 0, self.rng.choice((1, 2, 2, 3, 5)))
            name = await self.provide_letters(topic, channel)
            query = f"rate=0&max_attempts={limits.max_attempts}&dead_letter_topic={name}"
        await self.limit(topic, channel, limits, query)

    async def limit(self, topic: Topic, channel: Channel, limits: Limits, query: str) -> None:
        before, asked_ns = channel.limits, time.time_ns()
        channel.change_limits(limits)

        def note(found: dict[str, Any] | None, *possible: Limits) -> None:
            if found is not None:
                shown = limits_shown(found)
                if shown not in possible:
                    self.world.note("counter_errors", f"{self.world.where(channel)} has {shown}, not {limits}")
                channel.set_limits(shown, asked_ns, time.time_ns())

        def decide(stats: Stats) -> None:
            note(stats.get(topic.name, {"channels": {}})["channels"].get(channel.name), before, limits)

        path = f"/channel/limits?topic={topic.name}&channel={channel.name}&{query}"
        note({"limits": await self.call("POST", path, decide)}, limits)
        self.world.totals["limits_set"] += 1

    async def provide_letters(self, topic: Topic, channel: Channel) -> str:
        """Make the dead-letter topic of a channel, with a channel of its own. Returns: its name."""
        name = f"dead.{topic.name}.{channel.name}"
        if name not in self.world.letters:
            await self.call("POST", f"/topic/create?topic={name}")
            await self.call("POST", f"/channel/create?topic={name}&channel={LETTERS}")
            self.world.letters[name] = Letters(channel.topic, LETTERS, LETTERS, topic_name=name)
        channel.letters = self.world.letters[name]
        return name


def limits_shown(channel: dict[str, Any]) -> Limits:
    """Return the limits of a channel as /stats shows them."""
    shown = channel.get("limits")
    return Limits() if shown is None else Limits(shown["rate"], shown["burst"], shown["max_attempts"])


async def request(port: int, method: str, path: str) -> tuple[int, bytes]:
    """Return status and body of an answer. Raises: OSError, asyncio.IncompleteReadError."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        lengths = [line.partition(b":")[2] for line in head if line.lower().startswith(b"content-length:")]
        return int(head[0].split()[1]), await reader.readexactly(int(lengths[0]))
    finally:
        writer.close()
