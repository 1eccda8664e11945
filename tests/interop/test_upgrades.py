"""Client libraries over TLS, snappy and deflate: whatever of it each of them can do."""

import random
from collections.abc import Iterator

import pytest

from tests.interop.conftest import Clients
from tests.interop.test_clients import settled
from tests.support.certificates import Certificates
from tests.support.server import Daemon, Implementation

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(120)]

# Combinations that the libraries support against nsqd: the snappy of pynsq and the compressions of gnsq lose frames
# there.
CASES = [
    ("pynsq", "tls_v1"),
    ("go-nsq", "tls_v1"),
    ("go-nsq", "snappy"),
    ("go-nsq", "deflate"),
    ("go-nsq", "tls_v1,snappy"),
    ("go-nsq", "tls_v1,deflate"),
]
BODIES = [b"a", b"short", b"b" * 20_000, random.Random(8).randbytes(300_000), bytes(1 << 20)]


@pytest.fixture(scope="module")
def upgrading_daemon(
    implementation: Implementation, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Daemon]:
    flags = (*certificates.server_flags(), "-https-address=")
    daemon = Daemon(implementation, tmp_path_factory.mktemp("upgrades"), flags).start()
    yield daemon
    daemon.stop()


@pytest.fixture
def daemon(upgrading_daemon: Daemon) -> Iterator[Daemon]:
    yield upgrading_daemon
    upgrading_daemon.assert_healthy()


@pytest.mark.parametrize(("client_library", "upgrades"), CASES)
def test_bodies_arrive_through_the_upgrades_of_the_library(
    client_library: str, upgrades: str, clients: Clients, daemon: Daemon, topic: str, certificates: Certificates
) -> None:
    ca_file = str(certificates.authority.path) if "tls_v1" in upgrades else ""
    consumer = clients.consumer(client_library, topic, "ch", max_in_flight=2, upgrades=upgrades, ca_file=ca_file)
    channel = daemon.channel(topic, "ch")
    assert channel is not None
    (stats,) = channel["clients"]
    told = {"tls_v1": stats["tls"], "snappy": stats["snappy"], "deflate": stats["deflate"]}
    assert {name for name, has in told.items() if has} == set(upgrades.split(","))
    producer = clients.producer(client_library, upgrades=upgrades, ca_file=ca_file)
    for body in BODIES:
        producer.publish("pub", topic, body)
        message = consumer.expect("message")
        assert message["body"] == body
        consumer.finish(message)
    producer.publish("mpub", topic, *BODIES)
    received = []
    for _ in BODIES:
        message = consumer.expect("message")
        received.append(message["body"])
        consumer.finish(message)
    assert sorted(received) == sorted(BODIES)
    settled(daemon, topic, "ch", finished_count=2 * len(BODIES))
    assert (consumer.close(), producer.close()) == (0, 0)
