"""Draining a channel from tasks, driven by hand: no kill loses a message; repeated messages have one id."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest

from pyqd_spark import channel
from pyqd_spark.brokers import BrokerError, UnreachableError
from pyqd_spark.channel import ChannelReadSettings, ManifestRow, PyqdChannelDataSource, PyqdChannelReader, TakenBatch
from pyqd_spark.nsq_client import BrokenError, NsqClient
from pyqd_spark.options import OptionError
from tests.support import nsq
from tests.support.server import REPOSITORY, Daemon, free_port, pyqd, wait_until
from tests.support.spark_side import Starter, http_address, parametrize_implementation, tcp_address

pytest_generate_tests = parametrize_implementation

WAIT_S = 30.0
real_land = channel.land


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "landed"


def fill(daemon: Daemon, count: int, first: int = 0) -> list[bytes]:
    """Publish messages that the channel gets, after those of earlier calls. Returns: their bodies."""
    daemon.http("POST", "/topic/create", topic="t")
    daemon.http("POST", "/channel/create", topic="t", channel="c")
    bodies = [b"message %d" % number for number in range(first, first + count)]
    with nsq.Client(daemon.tcp_address) as client:
        client.mpub("t", bodies)
    return bodies


def options(daemon: Daemon, path: Path, **more: object) -> dict[str, str]:
    given = {"nsqd": http_address(daemon), "topic": "t", "channel": "c", "path": path, "idleTimeoutMs": 1000, **more}
    return {name: str(value) for name, value in given.items()}


def drain(given: dict[str, str]) -> list[dict[str, Any]]:
    """Read the table, one partition after the other. Returns: its rows."""
    reader = PyqdChannelReader(ChannelReadSettings.of(given))
    return [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]


def landed(path: Path) -> pa.Table:
    """Return the rows that readers of the directory see; hidden files are skipped, as Spark does."""
    return pyarrow.dataset.dataset(path, format="parquet").to_table()


def bodies_in(path: Path) -> list[bytes]:
    return sorted(landed(path)["value"].to_pylist())


def test_all_messages_of_a_channel_are_landed_and_finished(daemon: Daemon, path: Path) -> None:
    bodies = fill(daemon, 2500)
    rows = drain(options(daemon, path, batchMessages=1000))
    table = landed(path)
    assert bodies_in(path) == sorted(bodies)
    assert sum(row["count"] for row in rows) == 2500
    assert {Path(row["file"]) for row in rows} == set(path.iterdir())
    assert [row["unfinished"] for row in rows] == [0] * len(rows)
    assert {(row["topic"], row["channel"]) for row in rows} == {("t", "c")}
    assert set(table["node"].to_pylist()) == {row["node"] for row in rows}
    assert set(table["attempts"].to_pylist()) == {1}
    assert rows[0]["first_id"] in table["id"].to_pylist()
    assert [value.value // 1000 for value in table["timestamp_ns"].cast(pa.timestamp("ns"))] == [
        value.value for value in table["timestamp"]
    ]
    daemon.wait_for_channel("t", "c", depth=0, in_flight_count=0, deferred_count=0)


def test_the_node_is_the_one_that_reading_by_position_names(start: Starter, path: Path) -> None:
    daemon = start(pyqd())
    fill(daemon, 1)
    node = daemon.http("GET", "/topic/positions", topic="t").json()["node"]
    assert [row["node"] for row in drain(options(daemon, path, maxMessages=1))] == [node]


def test_the_node_is_the_address_if_only_the_address_is_known(daemon: Daemon, path: Path) -> None:
    fill(daemon, 1)
    given = options(daemon, path, nsqdTcp=tcp_address(daemon), maxMessages=1)
    del given["nsqd"]
    assert [row["node"] for row in drain(given)] == [tcp_address(daemon)]


def test_a_channel_without_messages_gives_no_rows_and_no_files(daemon: Daemon, path: Path) -> None:
    fill(daemon, 1)
    daemon.http("POST", "/channel/empty", topic="t", channel="c")
    assert drain(options(daemon, path, idleTimeoutMs=100)) == []
    assert list(path.iterdir()) == []


def test_no_more_is_taken_than_max_messages_and_the_rest_stays(daemon: Daemon, path: Path) -> None:
    fill(daemon, 1000)
    rows = drain(options(daemon, path, maxMessages=301, connections=2, batchMessages=40))
    assert sum(row["count"] for row in rows) == 301
    assert len(set(bodies_in(path))) == 301
    daemon.wait_for_channel("t", "c", depth=699, in_flight_count=0)


def test_max_messages_is_shared_by_the_connections(start: Starter, path: Path) -> None:
    daemon = start(pyqd())
    reader = PyqdChannelReader(ChannelReadSettings.of(options(daemon, path, maxMessages=5, connections=3)))
    assert [each.share for each in reader.partitions() if isinstance(each, channel.ChannelPartition)] == [2, 2, 1]
    fewer = PyqdChannelReader(ChannelReadSettings.of(options(daemon, path, maxMessages=1, connections=3)))
    assert len(fewer.partitions()) == 1


def test_a_task_that_ends_in_time_lands_the_messages_it_has_received(
    start: Starter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start(pyqd())
    fill(daemon, 5000)
    published = threading.Event()

    def slow_land(*arguments: Any) -> ManifestRow:
        published.wait(0.05)
        return real_land(*arguments)

    monkeypatch.setattr(channel, "land", slow_land)
    # On a machine with other work the first message may take a while; all of them take five seconds and more.
    rows = drain(options(daemon, path, maxDurationMs=1000, batchMessages=50))
    count = sum(row["count"] for row in rows)
    assert 0 < count < 5000
    assert len(bodies_in(path)) == count
    daemon.wait_for_channel("t", "c", depth=5000 - count, in_flight_count=0)


def test_a_batch_in_which_bytes_are_many_is_landed_early(start: Starter, path: Path) -> None:
    daemon = start(pyqd())
    daemon.http("POST", "/topic/create", topic="t")
    daemon.http("POST", "/channel/create", topic="t", channel="c")
    with nsq.Client(daemon.tcp_address) as client:
        client.mpub("t", [b"x" * 10_000] * 100)
    rows = drain(options(daemon, path, batchBytes=50_000, maxMessages=100))
    assert sum(row["count"] for row in rows) == 100
    # One receive may return a few more messages than requested.
    assert len(rows) > 5


def test_rdy_is_two_batches_at_most(start: Starter, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = start(pyqd())
    fill(daemon, 1000)
    seen = []

    def watching_land(*arguments: Any) -> ManifestRow:
        stats = daemon.channel("t", "c")
        assert stats is not None
        seen.append((stats["in_flight_count"], stats["clients"][0]["ready_count"]))
        return real_land(*arguments)

    monkeypatch.setattr(channel, "land", watching_land)
    drain(options(daemon, path, batchMessages=100, maxMessages=1000))
    assert len(seen) >= 5
    assert max(max(pair) for pair in seen) <= 200


def test_nothing_is_finished_that_could_not_be_landed(
    daemon: Daemon, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = fill(daemon, 300)

    def failing_land(*_: Any) -> ManifestRow:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(channel, "land", failing_land)
    with pytest.raises(OSError, match="No space left"):
        drain(options(daemon, path))
    assert list(path.iterdir()) == []
    # Given back at once, not when their leases end.
    daemon.wait_for_channel("t", "c", in_flight_count=0, depth=300)
    monkeypatch.setattr(channel, "land", real_land)
    drain(options(daemon, path))
    assert bodies_in(path) == sorted(bodies)


def test_leases_are_renewed_while_a_batch_lands(daemon: Daemon, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(daemon, 20)
    touched: Counter[bytes] = Counter()
    enough = threading.Event()
    real_send = NsqClient.send

    def watching_send(self: NsqClient, data: bytes) -> None:
        real_send(self, data)
        touched.update(line.split(b" ")[1] for line in data.split(b"\n") if line.startswith(b"TOUCH"))
        if len(touched) == 20 and min(touched.values()) >= 2:
            enough.set()

    def waiting_land(*arguments: Any) -> ManifestRow:
        assert enough.wait(WAIT_S)
        return real_land(*arguments)

    monkeypatch.setattr(NsqClient, "send", watching_send)
    monkeypatch.setattr(channel, "land", waiting_land)
    rows = drain(options(daemon, path, msgTimeoutMs=3000, idleTimeoutMs=2000))
    assert set(landed(path)["id"].to_pylist()) == {message_id.decode() for message_id in touched}
    assert sum(row["count"] for row in rows) >= 20


def test_a_broker_whose_host_name_cannot_exist_is_named() -> None:
    with pytest.raises(BrokenError, match=r"^a\.\.b:4150: "):
        NsqClient("a..b:4150", 1.0)


def test_messages_that_could_not_be_finished_are_counted(
    daemon: Daemon, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(daemon, 30)

    def emptying_land(*arguments: Any) -> ManifestRow:
        row = real_land(*arguments)
        # Takes the messages in flight away from their client.
        daemon.http("POST", "/channel/empty", topic="t", channel="c")
        return row

    monkeypatch.setattr(channel, "land", emptying_land)
    rows = drain(options(daemon, path))
    assert sum(row["count"] for row in rows) == 30
    assert sum(row["unfinished"] for row in rows) == 30


def test_no_messages_are_taken_if_the_directory_is_not_that_of_the_driver(daemon: Daemon, path: Path) -> None:
    fill(daemon, 10)
    reader = PyqdChannelReader(ChannelReadSettings.of(options(daemon, path)))
    [part] = reader.partitions()
    path.rmdir()
    with pytest.raises(BrokerError, match=r"landed is not there on .*executors and driver have to share it"):
        reader.read(part)
    daemon.wait_for_channel("t", "c", depth=10, in_flight_count=0)


def test_a_refusal_of_the_broker_fails_the_task_with_its_text(daemon: Daemon, path: Path) -> None:
    with pytest.raises(BrokerError, match=r"subscribing to no/topic, channel c: E_BAD_TOPIC SUB topic name"):
        drain(options(daemon, path, topic="no/topic"))


def test_a_broker_that_is_not_there_fails_the_task(path: Path) -> None:
    given = {"nsqdTcp": f"127.0.0.1:{free_port()}", "topic": "t", "channel": "c", "path": str(path)}
    with pytest.raises(UnreachableError, match="Connection refused"):
        drain({**given, "retryTimeoutMs": "0"})


@contextlib.contextmanager
def breaking_broker(closes_after: bytes | None) -> Iterator[str]:
    """Give the address of a server that takes subscribers and then closes each connection, or never answers again.

    closes_after: the command that ends a connection; None if it goes on in silence.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                seen = b""
                while closes_after is None or closes_after not in seen:
                    data = connection.recv(1 << 16)
                    if not data:
                        return
                    for command, answer in ((b"IDENTIFY", b"{}"), (b"SUB", b"OK")):
                        if command in data:
                            connection.sendall(nsq.int32(len(answer) + 4) + nsq.int32(nsq.RESPONSE) + answer)
                    seen += data

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        # Wakes the accepting thread, which closing alone does not.
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
@pytest.mark.parametrize("closes_after", [b"RDY", b"CLS", None])
def test_a_broker_whose_connections_always_break_is_reported_as_unreachable(
    path: Path, closes_after: bytes | None
) -> None:
    with breaking_broker(closes_after) as address:
        given = {"nsqdTcp": address, "topic": "t", "channel": "c", "path": str(path), "idleTimeoutMs": "100"}
        with pytest.raises(UnreachableError, match=r"breaks repeatedly, tried for 0\.5 s"):
            drain({**given, "requestTimeoutMs": "200", "retryTimeoutMs": "500"})


