"""pynsq, gnsq, ansq and go-nsq on scripted brokers: cells of docs/client-conformance.md that a star marks.

A test reads what the page says about the library, does what the row is about, and compares. Each starred cell has a
test; those of consumers of go-nsq have theirs in test_consumer_flow.py.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.conftest import CLIENTS, PYTHON_CLIENTS
from tests.interop.process import ROOT, ClientProcess
from tests.support.http_stub import http_stub, json_answer
from tests.support.publish_broker import PublishBroker, publish_brokers
from tests.support.scripted_broker import ERROR, ScriptedBroker, frame, scripted_brokers, settle
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
    return {cells[0]: dict(zip(CLIENTS, cells[1:], strict=False)) for cells in split if len(cells) == 6}


CELLS = cells_of_page()
TESTED: set[tuple[str, str]] = set()
# Absent features, and words that the sources of a library with the feature would have.
ABSENT = {
    "circuit breaker of a broker": r"[Cc]ircuit",
    "unix sockets, of pyqd": r"AF_UNIX|UnixResolver|unix_connection|\"unix\"",
    "a broker that registered 0.0.0.0 is reached": r"0\.0\.0\.0",
    "the id of a published message": r"message_ids",
    "due times": r"due_time|DueTime|publish_at|PublishAt|defer_until",
    "cancel and reschedule": r"reschedule_|RescheduleMessage",
    "codecs for bodies": r"[Cc]odec",
    "Celery and kombu": r"[Cc]elery|[Kk]ombu",
    "Dramatiq": r"[Dd]ramatiq",
    "broker in memory for tests": r"[Ii]n.?[Mm]emory|[Ff]ake|[Mm]ock",
}


def starred_in(name: str, libraries: list[str]) -> list[str]:
    """Return the libraries whose cell in a row has a star, and note that they are tested."""
    starred = [library for library in libraries if CELLS[name][library].endswith(STAR)]
    assert starred, name
    TESTED.update((name, library) for library in starred)
    return starred


def row(name: str, libraries: list[str] = LIBRARIES) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for the test of a row, which gets its cell for each library."""
    assert name in CELLS, name
    starred = starred_in(name, libraries)
    return pytest.mark.parametrize(
        ("library", "cell"),
        [(library, CELLS[name][library].removesuffix(STAR)) for library in starred],
        ids=starred,
    )


@pytest.fixture
def broker(brokers: list[ScriptedBroker]) -> ScriptedBroker:
    """Give one broker that admits clients."""
    brokers[0].admit()
    return brokers[0]


@pytest.fixture
def publisher() -> Iterator[PublishBroker]:
    """Give a broker that answers publishes as the test says."""
    with publish_brokers(1) as (made,):
        yield made


@pytest.fixture
def start(library: str, tmp_path: Path, go_program: Callable[[], Path]) -> Iterator[Start]:
    """Give a function that starts a client of the library on some brokers."""
    if library not in PYTHON_CLIENTS:
        program = [str(go_program())]
    elif importlib.util.find_spec(PYTHON_CLIENTS[library]) is None:
        pytest.skip(f"{library} is not installed")
    else:
        program = [sys.executable, "-m", f"tests.interop.clients.{library}_client"]
    started: list[ClientProcess] = []

    def begin(*brokers: ScriptedBroker | PublishBroker, role: str = "consumer", **options: int | str) -> ClientProcess:
        command = [*program, f"--role={role}"]
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
    def test_a_client_connects_again_after_a_fatal_error(self, broker, start, cell):
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
    def test_a_frame_of_an_unknown_type_is_ignored_or_ends_the_connection(self, broker, start, cell):
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
    def test_the_remainder_of_the_division_of_max_in_flight_is_used(self, brokers, start, cell):
        admitted(start, brokers, 7)
        if cell == "yes":
            brokers[0].journal.wait(lambda: total_rdy(brokers) == 7, "RDY 7 over all")
        else:
            time.sleep(QUIET_S)
            assert total_rdy(brokers) < 7

    @row("RDY of a lost connection goes to the others")
    def test_rdy_of_a_lost_connection_goes_to_the_others(self, brokers, start, cell):
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
    def test_rdy_stays_within_the_largest_one_that_the_broker_allows(self, start, cell):
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
    def test_a_requeue_without_back_off_leaves_rdy_as_it_is(self, broker, start, cell):
        client = admitted(start, [broker], 5)
        broker.deliver(b"later")
        client.send("req", id=client.expect("message")["id"], delay_ms=0, backoff=False)
        settle(broker)
        assert cell in ("yes", "no back-off")
        assert "RDY 0" not in broker.commands()


