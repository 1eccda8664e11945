"""Clients of a crash loop: publishers, and consumers that confirm their commands."""

import abc
import asyncio
import collections
import itertools
import socket
import struct
import time
from typing import Any

from crash_checks import MS_NS, Channel, World
from harness import ERROR, MESSAGE, READ_BYTES, Frames, identify, sized

FENCE = b"FIN ffffffff%08x\n"

# Share of messages per action, in percent; the rest is FIN. "hold": let it time out.
ACTIONS = {
    "plain": (("requeue", 2), ("delay", 2), ("touch", 2)),
    "rough": (("requeue", 12), ("delay", 15), ("touch", 12), ("hold", 4)),
    "late": (("requeue", 5), ("delay", 10)),
    "letters": (),
}
ATTEMPTS_MAX = 6
DELAY_MS_MAX = 1500
# Small batches are stored through the mapping, large ones written.
BATCHES_MAX = (16, 16, 16, 150)

Act = tuple[str, bytes, Any]


class Connection(asyncio.Protocol, abc.ABC):
    """One connection: frames in order. The subclass fills in `on_frame`."""

    count = 0

    def __init__(self, world: World) -> None:
        Connection.count += 1
        self.world = world
        self.number = Connection.count
        self.transport: Any = None
        self.gone = asyncio.Event()
        self.frames = Frames()
        self.closing = False
        self.read_ns = 0
        self.sent_after_ns = 0
        self.drained = True

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self.drained and not self.frames.received:
            # The socket was empty at its last read or poll before this time.
            self.sent_after_ns = max(self.read_ns, self.world.polled_ns[0])
        self.read_ns = time.time_ns()
        self.drained = len(data) < READ_BYTES
        for kind, content in self.frames.feed(data):
            self.on_frame(kind, content)
        self.after_frames()

    def connection_lost(self, _error: Exception | None) -> None:
        self.closing = True
        self.on_end()
        self.gone.set()

    def write(self, data: bytes) -> None:
        if not self.closing:
            self.transport.write(data)

    @abc.abstractmethod
    def on_frame(self, kind: int, data: bytes) -> None:
        """Act on one frame."""

    def after_frames(self) -> None:
        """Act on the frames of one read."""

    def on_end(self) -> None:
        """Note that nothing more comes."""


class Publisher(Connection):
    """Publishes to all topics, round robin, with some commands outstanding."""

    def __init__(self, world: World, publisher: int, window: int) -> None:
        super().__init__(world)
        self.publisher = publisher
        self.window = window
        self.underway: collections.deque[tuple[int, range]] = collections.deque()

    def tick(self, left: int) -> int:
        """Send a few commands. Returns: how many messages of `left` remain."""
        parts: list[bytes] = []
        while left > 0 and len(self.underway) < self.window and len(parts) < 3:
            before = len(self.underway)
            parts += self.commands()
            left -= sum(len(indices) for _, indices in itertools.islice(self.underway, before, None))
        if parts:
            self.write(b"".join(parts))
        return left

    def commands(self) -> list[bytes]:
        """Make a PUB or DPUB, or some MPUBs to one topic, which the broker may store together."""
        world, rng = self.world, self.world.rng
        topic = rng.randrange(len(world.topics))
        name = world.topics[topic].name.encode()
        lot = rng.random()
        if lot < 0.2:
            return [self.batch(topic, name) for _ in range(rng.choice((1, 1, 2, 4)))]
        defer_ms = rng.randint(1, DELAY_MS_MAX) if lot < 0.5 else 0
        index, body = world.new_message(topic, self.publisher, defer_ms)
        self.underway.append((topic, range(index, index + 1)))
        head = b"DPUB %s %d\n" % (name, defer_ms) if defer_ms else b"PUB %s\n" % name
        return [head + sized(body)]

    def batch(self, topic: int, name: bytes) -> bytes:
        world, rng = self.world, self.world.rng
        first, count = world.topics[topic].sent, rng.randint(1, rng.choice(BATCHES_MAX))
        bodies = [world.new_message(topic, self.publisher, batch=(first, count))[1] for _ in range(count)]
        self.underway.append((topic, range(first, first + count)))
        inner = struct.pack(">i", count) + b"".join(map(sized, bodies))
        return b"MPUB " + name + b"\n" + sized(inner)

    def on_frame(self, kind: int, data: bytes) -> None:
        if data == b"_heartbeat_":
            self.write(b"NOP\n")
        elif (kind, data) == (0, b"OK"):
            self.world.acknowledge(*self.underway.popleft())
        else:
            self.world.note("daemon_failures", f"a publish was answered with {data!r}")


