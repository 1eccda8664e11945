"""Cases for the HTTP ports: every route with any query and body, heads and bodies framed right and wrong."""

from __future__ import annotations

import random

from tests.support.fuzz.cases import Case, Script, cut_script, edge_size, ending, interleave, sending, spoil
from tests.support.fuzz.tcp_cases import CHANNELS, ODD_NAMES, ODD_NUMBERS, TOPICS, bodies_of, body_of
from tests.support.nsq import int32, sized

ROUTES = (
    "GET /ping",
    "GET /info",
    "GET /stats",
    "GET /metrics",
    "POST /pub",
    "POST /mpub",
    *(f"POST /topic/{verb}" for verb in ("create", "delete", "empty", "pause", "unpause", "retention", "quota")),
    *(f"POST /channel/{verb}" for verb in ("create", "delete", "empty", "pause", "unpause", "seek", "limits")),
    *(f"GET /topic/{what}" for what in ("positions", "log", "retention", "quota")),
    "GET /channel/messages",
    "GET /channel/limits",
    *(f"POST /message/{verb}" for verb in ("cancel", "reschedule", "deliver_now")),
    *(f"{method} /config/{key}" for method in ("GET", "PUT") for key in ("log_level", "nsqlookupd_tcp_addresses", "x")),
    *(f"PUT /config/{key}" for key in ("sync_timeout", "max_channel_consumers")),
    *(
        f"GET /debug/{what}"
        for what in ("heap", "greenlets", "pprof/", "pprof/cmdline", "pprof/goroutine", "pprof/heap")
    ),
    "GET /",
    "PUT /debug/setblockrate",
    "POST /debug/pprof/symbol",
    "POST /debug/freememory",
)
PARAMETERS = [
    "topic",
    "channel",
    "defer",
    "due",
    "binary",
    "format",
    "include_clients",
    "include_mem",
    "id",
    "ids",
    "count",
    "limit",
    "cursor",
    "state",
    "body",
    "max",
    "from",
    "to",
    "time",
    "position",
    "offset",
    "rate",
    "rate_limit",
    "burst",
    "max_attempts",
    "dead_letter_topic",
    "bytes",
    "retention_bytes",
    "retention_time",
    "rate_per_s",
    "lines",
    "at",
    "delay",
    "encoding",
    "start",
    "end",
    "after",
    "segment",
]
VALUES = (
    *("0", "1", "5", "100", "-1", "true", "false", "json", "text", "base64", "now", "beginning", "end", "1h", "10ms"),
    *("2026-11-21T07:00:00Z", "0000000000000000", "ready", "in_flight", "deferred", "dead_letter"),
    *("1795177302s", "fuzz_b", "[]"),
)
METHODS = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "CONNECT", "TRACE", "get", "PRI", "X" * 30)
IDLE_HEADERS = (
    b"User-Agent: fuzz",
    b"Accept: */*",
    b"Content-Type: application/x-www-form-urlencoded",
    b"Accept-Encoding: gzip",
    b"Connection: keep-alive",
)
ODD_HEADERS = (
    b"Connection: close",
    b"Connection: Upgrade",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"Expect: 100-continue",
    b"Expect: x",
    b"Host: a",
    b"X: " + b"y" * 70000,
    b"X: \x00",
    b"X: \xff\xfe",
    b" folded",
    b"\tfolded: x",
    b"no colon",
    b": no name",
    b"Content-Length : 3",
    b"X-\xc3\xbc: 1",
    b"Authorization: Bearer x",
    b"Range: bytes=0-",
    b"A: b\nC: d",
    b"A: b\r",
)
FRAMINGS = (
    (b"Content-Length: 3", b"Content-Length: 3"),
    (b"Content-Length: 3", b"Content-Length: 5"),
    (b"Content-Length: 3, 3",),
    (b"Content-Length: +3",),
    (b"Content-Length: -1",),
    (b"Content-Length: 0x3",),
    (b"Content-Length: 99999999999999999999",),
    (b"Content-Length: 1000000",),
    (b"Content-Length: 003",),
    (b"Content-Length:",),
    (b"Content-Length: 3", b"Transfer-Encoding: chunked"),
    (b"Transfer-Encoding: chunked", b"Content-Length: 3"),
    (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
    (b"Transfer-Encoding: gzip, chunked",),
    (b"Transfer-Encoding: chunked, gzip",),
    (b"Transfer-Encoding: xchunked",),
    (b"Transfer-Encoding:\x0bchunked",),
    (b"Transfer-Encoding : chunked",),
    (b"Transfer-Encoding: CHUNKED",),
    (b"Transfer-Encoding: identity",),
)


def escaped(rng: random.Random, text: str) -> str:
    """Write some of the characters as escapes, and at times a wrong one."""
    if rng.random() < 0.8:
        return text
    made = "".join(f"%{byte:02x}" if rng.random() < 0.3 else chr(byte) for byte in text.encode())
    return made + rng.choice(("", "", "%", "%g1", "%0", "%ff", "%00", "+", "%c3%bc"))


def value_of(rng: random.Random, name: str) -> str:
    if name == "topic" or name == "dead_letter_topic":
        return rng.choice(TOPICS if rng.random() < 0.95 else ODD_NAMES)
    if name == "channel":
        return rng.choice(CHANNELS if rng.random() < 0.95 else ODD_NAMES)
    if name == "id":
        return f"{rng.getrandbits(64):016x}"
    return rng.choice(VALUES if rng.random() < 0.8 else ODD_NUMBERS)


def query_of(rng: random.Random) -> str:
    names = [name for name, share in (("topic", 0.9), ("channel", 0.6)) if rng.random() < share]
    names += rng.sample(PARAMETERS, rng.choice((0, 0, 1, 2, 5)))
    if rng.random() < 0.05:
        names += [rng.choice(("", "x" * 5000, "topic", "=", "&", ";"))]
    query = "&".join(f"{name}={escaped(rng, value_of(rng, name))}" for name in names)
    return f"?{query}" if query or rng.random() < 0.1 else ""


def target_of(rng: random.Random, path: str) -> bytes:
    kind = rng.random()
    if kind < 0.04:
        path = rng.choice(
            (path + "/", "/" + path, path.upper(), path + "/../ping", "http://h" + path, "*", "x", path + "#a")
        )
    elif kind < 0.06:
        path = escaped(rng, path) + "x" * rng.choice((1, 70000))
    return (path + query_of(rng)).encode("utf-8", "surrogateescape")


def payload_of(rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return b""
    if kind == 1:
        bodies = bodies_of(rng)
        return int32(rng.choice((len(bodies), len(bodies), 0, -1, len(bodies) + 1))) + b"".join(map(sized, bodies))
    if kind == 2:
        return b"\n".join(bodies_of(rng))
    if kind == 3:
        return rng.choice(
            (b"info", b"debug", b"warn", b"[]", b"null", b'["127.0.0.1:1"]', b"[1]", b"1s", b"-1", b"rate=7")
        )
    return body_of(rng)


def chunked(rng: random.Random, body: bytes) -> bytes:
    """Frame a body in chunks, at times with sizes that lie."""
    made = []
    while body:
        size = rng.randint(1, max(1, len(body)))
        shown = b"%x" % (size if rng.random() < 0.97 else rng.choice((0, size + 1, 2**31, 2**64, 2**70)))
        extension = rng.choice((b"", b"", b"", b";a=b", b" ", b";" + b"x" * rng.choice((10, 20000))))
        made.append(shown + extension + b"\r\n" + body[:size] + b"\r\n")
        body = body[size:]
    trailers = rng.choice((b"", b"", b"Trailer: x\r\n", b"Content-Length: 9\r\n", b"X: " + b"z" * 70000 + b"\r\n"))
    return b"".join(made) + b"0\r\n" + trailers + b"\r\n"


def plain_publish(rng: random.Random) -> bytes:
    """Return a publish of the form that has the short way, or one that nearly has it."""
    body = body_of(rng)
    headers = [b"Host: x", b"Content-Length: %d" % len(body), *rng.sample(IDLE_HEADERS, rng.randint(0, 3))]
    if rng.random() < 0.2:
        headers.append(rng.choice(ODD_HEADERS))
    rng.shuffle(headers)
    topic = value_of(rng, "topic").encode()
    head = b"POST /pub?topic=" + topic + b" HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in headers) + b"\r\n"
    return head + body


def request_of(rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return plain_publish(rng)
    method, path = rng.choice(ROUTES).split(" ", 1)
    if rng.random() < 0.08:
        method = rng.choice(METHODS)
    version = (
        b"HTTP/1.1" if rng.random() < 0.9 else rng.choice((b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.2", b"HTTP/0.9", b""))
    )
    body = payload_of(rng) if method != "GET" or rng.random() < 0.2 else b""
    headers = [b"Host: x"] if rng.random() < 0.97 else []
    headers += rng.sample(IDLE_HEADERS, rng.randint(0, 2))
    if rng.random() < 0.2:
        headers.append(rng.choice(ODD_HEADERS))
    framing = rng.random()
    if framing < 0.1:
        headers += rng.choice(FRAMINGS)
        body = chunked(rng, body) if rng.random() < 0.5 else body
    elif framing < 0.3:
        headers.append(b"Transfer-Encoding: chunked")
        body = chunked(rng, body)
    elif body or rng.random() < 0.3:
        headers.append(b"Content-Length: %d" % len(body))
    if rng.random() < 0.03:
        headers += [b"A%d: b" % number for number in range(rng.choice((50, 3000)))]
    rng.shuffle(headers)
    end = b"\r\n" if rng.random() < 0.97 else rng.choice((b"\n", b"\r"))
    head = method.encode() + b" " + target_of(rng, path) + b" " + version
    return head + end + b"".join(line + end for line in headers) + end + body


def script_of(rng: random.Random) -> Script:
    requests = b"".join(request_of(rng) for _ in range(rng.choice((1, 2, 5, 20))))
    if rng.random() < 0.05:
        requests += b"POST /pub?topic=f HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n" + b"z" * edge_size(rng)
    if rng.random() < 0.25:
        requests = spoil(rng, requests)
    script = Script("http" if rng.random() < 0.85 else "https", [*sending(rng, requests), *ending(rng)])
    return cut_script(rng, script) if rng.random() < 0.2 else script


def http_case(rng: random.Random, number: int) -> Case:
    return interleave(rng, number, [script_of(rng) for _ in range(rng.choice((1, 1, 2, 4)))])
