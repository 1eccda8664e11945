"""Polls all brokers in a thread of its own, and keeps the newest numbers and the history of the last hour."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Final

from pyqd.admin.cluster import Cluster, ClusterNode, Stats
from pyqd.admin.durability import DurabilityReader, DurabilityState
from pyqd.admin.history import STEP_S, History, Key
from pyqd.admin.stats import ProcessStats, TopicStats
from pyqd.admin.upstream import UpstreamError

INTERVAL_S: Final = 2.0
# While nobody looks, a point of the history is enough.
UNSEEN_INTERVAL_S: Final = STEP_S
SEEN_FOR_S: Final = 30.0
# A poll may cost a broker this part of one core. Its answers take at least as long as its work.
SHARE_OF_CORE: Final = 0.01
INTERVAL_MAX_S: Final = 60.0
POLLS_COMPARED: Final = 10
# Time that a busy machine may take to wake the thread.
WAKE_S: Final = 1.0
# A broker that has not answered for this long is taken as gone: a restart is quicker, and charts of an outage go on.
GONE_S: Final = 120.0

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one time. number: counts the polls. failures: one text for each member that did not answer."""

    number: int = 0
    taken_s: float = 0.0
    took_s: float = 0.0
    nodes: tuple[ClusterNode, ...] = ()
    topics: dict[str, TopicStats] = dataclasses.field(default_factory=dict)
    failures: tuple[str, ...] = ()
    # The lookup daemons may know topics that no broker has.
    names: tuple[str, ...] = ()
    durability: dict[str, DurabilityState] = dataclasses.field(default_factory=dict)
    processes: dict[str, ProcessStats] = dataclasses.field(default_factory=dict)


