"""The daemon's garbage: none that only a full collection frees, as a full collection holds the event loop."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon, patched_pyqd, wait_until

# Each test makes a daemon collect garbage.
pytestmark = pytest.mark.slow

ROUNDS = 5
# The daemon answers questions about its garbage, which are files beside the program.
WITH_QUESTIONS = """
import gc
import os
import sys
from collections import Counter

import gevent

def begin():
    gc.set_debug(0)
    gc.collect()
    gc.garbage.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)
    return ""

def garbage():
    gc.collect()
    return repr(Counter(str(type(each)) for each in gc.garbage).most_common(20) or "")

def full_count():
    before = gc.get_stats()[2]["collections"]
    kept = [[] for _ in range(500_000)]
    return str(gc.get_stats()[2]["collections"] - before)

def answer_questions():
    while True:
        gevent.sleep(0.01)
        for question in (begin, garbage, full_count):
            path = sys.argv[0] + "." + question.__name__
            if os.path.exists(path):
                text = question()
                with open(path + ".new", "w") as file:
                    file.write(text)
                os.rename(path + ".new", path + ".answer")
                os.unlink(path)

gevent.spawn(answer_questions)
"""


class Questioned:
    """A daemon that tells of its garbage."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "questioned.py"
        implementation = patched_pyqd(self.program, WITH_QUESTIONS)
        self.daemon = Daemon(implementation, directory / "daemon", []).start()

    def ask(self, question: str) -> str:
        path = Path(f"{self.program}.{question}")
        path.touch()
        wait_until(lambda: not path.exists(), "the daemon has answered")
        return Path(f"{path}.answer").read_text()


@pytest.fixture
def questioned(tmp_path: Path) -> Iterator[Questioned]:
    questioned = Questioned(tmp_path)
    try:
        yield questioned
        questioned.daemon.stop()
    finally:
        questioned.daemon.kill()


def consume(daemon: Daemon, topic: str) -> None:
    """Publish and consume a message over TCP, with a REQ, and leave with another one in flight."""
    with Client(daemon.tcp_address) as client:
        client.pub(topic, b"x")
        client.pub(topic, b"y")
        client.sub(topic, rdy_count=2)
        message = client.read_message()
        client.req(message, 0)
        client.fin(client.read_message())
        client.read_message()


def use_http(daemon: Daemon) -> None:
    for path in ("/stats", "/metrics", "/ping", "/nothing", "/info"):
        daemon.http("GET", path)
    daemon.http("POST", "/pub", b"x", topic="kept")
    daemon.http("POST", "/mpub", b"x\ny", topic="kept")
    daemon.http("POST", "/pub", b"", topic="kept")
    daemon.http("PUT", "/config/log_level", b'"info"')
    daemon.http("PUT", "/config/log_level", b'"?"')


def make_and_delete(daemon: Daemon, topic: str) -> None:
    daemon.http("POST", "/topic/create", topic=topic)
    for channel in ("c", "d", "e#ephemeral"):
        daemon.http("POST", "/channel/create", topic=topic, channel=channel)
    daemon.http("POST", "/pub", b"x", topic=topic)
    daemon.http("POST", "/pub", b"later", topic=topic, defer="60000")
    daemon.http("POST", "/channel/pause", topic=topic, channel="d")
    daemon.http("POST", "/channel/empty", topic=topic, channel="c")
    daemon.http("POST", "/channel/delete", topic=topic, channel="c")
    daemon.http("POST", "/topic/delete", topic=topic)


def test_clients_requests_and_deleted_topics_leave_no_cycles(questioned: Questioned) -> None:
    daemon = questioned.daemon
    for number in range(2 * ROUNDS):
        if number == ROUNDS:
            # What is made once, at the first use, does not count.
            questioned.ask("begin")
        consume(daemon, "kept")
        consume(daemon, f"gone{number}#ephemeral")
        use_http(daemon)
        make_and_delete(daemon, "t")
        make_and_delete(daemon, f"t{number}#ephemeral")
    wait_until(lambda: (daemon.topic("kept") or {})["channels"][0]["client_count"] == 0, "all clients are gone")
    assert questioned.ask("garbage") == "''"


def test_the_last_collections_examine_none_of_a_stopped_daemons_objects(tmp_path: Path) -> None:
    patch = "import atexit, gc\natexit.register(gc.set_debug, gc.DEBUG_STATS)"
    daemon = Daemon(patched_pyqd(tmp_path / "program.py", patch), tmp_path / "daemon", []).start()
    try:
        daemon.stop()
    finally:
        daemon.kill()
    examined = re.findall(r"gc: objects in each generation: (\d+) (\d+) (\d+)", daemon.log_text())
    assert examined
    # The code alone has more than 50,000.
    assert all(sum(map(int, counts)) < 5_000 for counts in examined)


def test_automatic_collections_are_never_full_ones(questioned: Questioned) -> None:
    assert questioned.ask("full_count") == "0"
