"""The server over sockets: conventions, connections, limits."""

import http.client
import re
import socket
from pathlib import Path

import pytest

from tests.api.conftest import WAIT_S, HttpApp, read_reply, read_to_end

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
V1 = "X-Nsq-Content-Type"


def test_a_string_is_answered_as_it_is(app: HttpApp) -> None:
    reply = app.post("/pub?topic=a", b"x")
    assert (reply.status, reply.body) == (200, b"OK")
    assert reply.headers["Content-Type"] == TEXT
    assert reply.headers[V1] == "nsq; version=1.0"
    assert reply.headers["Content-Length"] == "2"
    assert reply.headers["Date"].endswith(" GMT")


def test_an_error_is_json_with_a_code(app: HttpApp) -> None:
    reply = app.post("/pub", b"x")
    assert (reply.status, reply.body) == (400, b'{"message":"MISSING_ARG_TOPIC"}')
    assert reply.headers["Content-Type"] == JSON
    assert reply.headers[V1] == "nsq; version=1.0"


def test_ping_names_no_version_of_the_api(app: HttpApp) -> None:
    reply = app.get("/ping")
    assert (reply.status, reply.body) == (200, b"OK")
    assert reply.headers["Content-Type"] == TEXT
    assert V1 not in reply.headers


@pytest.mark.parametrize("path", ["/", "/put", "/pub/x", "/config", "/config/", "/config/a/b", "/%zz"])
def test_an_unknown_path_is_not_found(app: HttpApp, path: str) -> None:
    reply = app.get(path)
    assert (reply.status, reply.body) == (404, b'{"message":"NOT_FOUND"}')
    assert reply.headers[V1] == "nsq; version=1.0"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/ping", "GET, HEAD, OPTIONS"),
        ("GET", "/pub", "OPTIONS, POST"),
        ("DELETE", "/stats", "GET, HEAD, OPTIONS"),
        ("POST", "/config/x", "GET, HEAD, OPTIONS, PUT"),
    ],
)
def test_the_answer_to_a_wrong_method_names_the_allowed_ones(app: HttpApp, method: str, path: str, allow: str) -> None:
    reply = app.request(method, path)
    assert (reply.status, reply.body) == (405, b'{"message":"METHOD_NOT_ALLOWED"}')
    assert reply.headers["Allow"] == allow
    assert reply.headers[V1] == "nsq; version=1.0"


def head_of(said: bytes) -> bytes:
    """Return the bytes up to the body, without the date."""
    return re.sub(rb"Date: [^\r]*\r\n", b"", said.partition(b"\r\n\r\n")[0])


@pytest.mark.parametrize(
    "path", ["/ping", "/stats?format=json", "/info", "/topic/log", "/PING", "/stats/", "/config/x"]
)
def test_head_is_answered_as_get_without_the_body(app: HttpApp, path: str) -> None:
    request = f" {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    got, head = app.exchange(b"GET" + request), app.exchange(b"HEAD" + request)
    assert head.endswith(b"\r\n\r\n")
    length = re.compile(rb"Content-Length: (\d+)")
    assert length.sub(b"", head_of(head)) == length.sub(b"", head_of(got))
    (announced,) = length.findall(head)
    # Between the two the numbers of /stats may get another digit.
    assert abs(int(announced) - len(got.partition(b"\r\n\r\n")[2])) < 100


