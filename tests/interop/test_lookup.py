"""go-nsq finds brokers by a lookup daemon, ours or Go's, and finds them again after each part was killed."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.process import ClientProcess
from tests.lookupd import conftest as lookup
from tests.support.server import Daemon, free_port, pyqd, running

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(params=["pyqlookupd", "nsqlookupd"])
def lookupd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lookup.LookupDaemon]:
    """A lookup daemon on ports that it keeps when it is started again."""
    command: tuple[str, ...] = (sys.executable, "-m", "pyqd.apps.lookupd")
    if request.param == "nsqlookupd":
        path = request.config.getoption("nsqlookupd")
        if path is None:
            pytest.skip("no nsqlookupd: NSQLOOKUPD may name one")
        command = (path,)
    ports = {"TCP": free_port(), "HTTP": free_port()}
    flags = ("-broadcast-address=127.0.0.1",)
    with lookup.running(lookup.LookupDaemon(command, tmp_path / "lookupd.log", flags, ports=ports)) as daemon:
        yield daemon


def test_a_consumer_finds_all_brokers_again_after_each_part_was_killed(
    lookupd: lookup.LookupDaemon, go_program: Callable[[], Path], tmp_path: Path
) -> None:
    program = go_program()
    flag = f"-lookupd-tcp-address=127.0.0.1:{lookupd.ports['TCP']}"
    with contextlib.ExitStack() as stack:
        # A node id each, or two messages of one tick of the clock have the same id.
        brokers = [
            stack.enter_context(running(Daemon(pyqd(), tmp_path / f"broker{number}", [flag, f"-node-id={number}"])))
            for number in range(2)
        ]

        def publish(label: str) -> set[bytes]:
            bodies = {f"{label}-{number}".encode() for number in range(len(brokers))}
            for broker, body in zip(brokers, sorted(bodies), strict=True):
                assert broker.http("POST", "/pub", body, topic="t").status == 200
            return bodies

        def receive(bodies: set[bytes]) -> None:
            found: set[bytes] = set()
            while not bodies <= found:
                event = consumer.next_event(60.0)
                assert event["event"] != "end", consumer.log.read_text()
                if event["event"] == "message":
                    found.add(event["body"])
                    consumer.finish(event)

        first = publish("start")
        where = f"--lookupd=127.0.0.1:{lookupd.ports['HTTP']}"
        words: list[str | Path] = [program, "--role=consumer", where, "--topic=t", "--channel=c", "--max-in-flight=10"]
        consumer = ClientProcess(words, tmp_path / "consumer.log")
        stack.callback(consumer.kill)
        receive(first)
        lookupd.kill()
        receive(publish("without a lookup daemon"))
        lookupd.start()
        brokers[0].kill_and_start()
        receive(publish("broker killed"))
        brokers[1].hand_over()
        receive(publish("broker restarted"))
        assert consumer.close() == 0