class TestMessages:
    @row("messages are touched while they are handled")
    def test_messages_are_touched_while_a_handler_runs(self, broker, start, cell):
        broker.msg_timeout_ms = 400
        client = start(broker)
        broker.wait_for_rdy(lambda rdy: rdy > 0)
        broker.deliver(b"slow")
        client.expect("message")
        time.sleep(QUIET_S)
        assert (broker.commands("TOUCH") != []) is (cell == "yes")

    @row("after the last attempt")
    def test_a_message_with_many_attempts_is_given_up_or_handled(self, broker, start, cell):
        client = start(broker)
        broker.wait_for_rdy(lambda rdy: rdy > 0)
        broker.deliver(b"again", attempts=100)
        if cell == "message is dropped":
            broker.wait_for("FIN 1")
        else:
            assert client.expect("message")["attempts"] == 100

    @row("a second answer is refused")
    def test_a_second_answer_to_a_message_is_refused(self, broker, start, cell):
        client = start(broker)
        broker.wait_for_rdy(lambda rdy: rdy > 0)
        broker.deliver(b"body")
        client.send("fin_twice", id=client.expect("message")["id"])
        assert (client.expect("answered")["error"] != "") is (cell == "yes")
        broker.wait_for("FIN 1")
        settle(broker)
        assert broker.commands("FIN") == ["FIN 1"]

    @row("CLS before the end, messages in flight are answered after it")
    def test_a_consumer_sends_cls_before_it_closes(self, broker, start, cell):
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
    def test_brokers_named_by_a_later_poll_get_a_connection(self, brokers, start, cell):
        named: list[dict[str, object]] = []
        with http_stub(lambda path, query: json_answer({"channels": [], "producers": named})) as stub:
            start(lookupd=stub.address, max_in_flight=2)
            for broker in brokers[:2]:
                broker.admit()
                named.append(self.producer(broker))
                broker.wait_for_rdy(lambda rdy: rdy > 0)
        assert cell == "yes"

    @row("a broker that is no longer named stays connected")
    def test_a_broker_that_is_no_longer_named_keeps_its_connection(self, broker, start, cell):
        named = [self.producer(broker)]
        with http_stub(lambda path, query: json_answer({"channels": [], "producers": named})) as stub:
            client = start(lookupd=stub.address)
            broker.wait_for_rdy(lambda rdy: rdy > 0)
            named.clear()
            polls = len(stub.requests)
            wait_until(lambda: len(stub.requests) >= polls + 2, "polls without the broker")
            broker.deliver(b"still here")
            assert (client.expect("message")["body"] == b"still here") is (cell == "yes")

    @row("answers from before nsqlookupd 1.0")
    def test_an_answer_of_a_lookup_daemon_before_version_1_is_unwrapped(self, broker, start, cell):
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
    def test_a_malformed_answer_of_a_lookup_daemon_is_one_logged_error(self, broker, start, cell):
        answers = [json_answer([]), json_answer({"producers": [self.producer(broker)]})]
        with http_stub(lambda path, query: answers.pop(0) if len(answers) > 1 else answers[0]) as stub:
            client = start(lookupd=stub.address)
            broker.wait_for("SUB topic channel")
        said = client.log.read_text()
        assert ("Traceback" not in said) is (cell == "yes"), said


class TestPublishing:
    @pytest.fixture
    def producer(self, publisher, start):
        """A producer of the library that is connected."""
        client = start(publisher, role="producer")
        client.expect("connected")
        return client

    @row("deferred messages", CLIENTS)
    def test_a_deferred_message_is_published_by_dpub(self, publisher, producer, cell):
        producer.publish("dpub", "topic", b"later", delay_ms=1500)
        assert ([each.line for each in publisher.published] == [b"DPUB topic 1500"]) is (cell == "yes")

    @row("a batch is published whole or not at all", CLIENTS)
    def test_a_batch_is_one_command(self, publisher, producer, cell):
        producer.publish("mpub", "topic", b"1", b"2", b"3")
        assert ([each.line for each in publisher.published] == [b"MPUB topic"]) is (cell == "yes")

    @row("a refusal is a typed error", CLIENTS)
    def test_a_refused_publish_is_a_typed_error(self, publisher, producer, cell):
        publisher.answer = lambda publish: frame(ERROR, b"E_BAD_TOPIC PUB topic name")
        producer.send("pub", topic="topic", bodies=[b"body"])
        error = producer.expect("failed")["error"]
        # The script writes the class of an exception before its text.
        assert (error.startswith("NSQBadTopic: ")) is (cell == "yes"), error
        assert "E_BAD_TOPIC" in error or cell == "yes"


class TestAbsence:
    @staticmethod
    def sources_of(library: str, go_program: Callable[[], Path]) -> str:
        """Return the sources of a library, without its tests."""
        if library in PYTHON_CLIENTS:
            spec = importlib.util.find_spec(PYTHON_CLIENTS[library])
            if spec is None or spec.origin is None:
                pytest.skip(f"{library} is not installed")
            paths = Path(spec.origin).parent.rglob("*.py")
        else:
            go_program()
            command = ["go", "list", "-m", "-f", "{{.Dir}}", "github.com/nsqio/go-nsq"]
            found = subprocess.run(command, cwd=ROOT / "tests/interop/go", capture_output=True, text=True, check=True)
            paths = Path(found.stdout.strip()).rglob("*.go")
        return "\n".join(path.read_text(errors="replace") for path in paths if not path.name.endswith("_test.go"))

    @pytest.mark.parametrize(
        ("name", "library"), [(name, library) for name in ABSENT for library in starred_in(name, CLIENTS)]
    )
    def test_the_sources_do_not_have_the_words_of_the_feature(self, name, library, go_program):
        assert CELLS[name][library].removesuffix(STAR) == "no"
        sources = self.sources_of(library, go_program)
        assert "PUB" in sources
        assert re.findall(rf"(?m)^.*(?:{ABSENT[name]}).*$", sources) == []


def test_each_starred_cell_has_a_test() -> None:
    flow = (ROOT / "tests/interop/test_consumer_flow.py").read_text()
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        for library, cell in zip(CLIENTS, cells[1:], strict=False):
            if len(cells) != 6 or not cell.endswith(STAR) or (cells[0], library) in TESTED:
                continue
            # Both libraries run the test that the last cell names.
            assert library == "go-nsq", cells[0]
            assert all(f"def {name}(" in flow for name in re.findall(r"`(test_\w+)`", cells[5])), cells[0]