def test_a_request_behind_a_head_is_answered(app: HttpApp) -> None:
    said = app.exchange(
        b"HEAD /ping HTTP/1.1\r\nHost: x\r\n\r\nGET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"200"]
    assert said.count(b"\r\n\r\nOK") == 1


def test_head_on_a_post_route_is_refused_and_has_no_effect(app: HttpApp) -> None:
    said = app.exchange(b"HEAD /topic/create?topic=by_head HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert said.endswith(b"\r\n\r\n")
    assert not app.request("GET", "/stats?format=json&topic=by_head").json()["topics"]


@pytest.mark.parametrize(("path", "allow"), [("/ping", "GET, HEAD, OPTIONS"), ("/config/x", "GET, HEAD, OPTIONS, PUT")])
def test_options_lists_the_methods(app: HttpApp, path: str, allow: str) -> None:
    reply = app.request("OPTIONS", path)
    assert (reply.status, reply.body, reply.headers["Allow"]) == (200, b"", allow)
    assert reply.headers["Content-Length"] == "0"
    assert V1 not in reply.headers
    assert "Content-Type" not in reply.headers


def test_options_of_an_unknown_path_is_not_found(app: HttpApp) -> None:
    assert app.request("OPTIONS", "/nothing").status == 404
    assert app.request("OPTIONS", "*").status == 200


@pytest.mark.parametrize("path", ["/ping/", "//ping", "/PING", "/x/../ping", "/Ping//"])
def test_a_path_that_is_nearly_right_is_redirected(app: HttpApp, path: str) -> None:
    reply = app.get(f"{path}?a=1&b=%3C")
    assert (reply.status, reply.headers["Location"]) == (301, "/ping?a=1&b=%3C")
    assert reply.body == b'<a href="/ping?a=1&amp;b=%3C">Moved Permanently</a>.\n\n'
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    assert V1 not in reply.headers


def test_the_slash_of_a_path_that_ends_in_one_is_added(app: HttpApp) -> None:
    assert app.get("/debug/pprof").headers["Location"] == "/debug/pprof/"
    assert app.get("/debug/pprof/").status == 200


def test_a_redirect_of_a_post_keeps_method_and_body(app: HttpApp) -> None:
    reply = app.post("/pub/?topic=a", b"x")
    assert (reply.status, reply.headers["Location"], reply.body) == (307, "/pub?topic=a", b"")
    assert "Content-Type" not in reply.headers


def test_a_near_path_with_the_wrong_method_is_not_found(app: HttpApp) -> None:
    assert app.get("/pub/").status == 404


def test_a_path_may_end_in_a_parameter(app: HttpApp) -> None:
    assert app.get("/config/log_level").body == b"log_level"
    assert app.request("PUT", "/config/a%20b", b"ignored").body == b"a b"


def test_a_bug_in_a_handler_is_an_internal_error_and_logged(app: HttpApp) -> None:
    reply = app.get("/broken")
    assert (reply.status, reply.body) == (500, b'{"message":"INTERNAL_ERROR"}')
    assert "KeyError" in app.log_text()


def test_a_call_that_the_disk_refuses_is_answered_with_the_reason(app: HttpApp) -> None:
    reply = app.post("/without_space")
    reason = "failed to store in topic t - No space left on device"
    assert (reply.status, reply.json()) == (503, {"message": f"STORAGE_FAILED: {reason}"})
    assert f"HTTP: POST /without_space failed: {reason}" in app.log_text()
    assert "Traceback" not in app.log_text().partition("/without_space")[2]


@pytest.mark.parametrize("query", ["topic=%zz", "topic=%4", "topic=a;b=c", "%=a", "topic=a&x=%q"])
def test_a_malformed_query_is_refused(app: HttpApp, query: str) -> None:
    for reply in (app.post(f"/pub?{query}", b"x"), app.get(f"/stats?{query}")):
        assert (reply.status, reply.body) == (400, b'{"message":"INVALID_REQUEST"}')


def test_a_target_may_be_a_whole_url(app: HttpApp) -> None:
    said = app.exchange(b"GET http://example.org/ping?x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert said.endswith(b"\r\n\r\nOK")


def test_requests_are_logged_but_for_publishing(app: HttpApp) -> None:
    app.get("/config/logged?x=%20y")
    app.post("/pub?topic=unlogged", b"x")
    app.post("/pub?topic=unlogged!", b"x")
    app.get("/nothing/of/the/kind")
    log = app.log_text()
    found = re.search(r"INFO: 200 GET /config/logged\?x=%20y \(127\.0\.0\.1:\d+\) [\d.]+(ns|µs|ms|s)\n", log)
    assert found is not None
    assert "INFO: 404 GET /nothing/of/the/kind (" in log
    assert "unlogged" not in re.sub(r"TOPIC\(.*", "", log)


def test_a_connection_serves_many_requests(app: HttpApp) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", app.port, timeout=10)
    for _ in range(3):
        connection.request("POST", "/pub?topic=kept", body=b"x")
        reply = read_reply(connection.getresponse())
        assert (reply.status, reply.body) == (200, b"OK")
        assert "Connection" not in reply.headers
    connection.close()


def test_pipelined_requests_are_answered_in_order(app: HttpApp) -> None:
    names = [f"opt{number}".encode() for number in range(500)]
    data = b"".join(b"GET /config/%b HTTP/1.1\r\nHost: x\r\n\r\n" % name for name in names)
    said = app.exchange(data + b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /ping HTTP/1.1\r\n")
    bodies = [part.partition(b"\r\n\r\n")[2] for part in said.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert bodies == [*names, b"OK"]
    assert said.count(b"Connection: close\r\n") == 1


def test_a_request_may_come_byte_by_byte(app: HttpApp) -> None:
    data = b"POST /pub?topic=slow HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    with app.connect() as connection:
        for index in range(len(data)):
            connection.sendall(data[index : index + 1])
        assert read_to_end(connection).endswith(b"\r\n\r\nOK")


def test_http_1_0_closes_unless_asked_to_stay(app: HttpApp) -> None:
    said = app.exchange(b"GET /ping HTTP/1.0\r\n\r\n")
    assert said.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"Connection: close\r\n" in said
    said = app.exchange(b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /ping HTTP/1.0\r\n\r\n")
    assert said.count(b"HTTP/1.0 200 OK\r\n") == 2
    assert b"Connection: keep-alive\r\n" in said


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET /ping HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/2.0\r\nHost: x\r\n\r\n",
        b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /pub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_invalid_http_is_refused_and_the_connection_closed(app: HttpApp, data: bytes) -> None:
    said = app.exchange(data)
    assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert said.endswith(b"\r\n\r\n400 Bad Request")


def test_a_good_request_before_a_bad_one_is_answered(app: HttpApp) -> None:
    said = app.exchange(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\nnonsense\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"400"]


def test_endless_headers_are_refused(app: HttpApp) -> None:
    with app.connect() as connection:
        connection.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n")
        for _ in range(40):
            connection.sendall(b"X: " + 8000 * b"x" + b"\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


def test_an_offer_of_another_protocol_is_not_taken(app: HttpApp) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    said = app.exchange(
        b"POST /pub?topic=offer HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n" + offer + b"\r\nhello"
        b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"200"]
    assert said.count(b"Connection: close\r\n") == 1


def test_a_bad_request_that_offers_another_protocol_is_refused(app: HttpApp) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    assert app.exchange(b"GET /ping HTTP/1.1\r\n" + upgrade).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    said = app.exchange(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\nGET /ping HTTP/1.1\r\n" + upgrade)
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"400"]


def test_a_client_that_expects_100_continue_gets_it(app: HttpApp) -> None:
    with app.connect() as connection:
        connection.sendall(
            b"POST /pub?topic=e HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        )
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        assert connection.recv(1000).endswith(b"\r\n\r\nOK")


def test_a_client_of_http_1_0_gets_the_final_answer_alone(app: HttpApp) -> None:
    head = b"POST /pub?topic=e HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    with app.connect() as connection:
        connection.sendall(head % 3)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1000)
        connection.settimeout(WAIT_S)
        connection.sendall(b"abc")
        said = read_to_end(connection)
    assert re.findall(rb"HTTP/1\.\d (\d+)", said) == [b"200"]
    # Such a client sends the body without leave: the refusal comes when it has been read.
    said = app.exchange(head % 1001 + bytes(1001))
    assert re.findall(rb"HTTP/1\.\d (\d+)", said) == [b"413"]


@pytest.mark.parametrize(
    ("target", "length", "status"), [(b"/pub?topic=e", 1001, b"413"), (b"/nothing", 3, b"404"), (b"/ping", 3, b"405")]
)
def test_a_request_that_will_be_refused_gets_no_100_continue(
    app: HttpApp, target: bytes, length: int, status: bytes
) -> None:
    said = app.exchange(
        b"POST %b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (target, length)
    )
    assert said.startswith(b"HTTP/1.1 %b " % status)
    assert b"Connection: close\r\n" in said


def test_a_body_too_big_is_refused_before_it_comes(app: HttpApp) -> None:
    said = app.exchange(b"POST /pub?topic=e HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 413 ")
    assert said.endswith(b'{"message":"MSG_TOO_BIG"}')


def test_the_answer_to_a_body_too_big_reaches_a_client_that_sends_it_all(app: HttpApp) -> None:
    reply = app.post("/pub?topic=e", bytes(5_000_000))
    assert (reply.status, reply.body) == (413, b'{"message":"MSG_TOO_BIG"}')
    assert reply.headers["Connection"] == "close"


def test_after_a_body_slightly_too_large_the_connection_stays_open(app: HttpApp) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", app.port, timeout=10)
    connection.request("POST", "/pub?topic=e", body=bytes(1001))
    assert read_reply(connection.getresponse()).status == 413
    assert connection.sock is not None
    connection.request("POST", "/pub?topic=e", body=bytes(1000))
    assert read_reply(connection.getresponse()).status == 200
    connection.close()


def test_an_endless_chunked_body_is_cut_off(app: HttpApp) -> None:
    with app.connect() as connection:
        connection.sendall(b"POST /pub?topic=e HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(400):
            connection.sendall(b"400\r\n" + bytes(1024) + b"\r\n")
        said = read_to_end(connection)
    assert said.startswith(b"HTTP/1.1 413 ")
    assert said.endswith(b'{"message":"MSG_TOO_BIG"}')


def test_endless_trailers_are_cut_off(app: HttpApp) -> None:
    with app.connect() as connection:
        connection.sendall(b"POST /pub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ")
        for _ in range(40):
            connection.sendall(8000 * b"x")
        assert read_to_end(connection).startswith(b"HTTP/1.1 431 ")


def test_an_unexpected_body_is_dropped(app: HttpApp) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", app.port, timeout=10)
    for _ in range(2):
        connection.request("GET", "/ping", body=bytes(5000))
        assert read_reply(connection.getresponse()).body == b"OK"
    connection.close()


@pytest.mark.slow
def test_a_large_answer_waits_for_a_slow_reader_and_others_do_not(app: HttpApp) -> None:
    with app.connect() as slow:
        slow.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert slow.recv(1) == b"H"
        assert app.get("/ping").body == b"OK"
        assert len(read_to_end(slow)) > 32 << 20


def test_a_client_that_disconnects_is_harmless(app: HttpApp) -> None:
    for data in (
        b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1",
    ):
        with app.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            connection.sendall(data)
    assert app.get("/ping").body == b"OK"
    assert "Traceback" not in re.sub(
        "(?s)internal error in the handler of /broken.*?KeyError: 'a bug'", "", app.log_text()
    )


@pytest.mark.slow
def test_a_client_that_sends_nothing_more_is_given_up(tmp_path: Path) -> None:
    app = HttpApp(tmp_path, wait_s=0.05)
    starts = [
        b"",
        b"GET /ping HTTP/1.1\r\nHo",
        b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1",
        b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    connections = [app.connect() for _ in starts]
    for connection, start in zip(connections, starts, strict=True):
        connection.sendall(start)
    for connection in connections[:3]:
        assert connection.recv(1) == b""
    for connection in connections:
        connection.close()
    assert app.get("/ping").body == b"OK"
    assert app.stop() == 0


@pytest.mark.slow
def test_a_stop_ends_open_connections(tmp_path: Path) -> None:
    app = HttpApp(tmp_path)
    with app.connect() as idle, app.connect() as halfway:
        halfway.sendall(b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1")
        assert app.get("/ping").status == 200
        assert app.stop() == 0
        assert idle.recv(1) == b""
        assert halfway.recv(1) == b""


@pytest.mark.slow
def test_a_unix_socket_serves_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    app = HttpApp(tmp_path, str(path))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(b"GET /info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b'"http_port":-1' in read_to_end(connection)
    assert app.stop() == 0
    assert " GET /info (@) " in app.log_text()
    assert not path.exists()


@pytest.mark.slow
def test_an_address_in_use_is_reported_with_nsqd_s_text(app: HttpApp, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        HttpApp(tmp_path, f"127.0.0.1:{app.port}")
    where = f"127.0.0.1:{app.port}"
    assert f"listen ({where}) failed - listen tcp {where}: bind: address already in use" in str(caught.value)
