"""Tests of pyqd.lookupd.registry."""

import json
import random

import pytest

from pyqd.lookupd.registry import NO_TOMBSTONE, BitSet, Peer, RegisteredBroker, Registry
from pyqd.primitives.durations import SECOND_NS

NOW_NS = 1_800_000_000 * SECOND_NS
NAMES = ["a", "b", "b#ephemeral", "c"]


def peer_at(port: int) -> Peer:
    return Peer(f"127.0.0.1:{port}", "host", "broker", port, port + 1, "1.3.0")


def added(registry: Registry, port: int, now_ns: int = NOW_NS) -> RegisteredBroker:
    return registry.add(peer_at(port), now_ns)


def producers_of(registry: Registry, topic: str, now_ns: int = NOW_NS) -> list[int]:
    answer = registry.lookup(topic, now_ns)
    return [] if answer is None else sorted(each["tcp_port"] for each in json.loads(answer)["producers"])


def test_bits_are_a_set_of_numbers() -> None:
    chance, bits, expected = random.Random(1), BitSet(), set[int]()
    for _ in range(5000):
        number = chance.randrange(200)
        if chance.random() < 0.5:
            assert bits.add(number) == (number not in expected)
            expected.add(number)
        else:
            assert bits.discard(number) == (number in expected)
            expected.discard(number)
        assert (number in bits) == (number in expected)
    assert list(bits) == sorted(expected)
    assert len(bits) == len(expected)


def test_a_lookup_names_brokers_and_channels_of_a_topic() -> None:
    registry = Registry()
    first, second = added(registry, 1), added(registry, 2)
    registry.register(first, "t")
    registry.register(second, "t", "c")
    answer = registry.lookup("t", NOW_NS)
    assert answer is not None
    found = json.loads(answer)
    assert found["channels"] == ["c"]
    assert found["producers"][0] == {
        "remote_address": "127.0.0.1:1",
        "hostname": "host",
        "broadcast_address": "broker",
        "tcp_port": 1,
        "http_port": 2,
        "version": "1.3.0",
        "topology_zone": "",
        "topology_region": "",
    }
    assert producers_of(registry, "t") == [1, 2]
    assert registry.lookup("u", NOW_NS) is None


def test_names_stay_when_a_broker_leaves() -> None:
    registry = Registry()
    producer = added(registry, 1)
    registry.register(producer, "t#ephemeral", "c#ephemeral")
    registry.remove(producer)
    assert registry.topics() == ["t#ephemeral"]
    assert registry.channels("t#ephemeral") == ["c#ephemeral"]
    assert producers_of(registry, "t#ephemeral") == []


def test_the_last_unregister_deletes_ephemeral_registrations() -> None:
    registry = Registry()
    first, second = added(registry, 1), added(registry, 2)
    for producer in (first, second):
        registry.register(producer, "t#ephemeral", "c#ephemeral")
        registry.register(producer, "t#ephemeral", "kept")
    assert registry.unregister(first, "t#ephemeral", "c#ephemeral") == []
    assert registry.channels("t#ephemeral") == ["c#ephemeral", "kept"]
    registry.unregister(second, "t#ephemeral", "c#ephemeral")
    assert registry.channels("t#ephemeral") == ["kept"]
    assert registry.unregister(first, "t#ephemeral") == ["kept"]
    assert registry.topics() == ["t#ephemeral"]
    registry.unregister(second, "t#ephemeral")
    assert (registry.topics(), registry.channels("t#ephemeral")) == ([], ["kept"])


def test_the_end_of_a_topic_keeps_its_ephemeral_channels() -> None:
    registry = Registry()
    first, second = added(registry, 1), added(registry, 2)
    registry.register(first, "t", "c#ephemeral")
    registry.create_channel("t", "d#ephemeral")
    registry.register(second, "t")
    assert registry.unregister(second, "t") == []
    assert registry.unregister(first, "t") == ["c#ephemeral"]
    assert registry.channels("t") == ["c#ephemeral", "d#ephemeral"]


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_broker_is_hidden_without_ping_and_back_with_the_next(asked_before: bool) -> None:
    registry = Registry(inactive_ns=10 * SECOND_NS)
    producer = added(registry, 1)
    registry.register(producer, "t")
    if asked_before:
        assert producers_of(registry, "t") == [1]
    assert producers_of(registry, "t", NOW_NS + 10 * SECOND_NS) == [1]
    assert producers_of(registry, "t", NOW_NS + 10 * SECOND_NS + 1) == []
    assert list(registry.nodes(NOW_NS + 10 * SECOND_NS + 1)) == []
    registry.ping(producer, NOW_NS + 20 * SECOND_NS)
    assert producers_of(registry, "t", NOW_NS + 20 * SECOND_NS) == [1]
    assert len(list(registry.nodes(NOW_NS + 20 * SECOND_NS))) == 1


