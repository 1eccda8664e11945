"""One suite, two servers: every test here runs against pyqd, and against nsqd when a path to one is given.

Servers live for the session; each test has topics of its own. After each test the servers must still be well.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import pytest

from tests.support.certificates import Certificates
from tests.support.nsq import MAGIC, Client
from tests.support.server import Daemon, Implementation, nsqd, pyqd, running

Connect = Callable[..., Client]

# Compression off on both sides: these tests negotiate the plain protocol.
PLAIN_FLAGS = ("-deflate=false", "-snappy=false")
NARROW_FLAGS = (
    *PLAIN_FLAGS,
    "-max-msg-size=100",
    "-max-body-size=200",
    "-max-rdy-count=5",
    "-max-req-timeout=1s",
    "-msg-timeout=1500ms",
    "-max-msg-timeout=2s",
    "-max-heartbeat-interval=5s",
    "-max-output-buffer-size=1024",
    "-output-buffer-timeout=100ms",
    "-min-output-buffer-timeout=50ms",
    "-max-output-buffer-timeout=1s",
    "-max-channel-consumers=2",
    "-max-deflate-level=3",
    "-mem-queue-size=3",
    "-topology-region=r1",
    "-topology-zone=z1",
)

# nsqd looks for time-outs only in channels it has listed, and lists them every 5 s. Channels made at the start of the
# session spare most tests of time that wait; a test that takes a younger one is as right, and slower.
EARLY_TOPIC_COUNT = 40

_topic_numbers = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "implementation" not in metafunc.fixturenames:
        return
    implementations = [pyqd()]
    path = metafunc.config.getoption("--nsqd")
    if path and not metafunc.definition.get_closest_marker("pyqd_only"):
        implementations.append(nsqd(path))
    metafunc.parametrize(
        "implementation", implementations, ids=[each.name for each in implementations], scope="session"
    )


class EarlyTopics:
    """Topics whose channel `c` was made when the server started; each is handed out once."""

    def __init__(self, daemon: Daemon) -> None:
        self._names = [f"early_{number}" for number in range(EARLY_TOPIC_COUNT)]
        for name in self._names:
            with Client(daemon.tcp_address) as client:
                client.sub(name, "c")

    def take(self) -> str:
        assert self._names, "raise EARLY_TOPIC_COUNT"
        return self._names.pop()


def run_server(
    implementation: Implementation, factory: pytest.TempPathFactory, flags: tuple[str, ...]
) -> Iterator[Daemon]:
    with running(Daemon(implementation, factory.mktemp(implementation.name), flags)) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def server(implementation: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from run_server(implementation, tmp_path_factory, PLAIN_FLAGS)


@pytest.fixture(scope="session")
def narrow_server(implementation: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server whose every limit is small: see NARROW_FLAGS."""
    yield from run_server(implementation, tmp_path_factory, NARROW_FLAGS)


@pytest.fixture
def own_server(implementation: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server for this test alone, to be stopped, killed and started again."""
    yield from run_server(implementation, tmp_path_factory, PLAIN_FLAGS)


@pytest.fixture(scope="session")
def upgrading_server(
    implementation: Implementation, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Daemon]:
    """A server with TLS, HTTPS, snappy and deflate."""
    flags = (*certificates.server_flags(), "-https-address=127.0.0.1:0")
    yield from run_server(implementation, tmp_path_factory, flags)


@pytest.fixture(scope="session")
def early_topics(server: Daemon) -> EarlyTopics:
    return EarlyTopics(server)


@pytest.fixture(scope="session")
def narrow_early_topics(narrow_server: Daemon) -> EarlyTopics:
    return EarlyTopics(narrow_server)


@pytest.fixture(autouse=True)
def _the_servers_stay_well(request: pytest.FixtureRequest) -> Iterator[None]:
    if "implementation" not in request.fixturenames:  # a `server` of the test's own module
        yield
        return
    daemons = [
        request.getfixturevalue(name)
        for name in ("server", "narrow_server", "upgrading_server")
        if name in request.fixturenames
    ]
    if "server" in request.fixturenames:
        request.getfixturevalue("early_topics")
    yield
    for daemon in daemons:
        daemon.assert_healthy()


@pytest.fixture
def connect(server: Daemon) -> Iterator[Connect]:
    """Return a function that connects to a server, the default one if none is named; all are closed afterwards."""
    clients: list[Client] = []

    def connect_to(
        daemon: Daemon = server, *, magic: bytes = MAGIC, wait_s: float = 10.0, receive_buffer_bytes: int = 0
    ) -> Client:
        client = Client(daemon.tcp_address, magic=magic, wait_s=wait_s, receive_buffer_bytes=receive_buffer_bytes)
        clients.append(client)
        return client

    yield connect_to
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    words = re.sub(r"[^a-zA-Z0-9_]", "_", request.node.name.removeprefix("test_"))
    return f"{words[:40]}_{next(_topic_numbers)}"


@pytest.fixture
def timed_topic(early_topics: EarlyTopics) -> str:
    """A topic with a channel `c` that is old enough for nsqd to watch its time-outs."""
    return early_topics.take()


@pytest.fixture
def narrow_timed_topic(narrow_early_topics: EarlyTopics) -> str:
    """As timed_topic, on the narrow server."""
    return narrow_early_topics.take()
