"""With --sync-fin no finished message comes again after a power cut, except those in flight."""

import contextlib
import random
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import gevent
import pytest

from pyqd.api.admin import AdminRoutes
from pyqd.broker.broker import Broker
from pyqd.durability.fin_sync import FinSync
from pyqd.durability.syncer import Syncer, run_inline
from pyqd.hot.broker.replay import seek
from pyqd.http.messages import Request
from tests.persistence.power_daemon import PowerDaemon
from tests.persistence.test_power_cuts import run_now
from tests.support.invariants import check_channel
from tests.support.nsq import fin, rdy, req
from tests.support.power import Change, PowerFiles
from tests.support.storage import Jobs, broker_on, consumer_on, run_all_wakes

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

WAIT_S = 20
MESSAGES = 60


def unfinished(broker: Any) -> list[bytes]:
    """Return the bodies of all that channel c of topic t delivers after a start, delayed ones too."""
    channel = broker.topics["t"].channels_by_name["c"]
    consumer = consumer_on(channel)
    check_channel(channel)
    found = []
    # Delays are of a millisecond.
    time.sleep(0.002)
    broker.scheduler.run_timers(time.monotonic_ns() + 10**9)
    run_all_wakes(broker)
    while (taken := channel.take_message(consumer)) is not None:
        found.append(taken[3])
    assert (channel.depth, channel.deferred_count) == (0, 0)
    return found


