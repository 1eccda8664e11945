"""pynsq, gnsq and ansq on scripted brokers: cells of docs/client-conformance.md that a star marks.

A test reads what the page says about the library, does what the row is about, and compares. Each starred cell of these
three libraries has a test.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.conftest import PYTHON_CLIENTS
from tests.interop.process import ROOT, ClientProcess
from tests.support.http_stub import http_stub, json_answer
from tests.support.scripted_broker import ScriptedBroker, frame, scripted_brokers, settle
from tests.support.server import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

PAGE = ROOT / "docs/client-conformance.md"
LIBRARIES = list(PYTHON_CLIENTS)
STAR = "\\*"
# After which a command that has not come does not come.
QUIET_S = 1.0

Start = Callable[..., ClientProcess]


def cells_of_page() -> dict[str, dict[str, str]]:
    """Return the cells of the page by row and library."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    split = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {cells[0]: dict(zip(LIBRARIES, cells[1:], strict=False)) for cells in split if len(cells) == 6}


CELLS = cells_of_page()
TESTED: set[str] = set()


def row(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for the test of a row, which gets its cell for each library."""
    assert name in CELLS, name
    TESTED.add(name)
    starred = [library for library in LIBRARIES if CELLS[name][library].endswith(STAR)]
    assert starred, name
    return pytest.mark.parametrize(
        ("library", "cell"),
        [(library, CELLS[name][library].removesuffix(STAR)) for library in starred],
        ids=starred,
    )


@pytest.fixture
def brokers() -> Iterator[list[ScriptedBroker]]:
    """Give three brokers, a, b and c. None has admitted the client."""
    with scripted_brokers("a", "b", "c") as brokers:
        yield brokers


@pytest.fixture
def broker(brokers: list[ScriptedBroker]) -> ScriptedBroker:
    """Give one broker that admits clients."""
    brokers[0].admit()
    return brokers[0]


@pytest.fixture
def start(library: str, tmp_path: Path) -> Iterator[Start]:
    """Give a function that starts a client of the library on some brokers."""
    if importlib.util.find_spec(PYTHON_CLIENTS[library]) is None:
        pytest.skip(f"{library} is not installed")
    started: list[ClientProcess] = []

    def begin(*brokers: ScriptedBroker, role: str = "consumer", **options: int | str) -> ClientProcess:
        command = [sys.executable, "-m", f"tests.interop.clients.{library}_client", f"--role={role}"]
        command += [f"--address={','.join(each.address for each in brokers)}", "--topic=topic", "--channel=channel"]
        command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        started.append(ClientProcess(command, tmp_path / f"{len(started)}.log"))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


def pass_message(client: ClientProcess, broker: ScriptedBroker) -> None:
    """Have the client finish a message: some libraries ask for more only then."""
    number = broker.deliver(b"body")
    client.finish(client.expect("message"))
    broker.wait_for(f"FIN {number}")
    settle(broker)


def total_rdy(brokers: list[ScriptedBroker]) -> int:
    return sum(broker.rdy for broker in brokers)


def admitted(start: Start, brokers: list[ScriptedBroker], max_in_flight: int) -> ClientProcess:
    """Return a consumer at all brokers that has finished a message of each."""
    client = start(*brokers, max_in_flight=max_in_flight)
    for broker in brokers:
        broker.admit()
    for broker in brokers:
        broker.wait_for_rdy(lambda rdy: rdy > 0)
    for _ in range(2):
        for broker in brokers:
            pass_message(client, broker)
    return client


class TestConnections:
    @row("a consumer sends nothing between IDENTIFY and its answer")
    def test_a_consumer_waits_for_the_answer_to_identify(self, brokers, start, cell):
        start(brokers[0])
        brokers[0].wait_for_client()
        brokers[0].admit()
        brokers[0].wait_for_rdy(lambda rdy: rdy > 0)
        assert ("early" not in brokers[0].commands()) is (cell == "yes")

    @row("a producer sends nothing between IDENTIFY and its answer")
    def test_a_producer_waits_for_the_answer_to_identify(self, brokers, start, cell):
        client = start(brokers[0], role="producer")
        brokers[0].wait_for_client()
        brokers[0].admit()
        client.expect("connected")
        client.publish("pub", "topic", b"body")
        assert ("early" not in brokers[0].commands()) is (cell == "yes")

    @row("a broker without TLS is an error if the user wants TLS")
    def test_a_broker_without_tls_gets_sub(self, broker, start, cell):
        start(broker, upgrades="tls_v1")
        broker.wait_for("SUB topic channel")
        assert cell in ("goes on without", "no TLS")

    @row("a broker that wants a secret is an error without one")
    def test_a_broker_that_wants_a_secret_gets_no_sub(self, broker, start, cell):
        broker.more_facts = {"auth_required": True}
        start(broker)
        broker.wait_for("IDENTIFY")
        time.sleep(QUIET_S)
        assert (broker.commands("SUB") == []) is (cell == "yes")

    @row("after a fatal error frame: connect again")
    def test_after_a_fatal_error(self, broker, start, cell):
        start(broker)
        broker.wait_for_rdy(lambda rdy: rdy > 0)
        broker.error("E_INVALID cannot RDY in current state")
        broker.disconnect()
        broker.admit()
        # pynsq connects again after 15 s.
        broker.wait_for("SUB topic channel", times=2)
        assert cell == "yes"

    @row("`E_FIN_FAILED` and the like leave the connection open")
    def test_a_late_answer_leaves_the_connection_open(self, broker, start, cell):
        client = start(broker)
        broker.wait_for_rdy(lambda rdy: rdy > 0)
        broker.error("E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")
        broker.deliver(b"after")
        assert (client.expect("message")["body"] == b"after") is (cell == "yes")
        assert broker.commands("closed") == []

    @row("bytes that are no frames: connect again")
    def test_a_frame_of_an_unknown_type(self, broker, start, cell):
        start(broker)
        broker.wait_for_rdy(lambda rdy: rdy > 0)
        broker.send_bytes(frame(9, b""))
        if cell == "after an unknown type":
            broker.wait_for("IDENTIFY", times=2)
            return
        broker.heartbeat()
        if cell == "no: goes on":
            broker.wait_for("NOP")
        else:
            time.sleep(QUIET_S)
            assert broker.commands("NOP") == []
        assert broker.commands("closed") == []


class TestRdy:
    @row("RDY once, not for each message")
    def test_rdy_is_not_sent_for_each_message(self, broker, start, cell):
        client = admitted(start, [broker], 5)
        before = broker.commands("RDY")
        for _ in range(5):
            pass_message(client, broker)
        assert (broker.commands("RDY") == before) is (cell == "yes")

    @row("`max_in_flight` over all connections")
    def test_max_in_flight_is_divided(self, brokers, start, cell):
        admitted(start, brokers, 6)
        if cell == "yes":
            brokers[0].journal.wait(lambda: total_rdy(brokers) == 6, "RDY 6 over all")
        else:
            time.sleep(QUIET_S)
            assert [broker.rdy for broker in brokers] == [1, 1, 1]

    @row("the remainder of the division is used")
    def test_the_remainder(self, brokers, start, cell):
        admitted(start, brokers, 7)
        if cell == "yes":
            brokers[0].journal.wait(lambda: total_rdy(brokers) == 7, "RDY 7 over all")
        else:
            time.sleep(QUIET_S)
            assert total_rdy(brokers) < 7

    @row("RDY of a lost connection goes to the others")
    def test_rdy_of_a_lost_connection(self, brokers, start, cell):
        a, b = brokers[:2]
        client = admitted(start, [a, b], 6)
        if cell != "no":
            b.wait_for_rdy(lambda rdy: rdy == 3)
        else:
            # Its RDY is whatever it is, once it has settled.
            time.sleep(QUIET_S)
        before = b.rdy
        a.disconnect()
        a.wait_for("closed")
        if cell == "yes":
            b.wait_for_rdy(lambda rdy: rdy == 6)
            return
        time.sleep(QUIET_S)
        assert b.rdy == before
        pass_message(client, b)
        if cell == "later":
            b.wait_for_rdy(lambda rdy: rdy == 6)
        else:
            assert b.rdy == before

    @row("the broker's largest RDY counts")
    def test_the_largest_rdy(self, start, cell):
        with scripted_brokers("small", max_rdy_count=3) as (small,):
            admitted(start, [small], 10)
            time.sleep(QUIET_S)
            assert (small.rdy <= 3) is (cell == "yes")

    @row("back-off after failures, one message at a time after it")
    def test_a_failure_begins_a_back_off(self, broker, start, cell):
        client = admitted(start, [broker], 5)
        before = broker.rdy
        broker.deliver(b"fail")
        client.send("req", id=client.expect("message")["id"], delay_ms=0, backoff=True)
        if cell == "no":
            time.sleep(QUIET_S)
            assert broker.rdy == before
            return
        broker.wait_for("RDY 0")
        broker.wait_for_rdy(lambda rdy: rdy == 1)

    @row("all connections stop in a back-off")
    def test_a_failure_stops_all_connections(self, brokers, start, cell):
        a, b = brokers[:2]
        client = admitted(start, [a, b], 6)
        a.deliver(b"fail")
        client.send("req", id=client.expect("message")["id"], delay_ms=0, backoff=True)
        if cell == "yes":
            for broker in (a, b):
                broker.wait_for("RDY 0")
        else:
            time.sleep(QUIET_S)
            assert "RDY 0" not in b.commands()

    @row("requeue without back-off")
    def test_a_requeue_without_back_off(self, broker, start, cell):
        client = admitted(start, [broker], 5)
        broker.deliver(b"later")
        client.send("req", id=client.expect("message")["id"], delay_ms=0, backoff=False)
        settle(broker)
        assert cell in ("yes", "no back-off")
        assert "RDY 0" not in broker.commands()


class TestMessages:
    @row("messages are touched while they are handled")
    def test_nothing_is_touched(self, broker, start, cell):
        broker.msg_timeout_ms = 400
        client = start(broker)
        broker.wait_for_rdy(lambda rdy: rdy > 0)
        broker.deliver(b"slow")
        client.expect("message")
        time.sleep(QUIET_S)
        assert (broker.commands("TOUCH") != []) is (cell == "yes")

    @row("after the last attempt")
    def test_a_message_with_many_attempts(self, broker, start, cell):
        client = start(broker)
        broker.wait_for_rdy(lambda rdy: rdy > 0)
        broker.deliver(b"again", attempts=100)
        if cell == "message is dropped":
            broker.wait_for("FIN 1")
        else:
            assert client.expect("message")["attempts"] == 100

    @row("a second answer is refused")
    def test_a_second_answer(self, broker, start, cell):
        client = start(broker)
        broker.wait_for_rdy(lambda rdy: rdy > 0)
        broker.deliver(b"body")
        client.send("fin_twice", id=client.expect("message")["id"])
        assert (client.expect("answered")["error"] != "") is (cell == "yes")
        broker.wait_for("FIN 1")
        settle(broker)
        assert broker.commands("FIN") == ["FIN 1"]

    @row("CLS before the end, messages in flight are answered after it")
    def test_the_end(self, broker, start, cell):
        client = start(broker)
        broker.wait_for_rdy(lambda rdy: rdy > 0)
        client.close()
        broker.wait_for("closed")
        assert (broker.commands("CLS") != []) is (cell != "no CLS")


class TestDiscovery:
    @staticmethod
    def producer(broker: ScriptedBroker) -> dict[str, object]:
        host, port = broker.address.split(":")
        return {"broadcast_address": host, "tcp_port": int(port), "http_port": 0, "hostname": "", "version": "1.3.0"}

    @row("polls with jitter, new brokers are found")
    def test_brokers_are_found(self, brokers, start, cell):
        named: list[dict[str, object]] = []
        with http_stub(lambda path, query: json_answer({"channels": [], "producers": named})) as stub:
            start(lookupd=stub.address, max_in_flight=2)
            for broker in brokers[:2]:
                broker.admit()
                named.append(self.producer(broker))
                broker.wait_for_rdy(lambda rdy: rdy > 0)
        assert cell == "yes"

    @row("answers from before nsqlookupd 1.0")
    def test_a_wrapped_answer(self, broker, start, cell):
        data = {"channels": [], "producers": [self.producer(broker)]}
        wrapped = {"status_code": 200, "status_txt": "OK", "data": data}
        with http_stub(lambda path, query: json_answer(wrapped)) as stub:
            start(lookupd=stub.address)
            if cell == "yes":
                broker.wait_for("SUB topic channel")
            else:
                wait_until(lambda: len(stub.requests) >= 3, "several polls")
                assert not broker.is_asked

    @row("a malformed answer is one logged error")
    def test_a_malformed_answer(self, broker, start, cell):
        answers = [json_answer([]), json_answer({"producers": [self.producer(broker)]})]
        with http_stub(lambda path, query: answers.pop(0) if len(answers) > 1 else answers[0]) as stub:
            client = start(lookupd=stub.address)
            broker.wait_for("SUB topic channel")
        said = client.log.read_text()
        assert ("Traceback" not in said) is (cell == "yes"), said


def test_each_starred_cell_has_a_test() -> None:
    starred = {name for name, cells in CELLS.items() if any(cell.endswith(STAR) for cell in cells.values())}
    assert starred == TESTED