class ClusterPoller:
    """Polls while it runs. Before the first poll the snapshot is empty, with the number 0."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.snapshot = Snapshot()
        self.history = History()
        self._durability = DurabilityReader(cluster.upstream)
        self.interval_s = INTERVAL_S
        self._seen_s = -SEEN_FOR_S
        # Time that the answers of each broker took, in each of the last polls.
        self._spent_s: dict[str, deque[float]] = {}
        # The time of the last answer of each broker, and its topics.
        self._held: dict[str, tuple[float, list[str]]] = {}
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wake all that wait."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def wait_newer(self, number: int, timeout_s: float) -> Snapshot:
        """Return the newest snapshot as soon as its number is greater, or when the time is over."""
        with self._changed:
            was_unseen = not self._is_seen()
            self._seen_s = time.monotonic()
            if was_unseen:
                self._changed.notify_all()
            self._changed.wait_for(lambda: self.snapshot.number > number or self._is_stopped, timeout_s)
            return self.snapshot

    def poll(self) -> Snapshot:
        started_s = time.monotonic()
        before = dict(self.cluster.upstream.spent_s)
        found = self._read(self.snapshot.number + 1, started_s)
        self._record(found)
        self._adapt(found, before)
        with self._changed:
            self.snapshot = found
            self._changed.notify_all()
        return found

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                self.poll()
            except Exception:
                # A daemon that answers nonsense must not end the polling of the others.
                logger.exception("cannot poll the brokers")
            ended_s = time.monotonic()
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopped or self._is_seen(), self._pause_s())
                left_s = ended_s + self.interval_s - time.monotonic()
                self._changed.wait_for(lambda: self._is_stopped, max(0.0, left_s))

    def _adapt(self, snapshot: Snapshot, before: Mapping[str, float]) -> None:
        """Set the interval by the broker that takes longest to answer. before: times that were spent before the poll.

        A broker that does not answer counts by its earlier polls only: a time-out costs it nothing.
        """
        spent_s = self.cluster.upstream.spent_s
        slowest_s = 0.0
        polls = {node.http_address: self._spent_s.get(node.http_address) for node in snapshot.nodes}
        self._spent_s = {node: found or deque(maxlen=POLLS_COMPARED) for node, found in polls.items()}
        for node, found in self._spent_s.items():
            if node in snapshot.processes:
                found.append(spent_s.get(node, 0.0) - before.get(node, 0.0))
            # The quickest of the last polls was the least disturbed by other work on these machines.
            slowest_s = max(slowest_s, min(found, default=0.0))
        self.interval_s = min(INTERVAL_MAX_S, max(INTERVAL_S, slowest_s / SHARE_OF_CORE))

    def _is_seen(self) -> bool:
        """True if a page has waited for a poll lately."""
        return time.monotonic() - self._seen_s < SEEN_FOR_S

    def _pause_s(self) -> float:
        return max(self.interval_s, UNSEEN_INTERVAL_S)

    def _read(self, number: int, started_s: float) -> Snapshot:
        cluster = self.cluster
        failures: list[str] = []
        nodes: list[ClusterNode] = []
        rows: list[TopicStats] = []
        names: list[str] = []
        durability: dict[str, DurabilityState] = {}
        processes: dict[str, ProcessStats] = {}
        try:
            found = cluster.nodes()
            nodes, failures = found.value, list(found.failures)
            if cluster.lookupds:
                names = cluster.topics().value
            if nodes:
                stats = cluster.stats(nodes)
                assert isinstance(stats.value, Stats)
                rows, processes = stats.value.topics, stats.value.processes
                failures += stats.failures
            durability = self._durability.read(nodes)
        except UpstreamError as error:
            failures.append(str(error))
        by_name: dict[str, list[TopicStats]] = {}
        for row in rows:
            by_name.setdefault(row.topic, []).append(row)
        topics = {topic: TopicStats.total(topic, parts) for topic, parts in by_name.items()}
        took_s = time.monotonic() - started_s
        texts = tuple(dict.fromkeys(failures))
        return Snapshot(number, time.time(), took_s, tuple(nodes), topics, texts, tuple(names), durability, processes)

    def _record(self, snapshot: Snapshot) -> None:
        depth: dict[Key, int] = {}
        in_flight: dict[Key, int] = {}
        deferred: dict[Key, int] = {}
        for topic in snapshot.topics.values():
            key = (topic.topic,)
            depth[key] = topic.waiting
            for channel in topic.channels:
                place = (topic.topic, channel.channel)
                depth[place] = channel.sums["depth"]
                in_flight[place] = channel.sums["in_flight_count"]
        if snapshot.topics:
            depth[()] = sum(value for key, value in depth.items() if len(key) == 1)
            in_flight[()] = sum(in_flight.values())
            deferred[()] = sum(topic.channel_sum("deferred_count") for topic in snapshot.topics.values())
        disk_free: dict[Key, int] = {}
        for state in snapshot.durability.values():
            if state.disk_free_bytes is not None:
                disk_free[(state.node,)] = state.disk_free_bytes
        gauges: dict[str, Mapping[Key, int]] = {
            "depth": depth,
            "in_flight": in_flight,
            "deferred": deferred,
            "disk_free": disk_free,
            "node_depth": depth_of_nodes(snapshot),
            "node_memory": {
                (node,): process.in_use_bytes
                for node, process in snapshot.processes.items()
                if process.in_use_bytes is not None
            },
        }
        # A poll ends later than its pause by its own time, and by that of the poll before.
        bridged_s = self._pause_s() + 2 * snapshot.took_s + WAKE_S
        incomplete = self._incomplete_topics(snapshot)
        self.history.record(snapshot.taken_s, gauges, counters_of(snapshot), bridged_s, incomplete)

    def _incomplete_topics(self, snapshot: Snapshot) -> set[str]:
        """Return the topics of brokers that have answered within GONE_S, and not in this poll.

        Sums without these brokers would be dips, after which the topics seem to grow.
        """
        answered: dict[str, list[str]] = {node: [] for node in snapshot.processes}
        for total in snapshot.topics.values():
            for topic in total.nodes:
                answered[topic.node].append(topic.topic)
        now_s = snapshot.taken_s
        self._held = {node: found for node, found in self._held.items() if now_s - found[0] < GONE_S}
        self._held.update({node: (now_s, topics) for node, topics in answered.items()})
        return {topic for node, (_s, topics) in self._held.items() if node not in answered for topic in topics}


def depth_of_nodes(snapshot: Snapshot) -> dict[Key, int]:
    """Return the messages that wait at each broker, by its address."""
    depth: dict[Key, int] = {(node,): 0 for node in snapshot.processes}
    for total in snapshot.topics.values():
        for topic in total.nodes:
            depth[topic.node,] = depth.get((topic.node,), 0) + topic.waiting
    return depth


def counters_of(snapshot: Snapshot) -> dict[str, dict[Key, int]]:
    """Return the messages so far by broker: published to each topic, and taken from each channel."""
    counters: dict[str, dict[Key, int]] = {}
    for total in snapshot.topics.values():
        for topic in total.nodes:
            counts = counters.setdefault(topic.node, {})
            counts[topic.topic,] = topic.sums["message_count"]
            for channel in topic.channels:
                taken = channel.sums["message_count"] - channel.sums["depth"]
                counts[topic.topic, channel.channel] = max(0, taken)
    return counters
