"""pynsq sends its secret, and uses the granted permissions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.conftest import Clients
from tests.interop.test_clients import settled
from tests.support.authd import Answer, AuthServer, entry, state
from tests.support.server import Daemon, Implementation, running

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

PRODUCER, CONSUMER = "the secret of producers", "the secret of consumers"
ANSWER_OF = {
    PRODUCER: state(entry("_open$", permissions="publish")),
    CONSUMER: state(entry("_open$", ("^ch$",), "subscribe"), identity="consumer"),
}


@pytest.fixture
def authd() -> Iterator[AuthServer]:
    server = AuthServer(lambda query: ANSWER_OF.get(query.secret, Answer(403, b"")))
    yield server
    server.stop()


@pytest.fixture
def daemon(
    implementation: Implementation, tmp_path_factory: pytest.TempPathFactory, authd: AuthServer
) -> Iterator[Daemon]:
    flags = (f"-auth-http-address={authd.address}",)
    with running(Daemon(implementation, tmp_path_factory.mktemp("auth"), flags)) as started:
        yield started


def test_pynsq_publishes_and_consumes_as_its_secrets_permit(clients: Clients, daemon: Daemon, topic: str) -> None:
    topic += "_open"
    consumer = clients.consumer("pynsq", topic, "ch", auth_secret=CONSUMER)
    channel = daemon.channel(topic, "ch")
    assert channel is not None
    assert [client["auth_identity"] for client in channel["clients"]] == ["consumer"]
    producer = clients.producer("pynsq", auth_secret=PRODUCER)
    producer.publish("pub", topic, b"hello")
    message = consumer.expect("message")
    assert message["body"] == b"hello"
    consumer.finish(message)
    settled(daemon, topic, "ch", finished_count=1)
    assert (consumer.close(), producer.close()) == (0, 0)