class Machine:
    """A broker with --sync-fin whose syncer never runs, on a disk whose power can be cut."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cut_count = 0
        (directory / "before").mkdir()
        self.start(directory / "before")

    def start(self, root: Path) -> None:
        """Start a broker on a disk's content, after a boot."""
        self.files = PowerFiles(root, f"boot {self.cut_count}", chance=0.0)
        self.broker = broker_on(root, self.files, sync_fin=True)
        self.broker.has_syncer = True
        # The channels opened by the start are not registered anywhere yet.
        self.fin_sync = FinSync(self.broker, run_now, gevent.get_hub().loop.run_callback)
        self.channel = self.broker.topic("t").channel("c")
        self.channel.on_finished = self.fin_sync.note
        self.channel.dead_letters.durable = True
        self.consumer: Any = consumer_on(self.channel)

    def publish(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.broker.topic("t").publish_body(body, time.time_ns())
        assert Syncer(self.broker, run_inline).sync_dirty()

    def take(self, count: int) -> dict[bytes, int]:
        """Take messages. Returns: {body: id}."""
        run_all_wakes(self.broker)
        taken = {}
        for _ in range(count):
            message = self.channel.take_message(self.consumer)
            assert message is not None
            taken[message[3]] = message[0]
        return taken

    def finish(self, *guids: int) -> None:
        """FIN, and wait until that counts no more."""
        for guid in guids:
            assert self.channel.finish_message(self.consumer, guid) == 0
        gevent.sleep(0)
        assert self.consumer.unsynced_count == 0

    @contextlib.contextmanager
    def after_cut(self, written: tuple[Change, ...]) -> Iterator[Broker]:
        """Return a broker after a power cut now, the kernel having written some of the dirty pages."""
        self.cut_count += 1
        root = self.directory / f"after {self.cut_count}"
        self.files.cut(root, written)
        files = PowerFiles(root, f"boot {self.cut_count}", chance=0.0)
        broker = broker_on(root, files, sync_fin=True)
        yield broker
        broker.close()
        files.close()

    def left(self, written: tuple[Change, ...]) -> list[bytes]:
        """Return the channel's messages after such a power cut."""
        with self.after_cut(written) as broker:
            return unfinished(broker)

    def paused_after(self, written: tuple[Change, ...]) -> bool:
        """Return whether the channel is paused after such a power cut."""
        with self.after_cut(written) as broker:
            return broker.topics["t"].channels_by_name["c"].paused

    def subsets(self) -> list[tuple[Change, ...]]:
        """Return the subsets of the dirty changes, or some if there are many."""
        changes = self.files.changes()
        subsets = [each for size in range(len(changes) + 1) for each in combinations(changes, size)]
        return random.Random(1).sample(subsets, min(len(subsets), 32))

    def left_whatever_is_written(self) -> list[list[bytes]]:
        """Return the channel's messages after a power cut, for each of `subsets`."""
        return [self.left(each) for each in self.subsets()]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.broker.close()
    machine.files.close()


def test_messages_finished_out_of_order_stay_finished_when_the_oldest_is_finished(machine: Machine) -> None:
    machine.publish([b"0", b"1", b"2", b"3"])
    ids = machine.take(4)
    machine.finish(ids[b"1"], ids[b"2"])
    # The floor passes over both of these, and no sync covers that.
    machine.channel.finish_message(machine.consumer, ids[b"0"])
    for left in machine.left_whatever_is_written():
        assert set(left) <= {b"0", b"3"}
        assert b"3" in left


def test_a_second_lap_of_the_ring_takes_nothing_back(machine: Machine) -> None:
    machine.publish([b"%d" % number for number in range(300)])
    ids = machine.take(300)
    numbers = list(range(300))
    random.Random(2).shuffle(numbers)
    for number in numbers[:250]:
        machine.finish(ids[b"%d" % number])
    for number in numbers[250:260]:
        machine.channel.finish_message(machine.consumer, ids[b"%d" % number])
    for left in machine.left_whatever_is_written():
        assert set(left) <= {b"%d" % number for number in numbers[250:]}
        assert set(left) >= {b"%d" % number for number in numbers[260:]}


def test_a_delayed_message_that_is_finished_does_not_come_again_as_the_one_before_the_delay(machine: Machine) -> None:
    machine.publish([b"0", b"1"])
    ids = machine.take(2)
    assert machine.channel.requeue_message(machine.consumer, ids[b"0"], 1) == 0
    time.sleep(0.002)
    machine.broker.scheduler.run_timers(time.monotonic_ns())
    assert machine.take(1) == {b"0": ids[b"0"]}
    machine.finish(ids[b"0"])
    for left in machine.left_whatever_is_written():
        assert left == [b"1"]


@pytest.mark.parametrize("target", [2, 4])
def test_a_seek_that_a_power_cut_takes_back_brings_nothing_back_that_was_finished(
    machine: Machine, target: int
) -> None:
    machine.publish([b"%d" % number for number in range(5)])
    ids = machine.take(5)
    machine.finish(ids[b"1"], ids[b"3"])
    seek(machine.channel, target)
    again = {b"%d" % number for number in range(target, 5)}
    for left in machine.left_whatever_is_written():
        assert set(left) in (again, {b"0", b"2", b"4"})


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("meanwhile", ["nothing", "published", "finished"])
def test_a_channel_emptied_after_preparations_brings_nothing_back_that_was_finished(
    machine: Machine, meanwhile: str, prepared: bool
) -> None:
    channel = machine.channel
    machine.publish([b"%d" % number for number in range(5)])
    ids = machine.take(5)
    machine.finish(ids[b"1"], ids[b"3"])
    jobs = Jobs()
    machine.broker.in_background = jobs.submit
    end = channel.readable.end
    channel.begin_reset(end, end)
    assert channel.waits.prepares_reset
    if meanwhile != "nothing":
        machine.publish([b"5"])
    if meanwhile == "finished":
        machine.finish(machine.take(1)[b"5"])
    if prepared:
        jobs.run()
    channel.empty()
    channel.leave_reset()
    assert channel.depth + channel.in_flight_count == 0
    may = {b"0", b"2", b"4"} | ({b"5"} if meanwhile == "published" else set())
    lefts = [set(left) for left in machine.left_whatever_is_written()]
    assert all(left <= may for left in lefts), lefts
    assert set() in lefts
    jobs.run()


def test_a_pause_before_a_channel_is_emptied_after_preparations_stays(machine: Machine) -> None:
    channel = machine.channel
    machine.publish([b"%d" % number for number in range(3)])
    machine.finish(machine.take(3)[b"1"])
    jobs = Jobs()
    machine.broker.in_background = jobs.submit
    with channel.prepared_reset(jobs.run):
        channel.pause(True)
        assert Syncer(machine.broker, run_inline).sync_dirty()
        channel.empty()
    for written in machine.subsets():
        assert machine.paused_after(written)


def test_the_answer_that_a_channel_is_empty_or_paused_leaves_when_no_power_cut_can_undo_that(machine: Machine) -> None:
    routes = AdminRoutes(machine.broker, run_inline)
    # A message finished out of order makes each reset continue in a new file, whose name is not durable by itself.
    machine.publish([b"0", b"1"])
    machine.finish(machine.take(2)[b"1"])
    assert routes.empty_channel(Request("POST", "/channel/empty?topic=t&channel=c", "1.1", {})).status == 200
    assert not any(machine.left_whatever_is_written())
    machine.publish([b"2", b"3"])
    machine.finish(machine.take(2)[b"3"])
    seek(machine.channel, 3)
    assert routes.pause_channel(Request("POST", "/channel/pause?topic=t&channel=c", "1.1", {}), True).status == 200
    assert all(machine.paused_after(written) for written in machine.subsets())


@pytest.mark.slow
@pytest.mark.parametrize("ready", [1, 7])
@pytest.mark.parametrize("sync_every", [1, 1_000_000])
def test_a_power_cut_brings_back_no_more_than_a_consumers_rdy(tmp_path: Path, ready: int, sync_every: int) -> None:
    running = PowerDaemon(tmp_path, "--sync-fin", "--sync-timeout=1h", f"--sync-every={sync_every}")
    try:
        with running.client() as client:
            bodies = [b"%d" % number for number in range(MESSAGES)]
            client.mpub("t", bodies)
            client.sub("t", "c", rdy_count=ready)
            finished = []
            for number in range(MESSAGES - ready):
                message = client.read_message()
                if number % 5 == 3:
                    client.send(req(message.id, 1))
                else:
                    client.send(fin(message.id))
                    finished.append(message.body)
            # The last one to come says that no more than `ready` FINs before it are not on the disk.
            client.read_message()
            client.send(rdy(0))
            running.cut()
    finally:
        running.end()
    files = PowerFiles(tmp_path / "after", "after", chance=0.0)
    broker = broker_on(tmp_path / "after", files)
    found = unfinished(broker)
    # The one that came last is in flight.
    assert len(set(finished) & set(found)) <= ready - 1
    assert len(found) == len(set(found))
    broker.close()
    files.close()


@pytest.mark.slow
def test_a_consumer_gets_nothing_in_place_of_a_fin_whose_sync_fails_until_one_succeeds(tmp_path: Path) -> None:
    running = PowerDaemon(tmp_path, "--sync-fin", "--sync-timeout=200ms")
    try:
        with running.client() as client:
            client.mpub("t", [b"0", b"1", b"2"])
            client.sub("t", "c", rdy_count=1)
            client.fin(client.read_message())
            message = client.read_message()
            assert running.toggle_failing() == b"True\n"
            client.fin(message)
            with pytest.raises(TimeoutError):
                client.read_message(wait_s=1)
            assert running.toggle_failing() == b"False\n"
            assert client.read_message(wait_s=WAIT_S).body == b"2"
    finally:
        running.end()
