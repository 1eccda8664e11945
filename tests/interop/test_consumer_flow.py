"""RDY, back-off and closing of pyqd.client beside go-nsq, command by command, on scripted brokers.

A test gives one expected list of commands if both libraries send the same, and one for each if they differ. The section
"Differences from go-nsq" in docs/client-conformance.md gives the reason for each difference.
"""

import asyncio
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from pyqd.client import Consumer, Message, Requeue, RetryPolicy, aio
from tests.support.scripted_broker import RESPONSE, WAIT_S, ScriptedBroker, frame, scripted_brokers, settle

pytestmark = pytest.mark.interop

# Begins the body of a message that RDY 1 of a back-off asks for.
PROBE = b"probe "
FLOW = ("RDY", "FIN", "REQ", "CLS", "closed")


@dataclass(frozen=True)
class Options:
    """Settings of a consumer; times in milliseconds."""

    max_in_flight: int = 1
    concurrency: int = 1
    backoff_multiplier_ms: int = 50
    max_backoff_ms: int = 60_000
    low_rdy_idle_ms: int = 10_000
    low_rdy_ms: int = 30_000
    redistribute_ms: int = 5000


class GoClient:
    """go-nsq in a process of its own: go/flow/main.go."""

    def __init__(self, program: Path, addresses: Sequence[str], options: Options, log: Path) -> None:
        flags = [f"-{name.replace('_', '-')}={value}" for name, value in asdict(options).items()]
        with log.open("wb") as stderr:
            command = [str(program), f"-addresses={','.join(addresses)}", *flags]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait_until_held(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "held\n"

    def release(self) -> None:
        self._say("release")

    def stop(self) -> None:
        self._say("stop")

    def wait_until_stopped(self) -> None:
        assert self._process.wait(WAIT_S) == 0

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        self._process.stdout.close()


class PyqdClient:
    """pyqd.client in this process, with handlers as those of go/flow/main.go."""

    def __init__(self, addresses: Sequence[str], options: Options) -> None:
        self._held = threading.Semaphore(0)
        self._released = threading.Event()
        self.consumer = Consumer("topic", "channel", nsqd=list(addresses), **pyqd_options(options))
        self.consumer.handler(options.concurrency)(self._handle)
        self.consumer.start()

    def _handle(self, message: Message) -> None:
        raise_result(message.body)
        if message.body == b"hold":
            self._held.release()
            assert self._released.wait(WAIT_S)

    def wait_until_held(self) -> None:
        assert self._held.acquire(timeout=WAIT_S)

    def release(self) -> None:
        self._released.set()

    def stop(self) -> None:
        self.consumer.stop()

    def wait_until_stopped(self) -> None:
        assert self.consumer.drain(WAIT_S)

    def end(self) -> None:
        self.release()
        self.consumer.close()


class AsyncioClient:
    """pyqd.client.aio on a loop in a thread of its own, with handlers as those of go/flow/main.go."""

    def __init__(self, addresses: Sequence[str], options: Options) -> None:
        self._held = threading.Semaphore(0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop of the consumer")
        self._thread.start()
        self._call(self._begin(addresses, options))

    def _call(self, awaitable: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result(WAIT_S)

    async def _begin(self, addresses: Sequence[str], options: Options) -> None:
        self._released = asyncio.Event()
        self.consumer = aio.Consumer("topic", "channel", nsqd=list(addresses), **pyqd_options(options))
        self.consumer.handler(options.concurrency)(self._handle)
        self.consumer.start()

    async def _handle(self, message: Message) -> None:
        raise_result(message.body)
        if message.body == b"hold":
            self._held.release()
            await self._released.wait()

    def wait_until_held(self) -> None:
        assert self._held.acquire(timeout=WAIT_S)

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._released.set)

    def stop(self) -> None:
        self.consumer.stop()

    def wait_until_stopped(self) -> None:
        assert self._call(self.consumer.drain(WAIT_S))

    def end(self) -> None:
        self.release()
        self._call(self.consumer.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self._loop.close()


def raise_result(body: bytes) -> None:
    """Raise what a message asks its handler for."""
    match body.removeprefix(PROBE):
        case b"fail":
            raise ValueError("as the message says")
        case b"continue":
            raise Requeue(0, backoff=False)


def pyqd_options(options: Options) -> dict[str, Any]:
    return {
        "max_in_flight": options.max_in_flight,
        "retry": RetryPolicy(delay=0),
        "backoff": options.max_backoff_ms / 1000,
        "backoff_failures": 1,
        "backoff_first_s": options.backoff_multiplier_ms / 1000,
        "low_rdy_idle_s": options.low_rdy_idle_ms / 1000,
        "low_rdy_s": options.low_rdy_ms / 1000,
        "redistribute_s": options.redistribute_ms / 1000,
    }


Client = GoClient | PyqdClient | AsyncioClient
Start = Callable[..., Client]


@pytest.fixture(params=["go-nsq", "pyqd", "pyqd-asyncio"])
def client_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def library(client_name: str) -> str:
    """Name the library of the client: both faces of pyqd.client send the same commands."""
    return client_name.removesuffix("-asyncio")


@pytest.fixture
def start(client_name: str, go_programs: Callable[[str], Path], tmp_path: Path) -> Iterator[Start]:
    """Give a function that starts the client on some brokers, with Options as keywords."""
    started: list[Client] = []

    def begin(brokers: Sequence[ScriptedBroker], **options: Any) -> Client:
        addresses = [broker.address for broker in brokers]
        client: Client
        if client_name == "go-nsq":
            client = GoClient(go_programs("flow"), addresses, Options(**options), tmp_path / "go-nsq.log")
        else:
            client = (PyqdClient if client_name == "pyqd" else AsyncioClient)(addresses, Options(**options))
        started.append(client)
        return client

    yield begin
    for client in started:
        client.end()


def admit(*brokers: ScriptedBroker) -> None:
    """Let the client in, broker after broker, as soon as the one before gave it RDY."""
    for broker in brokers:
        broker.admit()
        broker.wait_for_rdy(lambda rdy: rdy > 0)


def hold(client: Client, broker: ScriptedBroker, count: int) -> None:
    """Occupy handlers with messages until the client's release()."""
    for _ in range(count):
        broker.deliver(b"hold")
        client.wait_until_held()


def probe(broker: ScriptedBroker, body: bytes) -> None:
    """Send the message that RDY 1 of a back-off asks for."""
    broker.deliver(PROBE + body)


def wait_for_one_probe(brokers: Sequence[ScriptedBroker]) -> None:
    """Wait until all brokers have had RDY 0, and exactly one has RDY 1 since."""

    def is_probing() -> bool:
        stopped = all("RDY 0" in broker.commands() for broker in brokers)
        return stopped and sorted(broker.rdy for broker in brokers) == [0, 0, 1]

    brokers[0].journal.wait(is_probing, "RDY 1 at one broker only")


class TestOneConnection:
    def test_rdy_is_sent_once_and_not_for_each_message(self, start, brokers):
        a = brokers[0]
        start([a], max_in_flight=5)
        admit(a)
        for number in range(1, 21):
            assert a.deliver(b"ok") == number
            a.wait_for(f"FIN {number}")
        a.heartbeat()
        a.wait_for("NOP")
        assert a.commands()[1:] == ["SUB topic channel", "RDY 5", *(f"FIN {number}" for number in range(1, 21)), "NOP"]

    def test_the_broker_s_limit_of_rdy_counts(self, start):
        with scripted_brokers("a", max_rdy_count=3) as (a,):
            start([a], max_in_flight=10)
            admit(a)
            assert a.commands("RDY") == ["RDY 3"]

    @pytest.mark.parametrize("code", ["E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"])
    def test_a_late_answer_is_no_failure_of_the_connection(self, start, brokers, code):
        a = brokers[0]
        start([a], max_in_flight=5)
        admit(a)
        a.error(f"{code} FIN 0000000000000001 failed ID not in flight")
        a.deliver(b"ok")
        a.wait_for("FIN 1")
        assert a.commands(*FLOW) == ["RDY 5", "FIN 1"]

    def test_a_heartbeat_is_answered_while_all_handlers_are_busy(self, start, brokers):
        a = brokers[0]
        client = start([a], max_in_flight=2, concurrency=2)
        admit(a)
        a.deliver(b"hold", b"hold")
        for _ in range(2):
            client.wait_until_held()
        settle(a)
        client.release()
        a.wait_for("FIN 1")
        a.wait_for("FIN 2")
        assert a.commands("NOP", "FIN")[0] == "NOP"


class TestBackOff:
    def test_a_failure_and_the_recovery_by_one_success(self, start, brokers):
        a = brokers[0]
        start([a], max_in_flight=5)
        admit(a)
        a.deliver(b"fail")
        a.wait_for("RDY 1")
        probe(a, b"ok")
        a.wait_for("FIN 2")
        a.wait_for("RDY 5", times=2)
        assert a.commands(*FLOW) == ["RDY 5", "RDY 0", "REQ 1 0", "RDY 1", "RDY 5", "FIN 2"]

    def test_three_levels_and_one_success_for_each(self, start, brokers):
        a = brokers[0]
        start([a], max_in_flight=5, backoff_multiplier_ms=10)
        admit(a)
        for level in (1, 2, 3):
            probe(a, b"fail")
            a.wait_for("RDY 1", times=level)
        for level in (2, 1):
            probe(a, b"ok")
            a.wait_for("RDY 1", times=6 - level)
        probe(a, b"ok")
        a.wait_for("RDY 5", times=2)
        assert a.commands("RDY") == ["RDY 5", *["RDY 0", "RDY 1"] * 5, "RDY 5"]

    def test_further_failures_during_the_wait_change_nothing(self, start, brokers):
        a = brokers[0]
        start([a], max_in_flight=3, backoff_multiplier_ms=300)
        admit(a)
        a.deliver(b"fail", b"fail", b"fail")
        a.wait_for("REQ 3 0")
        a.wait_for("RDY 1")
        probe(a, b"ok")
        a.wait_for("RDY 3", times=2)
        a.wait_for("FIN 4")
        assert a.commands(*FLOW) == [
            "RDY 3", "RDY 0", "REQ 1 0", "REQ 2 0", "REQ 3 0", "RDY 1", "RDY 3", "FIN 4"
        ]  # fmt: skip

    def test_a_requeue_without_back_off_begins_none_and_ends_none(self, start, brokers):
        a = brokers[0]
        start([a], max_in_flight=5)
        admit(a)
        a.deliver(b"continue")
        a.wait_for("REQ 1 0")
        a.deliver(b"fail")
        a.wait_for("RDY 1")
        probe(a, b"continue")
        a.wait_for("RDY 1", times=2)
        probe(a, b"ok")
        a.wait_for("RDY 5", times=2)
        assert a.commands("RDY", "REQ") == [
            "RDY 5", "REQ 1 0", "RDY 0", "REQ 2 0", "RDY 1", "RDY 0", "REQ 3 0", "RDY 1", "RDY 5"
        ]  # fmt: skip

    def test_no_back_off_if_it_is_off(self, start, brokers):
        a = brokers[0]
        start([a], max_in_flight=5, max_backoff_ms=0)
        admit(a)
        a.deliver(b"fail")
        a.deliver(b"ok")
        a.wait_for("FIN 2")
        assert a.commands(*FLOW) == ["RDY 5", "REQ 1 0", "FIN 2"]

    @pytest.mark.slow
    def test_all_connections_stop_and_one_of_them_probes(self, start, brokers):
        # A redistribution would take RDY 1 from a connection that was idle for long, as on a slow machine.
        start(brokers, max_in_flight=6, low_rdy_idle_ms=60_000)
        admit(*brokers)
        for broker in brokers:
            # go-nsq may have given the third connection 1, see the test of three connections.
            broker.wait_for_rdy(lambda rdy: 1 <= rdy <= 2)
        brokers[1].deliver(b"fail")
        wait_for_one_probe(brokers)
        (chosen,) = [broker for broker in brokers if broker.rdy == 1]
        for broker in brokers:
            last, *earlier = reversed(broker.commands("RDY"))
            assert (last, earlier[0] == "RDY 0") == (("RDY 1", True) if broker is chosen else ("RDY 0", False))
        probe(chosen, b"ok")
        for broker in brokers:
            broker.wait_for_rdy(lambda rdy: rdy == 2)


@pytest.mark.slow
class TestSeveralConnections:
    def test_three_that_join_one_after_another(self, start, brokers, library):
        start(brokers, max_in_flight=7)
        a, b, c = brokers
        admit(a)
        admit(b)
        b.wait_for_rdy(lambda rdy: rdy >= 3)
        admit(c)
        a.wait_for_rdy(lambda rdy: rdy <= 3)
        b.wait_for("RDY 2")
        # go-nsq leaves the remainder of 7 / 3 unused. Its third connection has 1 for good if it came before the others
        # were lowered, which is a matter of luck.
        first, thirds = {
            "go-nsq": (["RDY 7", "RDY 3", "RDY 2"], (["RDY 1"], ["RDY 2"])),
            "pyqd": (["RDY 7", "RDY 4", "RDY 3"], (["RDY 2"],)),
        }[library]
        a.wait_for(first[-1])
        c.wait_for_rdy(lambda rdy: rdy > 0)
        assert a.commands("RDY") == first
        assert b.commands("RDY") == ["RDY 3", "RDY 2"]
        assert c.commands("RDY") in thirds

    def test_rdy_of_a_lost_connection_goes_to_the_others(self, start, brokers, library):
        a, b, _ = brokers
        start([a, b], max_in_flight=8)
        admit(a, b)
        b.wait_for("RDY 4")
        a.wait_for("RDY 4")
        b.disconnect()
        b.wait_for("closed")
        if library == "pyqd":
            # go-nsq computes shares only when a connection joins: half of max_in_flight stays unused.
            a.wait_for("RDY 8", times=2)
        b.admit()
        b.wait_for("RDY 4", times=2)
        a.wait_for_rdy(lambda rdy: rdy == 4)
        expected = {"go-nsq": ["RDY 8", "RDY 4"], "pyqd": ["RDY 8", "RDY 4", "RDY 8", "RDY 4"]}
        assert a.commands("RDY") == expected[library]
        assert b.commands("RDY", "closed") == ["RDY 4", "closed", "RDY 4"]

    def test_a_connection_that_joins_while_all_messages_are_in_flight(self, start, brokers, library):
        a, b, _ = brokers
        client = start([a, b], max_in_flight=2, concurrency=2)
        admit(a)
        hold(client, a, 2)
        b.admit()
        a.wait_for("RDY 1")
        if library == "go-nsq":
            # Three messages are then in flight, with max_in_flight 2.
            b.wait_for("RDY 1")
            client.release()
        else:
            b.wait_for("SUB topic channel")
            settle(b)
            assert b.commands("RDY") == []
            client.release()
            b.wait_for("RDY 1")
        a.wait_for("FIN 1")
        a.wait_for("FIN 2")

    @pytest.mark.parametrize("max_in_flight", [1, 2])
    def test_fewer_messages_than_connections_go_round(self, start, brokers, library, max_in_flight):
        start(brokers, max_in_flight=max_in_flight, low_rdy_idle_ms=1000, low_rdy_ms=1000, redistribute_ms=50)
        for broker in brokers:
            broker.admit()
        for broker in brokers:
            broker.wait_for("RDY 0")
            broker.wait_for_rdy(lambda rdy: rdy > 0)
        for broker in brokers:
            counts = [int(command.split()[1]) for command in broker.commands("RDY")]
            # The first connection has all of max_in_flight until the second one joins.
            while counts[0] > 1:
                counts.pop(0)
            assert counts == [index % 2 if counts[0] == 0 else 1 - index % 2 for index in range(len(counts))]


class TestClosing:
    def test_an_idle_consumer_says_cls(self, start, brokers):
        a = brokers[0]
        client = start([a], max_in_flight=5)
        admit(a)
        client.stop()
        client.wait_until_stopped()
        a.wait_for("closed")
        assert a.commands(*FLOW) == ["RDY 5", "CLS", "closed"]

    def test_messages_in_flight_are_answered_after_cls(self, start, brokers):
        a = brokers[0]
        client = start([a], max_in_flight=5, concurrency=2)
        admit(a)
        hold(client, a, 2)
        client.stop()
        a.wait_for("CLS")
        client.release()
        client.wait_until_stopped()
        a.wait_for("closed")
        commands = a.commands(*FLOW)
        assert [*commands[:2], *sorted(commands[2:4]), commands[4]] == ["RDY 5", "CLS", "FIN 1", "FIN 2", "closed"]

    def test_a_message_that_crossed_cls_is_answered(self, start, brokers, library):
        a = brokers[0]
        a.answers_cls = False
        client = start([a], max_in_flight=5)
        admit(a)
        client.stop()
        a.wait_for("CLS")
        a.deliver(b"ok")
        a.close_wait()
        client.wait_until_stopped()
        a.wait_for("closed")
        # go-nsq still handles the message. pyqd.client gives it back, as it gives back all that no handler has seen.
        answer = {"go-nsq": "FIN 1", "pyqd": "REQ 1 0"}
        assert a.commands(*FLOW) == ["RDY 5", "CLS", answer[library], "closed"]

    def test_a_message_behind_close_wait(self, start, brokers, library):
        a = brokers[0]
        a.answers_cls = False
        client = start([a], max_in_flight=5)
        admit(a)
        client.stop()
        a.wait_for("CLS")
        a.deliver(b"ok", before=[frame(RESPONSE, b"CLOSE_WAIT")])
        client.wait_until_stopped()
        a.wait_for("closed")
        # nsqd may send one. go-nsq does not read it, so that it stays in flight until its timeout.
        answers = {"go-nsq": [], "pyqd": ["REQ 1 0"]}
        assert a.commands(*FLOW) == ["RDY 5", "CLS", *answers[library], "closed"]
