"""Limits on connections, topics, channels, buffers and time: each refuses clearly, and the daemon goes on."""

import contextlib
import http.client
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from tests.support.nsq import ERROR, MAGIC, RESPONSE, Client, Closed, identify, pub, sub
from tests.support.server import Daemon, daemons_running, free_port, pyqd, wait_until
from tests.support.streams import IDENTIFIER, stored_chunk

WAIT_S = 10.0
BODY_BYTES = 4 << 20


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    with daemons_running() as start_daemon:
        yield lambda *flags: start_daemon(Daemon(pyqd(), tmp_path, flags))


def raw(daemon: Daemon) -> socket.socket:
    return socket.create_connection(daemon.tcp_address, WAIT_S)


def ended(connection: socket.socket) -> bool:
    """Read to the end of a connection that the server closes. Returns: True."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65536):
            pass
    return True


def refused(daemon: Daemon) -> bytes:
    """Return the error that a client gets which sends IDENTIFY at once."""
    with Client(daemon.tcp_address) as client:
        client.send(identify({}))
        frame = client.read_frame()
        assert frame.type == ERROR
        with pytest.raises(Closed):
            client.read_frame()
        return frame.data


def is_served(daemon: Daemon) -> bool:
    with Client(daemon.tcp_address) as client:
        client.send(identify({}))
        return client.read_frame().type == RESPONSE


def test_a_client_beyond_the_limit_is_refused_until_another_one_leaves(start: Callable[..., Daemon]) -> None:
    daemon = start("--max-connections=2")
    with Client(daemon.tcp_address) as first, Client(daemon.tcp_address) as second:
        first.expect_alive()
        second.expect_alive()
        assert refused(daemon) == b"E_TOO_MANY_CONNECTIONS limit of 2 connections reached"
        first.expect_alive()
    wait_until(lambda: _try(lambda: is_served(daemon)), "a place is free", WAIT_S)


def _try(act: Callable[[], bool]) -> bool:
    try:
        return act()
    except (OSError, Closed):
        return False


def test_connections_of_one_address_have_a_limit_of_their_own(start: Callable[..., Daemon]) -> None:
    daemon = start("--max-connections-per-address=1")
    with Client(daemon.tcp_address) as first:
        first.expect_alive()
        assert refused(daemon) == b"E_TOO_MANY_CONNECTIONS limit of 1 connections from 127.0.0.1 reached"
        with socket.socket() as other:
            other.settimeout(WAIT_S)
            other.bind(("127.0.0.2", 0))
            other.connect(daemon.tcp_address)
            other.sendall(MAGIC + identify({}))
            assert other.recv(4096)[4:8] == bytes(4)


def test_the_limit_of_connections_can_be_changed_while_the_daemon_runs(start: Callable[..., Daemon]) -> None:
    daemon = start("--max-connections=1")
    with Client(daemon.tcp_address) as first:
        first.expect_alive()
        assert refused(daemon).startswith(b"E_TOO_MANY_CONNECTIONS")
        assert daemon.http("PUT", "/config/max_connections", b"2").status == 200
        assert is_served(daemon)
    assert b"\npyqd_tcp_refused_total 1.0\n" in daemon.http("GET", "/metrics").body


def test_one_http_connection_too_many_is_answered_503(start: Callable[..., Daemon]) -> None:
    daemon = start("--max-http-connections=1")
    held: list[http.client.HTTPConnection] = []

    def holds() -> bool:
        web = http.client.HTTPConnection(*daemon.http_address, timeout=WAIT_S)
        web.request("GET", "/ping")
        response = web.getresponse()
        response.read()
        held.append(web)
        return response.status == 200

    wait_until(holds, "a connection is served", WAIT_S)
    reply = daemon.http("GET", "/ping")
    assert (reply.status, reply.body) == (503, b'{"message":"TOO_MANY_CONNECTIONS"}')
    assert reply.headers["connection"] == "close"
    held[-1].request("GET", "/ping")
    assert held[-1].getresponse().read() == b"OK"
    for web in held:
        web.close()


def test_a_failed_handshake_gives_its_place_back(start: Callable[..., Daemon], tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    port = free_port()
    flags = (*certificates.server_flags(), f"--https-address=127.0.0.1:{port}", "--max-http-connections=3")
    start(*flags)
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as web:
            web.sendall(b"GET /ping HTTP/1.1\r\n\r\n")
            assert ended(web)

    def is_answered() -> bool:
        web = http.client.HTTPSConnection("127.0.0.1", port, timeout=WAIT_S, context=certificates.client_context())
        try:
            web.request("GET", "/ping")
            return web.getresponse().read() == b"OK"
        finally:
            web.close()

    wait_until(lambda: _try(is_answered), "a place is free", WAIT_S)


def test_no_more_topics_are_made_than_there_may_be(start: Callable[..., Daemon]) -> None:
    daemon = start("--max-topics=1")
    assert daemon.http("POST", "/pub", b"x", topic="one").status == 200
    for path in ("/pub", "/mpub", "/topic/create"):
        reply = daemon.http("POST", path, b"x", topic="two")
        assert (reply.status, reply.body) == (403, b'{"message":"TOO_MANY_TOPICS"}'), path
    for command in (pub("two", b"x"), sub("two", "c")):
        with Client(daemon.tcp_address) as client:
            client.send(command)
            assert client.read_frame().data == b"E_TOO_MANY_TOPICS topic two exceeds limit of 1"
    assert daemon.http("POST", "/pub", b"x", topic="one").status == 200
    assert daemon.http("GET", "/ping").body == b"OK"
    assert set(daemon.topics()) == {"one"}
    assert daemon.http("POST", "/topic/delete", topic="one").status == 200
    assert daemon.http("POST", "/topic/create", topic="two").status == 200


def test_topics_from_before_are_all_there_whatever_the_limit(start: Callable[..., Daemon]) -> None:
    daemon = start()
    for name in ("one", "two"):
        daemon.http("POST", "/topic/create", topic=name)
    daemon.stop()
    daemon.flags = ("--max-topics=1",)
    daemon.start()
    assert set(daemon.topics()) == {"one", "two"}
    assert daemon.http("POST", "/pub", b"x", topic="two").status == 200


def test_no_more_channels_are_made_than_a_topic_may_have(start: Callable[..., Daemon]) -> None:
    daemon = start("--max-channels-per-topic=1")
    with Client(daemon.tcp_address) as first, Client(daemon.tcp_address) as second:
        first.sub("t", "one")
        second.send(sub("t", "two"))
        assert second.read_frame().data == b"E_TOO_MANY_CHANNELS channel two of topic t exceeds limit of 1"
        first.expect_alive()
    reply = daemon.http("POST", "/channel/create", topic="t", channel="two")
    assert (reply.status, reply.body) == (403, b'{"message":"TOO_MANY_CHANNELS"}')
    with Client(daemon.tcp_address) as other:
        other.sub("other", "two")


@pytest.mark.parametrize("sent", [b"", b"  V", MAGIC, MAGIC + b"IDENT", MAGIC + b"IDENTIFY\n\x00\x00\x01\x00{"])
def test_a_client_that_does_not_come_to_its_first_command_is_closed(start: Callable[..., Daemon], sent: bytes) -> None:
    daemon = start("--first-command-timeout=200ms")
    with raw(daemon) as slow, Client(daemon.tcp_address) as quick:
        quick.expect_alive()
        slow.sendall(sent)
        assert ended(slow)
        quick.expect_alive()
    assert "closing - no first command in time" in daemon.log_text()


def test_a_client_that_does_not_finish_a_command_is_closed(start: Callable[..., Daemon]) -> None:
    daemon = start("--command-timeout=200ms")
    with Client(daemon.tcp_address) as idle, raw(daemon) as slow:
        idle.identify(heartbeat_interval=-1)
        slow.sendall(MAGIC + identify({"heartbeat_interval": -1}) + pub("t", b"x" * 100)[:-1])
        assert ended(slow)
        idle.expect_alive()
    assert "closing - the rest of a command did not come in time" in daemon.log_text()
    assert daemon.topic("t") is None


def test_the_largest_buffers_go_when_all_together_take_too_much(start: Callable[..., Daemon]) -> None:
    # The largest buffer holds 3.1 to 6.3 MB, depending on the arrival of its bytes: a buffer grows to twice its
    # content.
    daemon = start("--max-buffer-bytes=5000000", "--max-http-connections=0")
    small, large, largest = raw(daemon), raw(daemon), raw(daemon)
    with small, large, largest, socket.create_connection(daemon.http_address, WAIT_S) as web:
        small.sendall(MAGIC + pub("t", b"x" * 1000)[:-1])
        large.sendall(MAGIC + b"MPUB t\n" + BODY_BYTES.to_bytes(4, "big") + bytes(3) + b"\1" + bytes(2) + b"\xff\xff")
        large.sendall(b"x" * 1000)
        web.sendall(b"POST /mpub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n" + b"x" * 2_000_000)
        head = MAGIC + b"MPUB t\n" + BODY_BYTES.to_bytes(4, "big") + (5).to_bytes(4, "big")
        messages = ((1 << 20) - 64).to_bytes(4, "big") + b"x" * ((1 << 20) - 64)
        largest.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionError):
            largest.sendall(head + messages * 3 + (1 << 20).to_bytes(4, "big") + b"x" * 1000)
        assert ended(largest)
        assert "buffers take more than 5000000 bytes, its own" in daemon.log_text()
        small.sendall(b"x")
        assert small.recv(10)[8:] == b"OK"
        web.sendall(b"x" * 1_999_999 + b"\n")
        assert web.recv(12) == b"HTTP/1.1 413"
    assert daemon.log_text().count("buffers take more") == 1
    scraped = daemon.http("GET", "/metrics").body
    assert b"\npyqd_connections_shed_total 1.0\n" in scraped
    # A connection's end is seen some time after it was closed here.
    wait_until(lambda: buffer_bytes(daemon) == 0.0, "nothing is buffered")


def buffer_bytes(daemon: Daemon) -> float:
    scraped = daemon.http("GET", "/metrics").body.decode()
    return float(next(line.split()[1] for line in scraped.splitlines() if line.startswith("pyqd_buffer_bytes ")))


@pytest.mark.parametrize(
    ("upgrade", "least_bytes"),
    [({}, 0), ({"tls_v1": True}, 40_000), ({"snappy": True}, 60_000), ({"deflate": True}, 400_000)],
    ids=lambda value: next(iter(value), "plain") if isinstance(value, dict) else "",
)
def test_memory_of_tls_and_compression_counts_until_the_connection_ends(
    start: Callable[..., Daemon], tmp_path: Path, upgrade: dict[str, object], least_bytes: int
) -> None:
    certificates = Certificates(tmp_path)
    daemon = start(*certificates.server_flags())
    with Client(daemon.tcp_address) as client:
        reply = client.identify(**upgrade)
        if reply["tls_v1"]:
            client.start_tls(certificates.client_context())
        if reply["snappy"]:
            # The beginning of a chunk is kept until the rest has come.
            client.start_snappy().below.sendall(IDENTIFIER + stored_chunk(bytes(60_000))[:-1])
        if reply["deflate"]:
            client.start_deflate()
        wait_until(lambda: buffer_bytes(daemon) >= least_bytes, "what the connection holds is counted")
        assert buffer_bytes(daemon) < least_bytes + 200_000
    wait_until(lambda: buffer_bytes(daemon) == 0, "nothing is left")


def test_an_https_connection_counts_the_memory_of_tls(start: Callable[..., Daemon], tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    https_port = free_port()
    daemon = start(*certificates.server_flags(), f"--https-address=127.0.0.1:{https_port}")
    connection = http.client.HTTPSConnection("127.0.0.1", https_port, context=certificates.client_context())
    connection.request("GET", "/ping")
    assert connection.getresponse().read() == b"OK"
    assert buffer_bytes(daemon) >= 40_000
    connection.close()
    wait_until(lambda: buffer_bytes(daemon) == 0, "nothing is left")


def test_connections_are_closed_for_the_memory_of_their_compression(start: Callable[..., Daemon]) -> None:
    daemon = start("--max-buffer-bytes=2000000")
    clients = [Client(daemon.tcp_address) for _ in range(8)]
    closed = 0
    for client in clients:
        try:
            client.identify(deflate=True)
            client.start_deflate()
        except (Closed, OSError, AssertionError):
            closed += 1
    assert "buffers take more than 2000000 bytes, its own" in daemon.log_text()
    assert buffer_bytes(daemon) < 2_000_000
    for client in clients:
        client.close()
    wait_until(lambda: buffer_bytes(daemon) == 0, "nothing is left")


def test_an_http_request_that_trickles_is_closed(start: Callable[..., Daemon]) -> None:
    daemon = start("--http-body-timeout=300ms", "--http-header-timeout=300ms")
    for head in (b"GET /ping HTTP/1.1\r\nHo", b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx"):
        with socket.create_connection(daemon.http_address, WAIT_S) as web:
            web.sendall(head)
            assert ended(web)


def test_an_http_header_does_not_get_more_time_by_each_of_its_bytes(start: Callable[..., Daemon]) -> None:
    daemon = start("--http-header-timeout=300ms", "--http-idle-timeout=1h", "--http-body-timeout=1h")
    head = b"GET /ping HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 400
    with socket.create_connection(daemon.http_address, WAIT_S) as web:
        web.settimeout(0.05)
        for byte in head:
            try:
                web.sendall(bytes([byte]))
                if web.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("the whole header was waited for")


def test_http_headers_have_a_limit_by_flag(start: Callable[..., Daemon]) -> None:
    daemon = start("--max-http-header-size=1024")
    with socket.create_connection(daemon.http_address, WAIT_S) as web:
        web.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"x" * 100_000 + b"\r\n\r\n")
        assert web.recv(12) == b"HTTP/1.1 431"
    assert daemon.http("GET", "/ping").status == 200