def test_a_tombstone_hides_a_broker_of_one_topic_for_a_while() -> None:
    registry = Registry(tombstone_ns=5 * SECOND_NS)
    producer = added(registry, 1)
    for topic in ("t", "u"):
        registry.register(producer, topic)
        assert producers_of(registry, topic) == [1]
    assert registry.tombstone("t", "broker:2", NOW_NS) == 1
    assert registry.tombstone("t", "broker:3", NOW_NS) == 0
    assert (producers_of(registry, "t"), producers_of(registry, "u")) == ([], [1])
    [node] = map(json.loads, registry.nodes(NOW_NS))
    assert (node["topics"], node["tombstones"]) == (["t", "u"], [True, False])
    assert producers_of(registry, "t", NOW_NS + 5 * SECOND_NS) == [1]
    rows = dict(registry.debug(SECOND_NS))
    assert (rows["topic:t:"][0]["tombstoned"], rows["topic:t:"][0]["tombstoned_at"]) == (True, NOW_NS + SECOND_NS)
    assert (rows["topic:u:"][0]["tombstoned"], rows["topic:u:"][0]["tombstoned_at"]) == (False, NO_TOMBSTONE)


@pytest.mark.parametrize("node", ["::1:4151", "[::1]:4151"])
def test_a_tombstone_names_an_ipv6_address_with_or_without_brackets(node: str) -> None:
    registry = Registry()
    producer = registry.add(Peer("[::1]:60000", "host", "::1", 4150, 4151, "1.3.0"), NOW_NS)
    registry.register(producer, "t")
    assert registry.tombstone("t", "::1:4150", NOW_NS) == registry.tombstone("t", "1:4151", NOW_NS) == 0
    assert registry.tombstone("t", node, NOW_NS) == 1
    assert producers_of(registry, "t") == []


def test_registering_again_ends_a_tombstone_only_after_unregister() -> None:
    registry = Registry()
    producer = added(registry, 1)
    registry.register(producer, "t")
    registry.tombstone("t", "broker:2", NOW_NS)
    registry.register(producer, "t")
    assert producers_of(registry, "t") == []
    registry.unregister(producer, "t")
    registry.register(producer, "t")
    assert producers_of(registry, "t") == [1]


def test_a_star_stands_for_all_topics() -> None:
    registry = Registry()
    first, second = added(registry, 1), added(registry, 2)
    registry.register(first, "t", "c")
    registry.register(first, "u", "c")
    registry.register(second, "u", "d")
    assert registry.channels("*") == ["c", "c", "d"]
    assert producers_of(registry, "*") == [1, 2]
    list(registry.topic_deletion("*"))
    assert (registry.topics(), registry.channels("*"), registry.lookup("*", NOW_NS)) == ([], [], None)
    assert list(registry.places_of(first)) == []


class Model:
    """Model of a registry: plain sets of registered ports, beside a registry that gets the same calls."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.registry = Registry()
        self.producers: list[RegisteredBroker] = []
        self.held: dict[tuple[str, str], set[int]] = {}
        self.port = 10_000

    def step(self) -> None:
        kinds = [self.connect, self.leave, self.register, self.unregister, self.delete_topic, self.delete_channel]
        topic, channel = self.chance.choice(NAMES), self.chance.choice(["", *NAMES])
        [kind] = self.chance.choices([*kinds, self.create], weights=[10, 5, 40, 35, 3, 3, 4])
        kind(topic, channel)

    def connect(self, _topic: str, _channel: str) -> None:
        self.port += 1
        self.producers.append(added(self.registry, self.port))

    def leave(self, _topic: str, _channel: str) -> None:
        if self.producers:
            gone = self.producers.pop(self.chance.randrange(len(self.producers)))
            self.registry.remove(gone)
            for ports in self.held.values():
                ports.discard(gone.peer.tcp_port)

    def register(self, topic: str, channel: str) -> None:
        if self.producers:
            producer = self.chance.choice(self.producers)
            self.registry.register(producer, topic, channel)
            for key in {(topic, ""), (topic, channel)}:
                self.held.setdefault(key, set()).add(producer.peer.tcp_port)

    def unregister(self, topic: str, channel: str) -> None:
        if self.producers:
            producer = self.chance.choice(self.producers)
            self.registry.unregister(producer, topic, channel)
            named = (topic, channel)
            for key, ports in self.held.items():
                if key == named or (key[0] == topic and not channel):
                    ports.discard(producer.peer.tcp_port)
            # Channels stay without their topic, ephemeral ones included.
            if not self.held.get(named, {0}) and (channel or topic).endswith("#ephemeral"):
                del self.held[named]

    def delete_topic(self, topic: str, _channel: str) -> None:
        list(self.registry.topic_deletion(topic))
        self.held = {key: ports for key, ports in self.held.items() if key[0] != topic}

    def delete_channel(self, topic: str, channel: str) -> None:
        if channel:
            assert self.registry.delete_channel(topic, channel) == (self.held.pop((topic, channel), None) is not None)

    def create(self, topic: str, channel: str) -> None:
        if channel:
            self.registry.create_channel(topic, channel)
            for key in ((topic, ""), (topic, channel)):
                self.held.setdefault(key, set())

    def check(self) -> None:
        assert self.registry.topics() == sorted(key[0] for key in self.held if not key[1])
        assert self.registry.counts()["registrations"] == sum(map(len, self.held.values()))
        for name in NAMES:
            assert self.registry.channels(name) == sorted(key[1] for key in self.held if key[0] == name and key[1])
            assert producers_of(self.registry, name) == sorted(self.held.get((name, ""), ()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_random_registrations_agree_with_a_plain_model(seed: int) -> None:
    model = Model(seed)
    for _ in range(1500):
        model.step()
        model.check()
