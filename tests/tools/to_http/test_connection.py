"""HTTP connections: kept, closed by the server, slow, and answers that are not HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyqd.primitives.http_client import HttpAddress
from pyqd.tools.to_http.connection import (
    HEAD_BYTES_MAX,
    OPENING_MAX,
    RequestError,
    RequestTimeoutError,
    ServerConnections,
    ServerResponse,
)
from tests.support.certificates import Certificates
from tests.support.server import free_port

REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
# Steps of a server: wait for a request and answer it with these bytes, wait for a request, or close the connection.
WAIT, CLOSE = b"wait", b"close"
TIMEOUT_S = 10.0


class Server:
    """Server with the steps of each connection; the last steps are for all further connections."""

    def __init__(self, scripts: Sequence[Sequence[bytes]]) -> None:
        self.connection_count = 0
        self.origin = HttpAddress("127.0.0.1", 0, False)
        self._scripts = scripts
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts[min(self.connection_count, len(self._scripts) - 1)]
        self.connection_count += 1
        self._writers.append(writer)
        self._tasks.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            for step in script:
                if step == CLOSE:
                    writer.close()
                    return
                await reader.readuntil(b"\r\n\r\n")
                if step != WAIT:
                    writer.write(step)
                    await writer.drain()
            await reader.read()
        writer.close()

    async def stop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*filter(None, self._tasks), return_exceptions=True)


@contextlib.asynccontextmanager
async def serving(*scripts: Sequence[bytes], tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(scripts)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.origin = HttpAddress("127.0.0.1", listening.sockets[0].getsockname()[1], tls is not None)
    try:
        yield server
    finally:
        listening.close()
        await server.stop()


def run(test: Callable[[ServerConnections], Coroutine[Any, Any, None]], connect_timeout_s: float = TIMEOUT_S) -> None:
    async def limited() -> None:
        connections = ServerConnections(connect_timeout_s)
        await asyncio.wait_for(test(connections), 30)
        connections.close()

    asyncio.run(limited())


async def ask(connections: ServerConnections, server: Server, timeout_s: float = TIMEOUT_S) -> ServerResponse:
    return await connections.request(server.origin, REQUEST, timeout_s)


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        (OK, ServerResponse(200)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", ServerResponse(204)),
        (b"HTTP/1.1 103 Early\r\nX: y\r\n\r\n" + OK, ServerResponse(200)),
        (b"HTTP/1.1 302 Found\r\nlocation: /a\r\nContent-Length: 0\r\n\r\n", ServerResponse(302, "/a")),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", ServerResponse(500)),
    ],
)
def test_a_connection_is_kept_after_a_response(answer: bytes, response: ServerResponse) -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving([answer, answer, OK]) as server:
            found = [await ask(connections, server) for _ in range(3)]
            assert (found, server.connection_count) == ([response, response, ServerResponse(200)], 1)

    run(test)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    ],
)
def test_a_connection_that_the_server_ends_is_not_used_again(answer: bytes) -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving([answer]) as server:
            assert [(await ask(connections, server)).status for _ in range(2)] == [200, 200]
            assert server.connection_count == 2

    run(test)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"])
def test_the_status_counts_even_if_the_body_ends_with_the_connection(head: bytes) -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving([head + b"hi", CLOSE]) as server:
            assert (await ask(connections, server)).status == 200

    run(test)


def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving([OK, OK, OK]) as server:
            for _ in range(2):
                assert len(await asyncio.gather(*(ask(connections, server) for _ in range(3)))) == 3
            assert server.connection_count == 3

    run(test)


def test_a_burst_of_requests_opens_few_connections_at_a_time() -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving([OK] * 100) as server:
            found = await asyncio.gather(*(ask(connections, server) for _ in range(100)))
            assert {response.status for response in found} == {200}
            assert server.connection_count < 100

    run(test)


@pytest.mark.slow
def test_a_request_may_wait_for_a_connection_in_vain() -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving([WAIT]) as server:
            # All connections are being opened, to a server that never ends the handshake.
            origin = HttpAddress("127.0.0.1", server.origin.port, True)
            asked = [connections.request(origin, REQUEST, 0.05) for _ in range(OPENING_MAX + 1)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert {str(error) for error in found} == {"no connection in time"}

    run(test)


@pytest.mark.parametrize("script", [[OK, CLOSE], [OK, WAIT, CLOSE]])
def test_a_kept_connection_that_the_server_closes_is_replaced(script: list[bytes]) -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving(script, [OK]) as server:
            assert [(await ask(connections, server)).status for _ in range(2)] == [200, 200]
            assert server.connection_count == 2

    run(test)


def test_a_new_connection_that_is_closed_without_an_answer_is_an_error() -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving([WAIT, CLOSE]) as server:
            with pytest.raises(RequestError, match="the server closed the connection"):
                await ask(connections, server)
            assert server.connection_count == 1

    run(test)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nX", "within its response"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the response is not HTTP"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "switch protocols"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES_MAX, "the head of the response has more"),
    ],
)
def test_what_is_no_response_is_an_error(answer: bytes, error: str) -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving([answer, CLOSE], [OK]) as server:
            with pytest.raises(RequestError, match=error):
                await ask(connections, server)
            # The connection is not used again.
            assert (await ask(connections, server)).status == 200

    run(test)


def test_bytes_that_no_request_asked_for_end_a_kept_connection() -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving([OK + OK, OK], [OK]) as server:
            assert [(await ask(connections, server)).status for _ in range(2)] == [200, 200]
            assert server.connection_count == 2

    run(test)


def test_a_slow_response_is_an_error_and_its_connection_is_closed() -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving([WAIT], [OK]) as server:
            with pytest.raises(RequestTimeoutError, match="no response in time"):
                await ask(connections, server, 0.05)
            assert (await ask(connections, server)).status == 200
            assert server.connection_count == 2

    run(test)


def test_a_port_without_a_server_is_an_error() -> None:
    async def test(connections: ServerConnections) -> None:
        with pytest.raises(RequestError, match="cannot connect: Connection refused"):
            await connections.request(HttpAddress("127.0.0.1", free_port(), False), REQUEST, TIMEOUT_S)

    run(test)


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_name_that_cannot_exist_is_an_error_that_names_it(host: str) -> None:
    async def test(connections: ServerConnections) -> None:
        with pytest.raises(RequestError, match=f"cannot connect: '{re.escape(host)}' is no host name: "):
            await connections.request(HttpAddress(host, 80, False), REQUEST, TIMEOUT_S)

    run(test)


@pytest.mark.slow
def test_a_server_that_does_not_finish_the_handshake_is_given_up() -> None:
    async def test(connections: ServerConnections) -> None:
        async with serving([WAIT]) as server:
            origin = HttpAddress("127.0.0.1", server.origin.port, True)
            with pytest.raises(RequestTimeoutError, match="no connection in time"):
                await connections.request(origin, REQUEST, TIMEOUT_S)

    run(test, connect_timeout_s=0.05)


def test_certificates_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server.path, certificates.server.key_path)

    async def trusted(connections: ServerConnections) -> None:
        async with serving([OK], tls=context) as server:
            assert (await ask(connections, server)).status == 200

    async def unknown(connections: ServerConnections) -> None:
        async with serving([OK], tls=context) as server:
            with pytest.raises(RequestError, match="CERTIFICATE_VERIFY_FAILED"):
                await ask(connections, server)

    run(unknown)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority.path))
    run(trusted)