class Consumer(Connection):
    """Takes the messages of one channel and treats them as the channel's kind says."""

    def __init__(self, world: World, channel: Channel, rdy: int, rough: bool = True) -> None:
        super().__init__(world)
        self.channel = channel
        self.rdy = rdy
        self.rough = rough
        self.subscribed = asyncio.Event()
        self.out: list[bytes] = []
        self.acts: list[Act] = []
        self.fenced: collections.deque[tuple[bytes, int, list[Act]]] = collections.deque()
        self.failed: collections.Counter[bytes] = collections.Counter()
        self.fence_count = 0
        self.answers = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        names = (self.world.name_of_topic(self.channel).encode(), self.channel.name.encode())
        self.write(identify(output_buffer_timeout=25) + b"SUB %s %s\n" % names)

    def on_frame(self, kind: int, data: bytes) -> None:
        if kind == MESSAGE:
            self.on_message(data)
        elif kind == ERROR:
            self.on_error(data)
        elif data == b"_heartbeat_":
            self.out.append(b"NOP\n")
        else:
            self.answers += 1
            if self.answers == 2:
                self.subscribed.set()
                self.out.append(b"RDY %d\n" % self.rdy)

    def on_message(self, data: bytes) -> None:
        attempts = int.from_bytes(data[8:10], "big")
        guid = data[10:26]
        key = self.world.take(self.channel, guid, data[26:], attempts, self.number, self.sent_after_ns)
        if key is None:
            self.out.append(b"FIN %s\n" % guid)
        else:
            self.act(self.choose(attempts), guid, key)

    def choose(self, attempts: int) -> str:
        if not self.rough or attempts > ATTEMPTS_MAX:
            return "fin"
        lot = self.world.rng.randrange(100)
        for action, percent in ACTIONS[self.channel.kind]:
            if lot < percent:
                return action
            lot -= percent
        return "fin"

    def act(self, action: str, guid: bytes, key: Any) -> None:
        """Answer a message."""
        channel = self.channel
        if self.closing or action == "hold":
            return
        copy = channel.copies[key]
        if action in ("fin", "touch"):
            self.out.append(b"FIN %s\n" % guid if action == "fin" else b"TOUCH %s\nFIN %s\n" % (guid, guid))
            channel.send_fin(key)
            action = "fin"
        else:
            delay_ms = self.world.rng.randint(1, DELAY_MS_MAX) if action == "delay" else 0
            self.out.append(b"REQ %s %d\n" % (guid, delay_ms))
            waits = delay_ms and not channel.is_spent(copy.attempts)
            copy.not_before_ns = time.time_ns() + delay_ms * MS_NS if waits else 0
            copy.requeued = True
            channel.requeues_sent += 1
        self.acts.append((action, guid, key))

    def on_error(self, data: bytes) -> None:
        words = data.split()
        if self.fenced and words[0] == b"E_FIN_FAILED" and words[2] == self.fenced[0][0]:
            _, written_ns, acts = self.fenced.popleft()
            self.confirm(acts, written_ns)
            self.failed.clear()
        elif words[0] in (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"):
            # Its time was over when the command came, or a seek has taken it back.
            if words[0] != b"E_TOUCH_FAILED":
                self.failed[words[2]] += 1
        elif not self.channel.deleted:
            self.world.note("daemon_failures", f"a consumer was answered with {data!r}")

    def confirm(self, acts: list[Act], written_ns: int) -> None:
        """Note that the daemon has processed these commands.

        A message that timed out and came again may have several of them, and an error does not identify the failed one.
        """
        by_guid: dict[bytes, list[Act]] = {}
        for act in acts:
            by_guid.setdefault(act[1], []).append(act)
        for guid, same in by_guid.items():
            key, failed = same[0][2], self.failed[guid]
            fins = sum(action == "fin" for action, _, _ in same)
            self.channel.unanswered_fins[key] -= fins
            if 0 < fins < len(same) and 0 < failed < len(same):
                # The count of requeues stays between those confirmed and those sent.
                self.channel.doubt_fin(key)
                continue
            if fins:
                self.confirm_fin(key, written_ns, failed < len(same))
            self.confirm_requeues(len(same) - fins, failed if fins < len(same) else 0)
            copy = self.channel.copies.get(key)
            if failed and copy is not None:
                copy.not_before_ns = 0

    def confirm_fin(self, key: Any, written_ns: int, succeeded: bool) -> None:
        if succeeded:
            self.channel.finish(key, written_ns)
            self.world.totals["finished_confirmed"] += 1
        else:
            self.channel.fail_fin(key)

    def confirm_requeues(self, count: int, failed: int) -> None:
        failed = min(count, failed)
        self.channel.requeues_sent -= failed
        self.channel.requeues_confirmed += count - failed
        self.world.totals["requeued"] += count - failed

    def after_frames(self) -> None:
        if self.acts:
            self.fence_count += 1
            fence = FENCE % self.fence_count
            self.fenced.append((fence.split()[1], time.time_ns(), self.acts))
            self.acts = []
            self.out.append(fence)
        if self.out:
            self.write(b"".join(self.out))
            self.out.clear()

    def on_end(self) -> None:
        for _, _, acts in self.fenced:
            for action, _, key in acts:
                copy = self.channel.copies.get(key)
                if action != "fin" and copy is not None:
                    # It may have been processed or not: it may come at once, at its time, or be in flight still.
                    copy.not_before_ns = 0
        self.fenced.clear()