def test_a_connection_that_reaches_its_own_socket_is_no_broker(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    def own(*_: Any, **__: Any) -> socket.socket:
        # Result of connecting to a port that the system has given to the connecting socket itself.
        made.append(socket.socket())
        made[-1].bind(("127.0.0.1", 0))
        made[-1].connect(made[-1].getsockname())
        return made[-1]

    monkeypatch.setattr(socket, "create_connection", own)
    for name in ("nsqd", "nsqdTcp"):
        given = {name: "127.0.0.1:9", "topic": "t", "channel": "c", "path": str(path), "retryTimeoutMs": "0"}
        with pytest.raises(UnreachableError, match="reached its own socket"):
            drain(given)
    assert len(made) == 2
    assert [each.fileno() for each in made] == [-1, -1]


# Each batch waits for the disk, which others may keep busy, and the broker is started three times.
@pytest.mark.timeout(180)
def test_a_killed_broker_loses_nothing(start: Starter, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = start(pyqd())
    bodies = fill(daemon, 2000)
    batches: list[TakenBatch] = []

    def killing_land(settings: ChannelReadSettings, node: str, batch: TakenBatch) -> ManifestRow:
        row = real_land(settings, node, batch)
        batches.append(batch)
        if len(batches) in (2, 5):
            daemon.kill()
            daemon.start()
        return row

    monkeypatch.setattr(channel, "land", killing_land)
    rows = drain(options(daemon, path, batchMessages=200, retryTimeoutMs=30_000))
    assert len(batches) > 5
    assert set(bodies_in(path)) == set(bodies)
    assert len(set(landed(path)["id"].to_pylist())) == 2000
    assert sum(row["count"] for row in rows) == len(bodies_in(path))
    daemon.wait_for_channel("t", "c", depth=0, in_flight_count=0)


# A worker as Spark has one, which dies at the k-th FIN, when its file is there, or when a signal comes.
WORKER = """
    import json, os, signal, sys
    from pyqd_spark import channel
    from pyqd_spark.channel import ChannelReadSettings, PyqdChannelReader
    from pyqd_spark.nsq_client import NsqClient

    given, left = json.loads(sys.argv[1]), int(sys.argv[2])
    send, land = NsqClient.send, channel.land

    def dying_send(self, data):
        global left
        if b"FIN " in data:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        send(self, data)

    def telling_land(*arguments):
        print("landing", flush=True)
        return land(*arguments)

    NsqClient.send, channel.land = dying_send, telling_land
    reader = PyqdChannelReader(ChannelReadSettings.of(given))
    for partition in reader.partitions():
        for batch in reader.read(partition):
            print(sum(batch["count"].to_pylist()), flush=True)
"""


def worker(given: dict[str, str], dies_at_fin: int) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "spark")])}
    command = [sys.executable, "-c", textwrap.dedent(WORKER), json.dumps(given), str(dies_at_fin)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_task_killed_before_fin_gives_its_last_batch_twice_with_the_same_ids(daemon: Daemon, path: Path) -> None:
    bodies = fill(daemon, 1000)
    # The messages of a dead client come again soon; a later drain has all the time it needs.
    dying, given = options(daemon, path, batchMessages=100, msgTimeoutMs=1000), options(daemon, path)
    with worker(dying, dies_at_fin=3) as process:
        process.communicate(timeout=WAIT_S)
    assert process.returncode == -signal.SIGKILL
    # Whole files only: those whose FIN was sent, and the one whose FIN was not.
    before = landed(path)["id"].to_pylist()
    assert len(list(path.glob("*.parquet"))) == 3
    channel_left(daemon, given)
    ids = Counter(landed(path)["id"].to_pylist())
    assert set(bodies_in(path)) == set(bodies)
    assert len(ids) == 1000
    twice = {message_id for message_id, count in ids.items() if count > 1}
    assert twice
    assert twice <= set(before)
    same = landed(path).group_by(["topic", "node", "id"]).aggregate([("value", "count_distinct")])
    assert same["value_count_distinct"].to_pylist() == [1] * 1000


def channel_left(daemon: Daemon, given: dict[str, str]) -> None:
    """Drain until nothing is left, including the messages of a dead client, which come when its lease has ended."""

    def is_empty() -> bool:
        drain(given)
        stats = daemon.channel("t", "c")
        return stats is not None and stats["depth"] == stats["in_flight_count"] == 0

    wait_until(is_empty, "the channel is empty", WAIT_S)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_task_killed_at_any_time_loses_nothing(start: Starter, path: Path, seed: int) -> None:
    daemon = start(pyqd())
    bodies = fill(daemon, 3000)
    dying, given = options(daemon, path, batchMessages=100, msgTimeoutMs=1000), options(daemon, path)
    chance = random.Random(seed)
    with worker(dying, dies_at_fin=0) as process:
        assert process.stdout is not None
        for _ in range(chance.randint(1, 10)):
            process.stdout.readline()
        threading.Event().wait(chance.random() / 50)
        process.kill()
    files = list(path.glob("*.parquet"))
    before = set(pyarrow.dataset.dataset(files, format="parquet").to_table()["id"].to_pylist()) if files else set()
    channel_left(daemon, given)
    ids = Counter(landed(path)["id"].to_pylist())
    assert set(bodies_in(path)) == set(bodies)
    assert len(ids) == 3000
    assert {message_id for message_id, count in ids.items() if count > 1} <= before


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"chanel": "c"}, 'no option "chanel"; did you mean "channel"?'),
        ({"channel": None}, "option channel is needed"),
        ({"topic": "a b"}, "option topic='a b': not a valid name"),
        ({"path": "s3://bucket/x"}, "only paths of file systems"),
        ({"nsqd": None}, "exactly one of nsqd, lookupd, nsqdTcp"),
        ({"compression": "rar"}, "expected one of zstd"),
        ({"idleTimeoutMs": "5"}, "from 100 to"),
    ],
)
def test_options_that_make_no_sense_are_named_before_anything_runs(changed: dict[str, Any], said: str) -> None:
    given = {"nsqd": "a", "topic": "t", "channel": "c", "path": "/nowhere", **changed}
    source = PyqdChannelDataSource({name: value for name, value in given.items() if value is not None})
    with pytest.raises(OptionError) as raised:
        source.reader(None)  # type: ignore[arg-type]
    assert said in str(raised.value)


def test_an_empty_plan_reads_as_nothing() -> None:
    settings = ChannelReadSettings.of({"nsqd": "a", "topic": "t", "channel": "c", "path": "/nowhere"})
    assert list(PyqdChannelReader(settings).read(None)) == []
