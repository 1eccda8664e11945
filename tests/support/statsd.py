"""A statsd server for tests: a UDP socket on a loopback port, and the packets that a daemon sends to it."""

from __future__ import annotations

import socket
from typing import NamedTuple

WAIT_S = 10.0
LAST_KEY = "mem.gc_runs"


class Line(NamedTuple):
    """One line without its prefix. kind: c or g."""

    key: str
    value: int
    kind: str


def parse_line(line: str, prefix: str) -> Line:
    assert line.startswith(prefix), line
    key, _, rest = line.removeprefix(prefix).rpartition(":")
    value, _, kind = rest.partition("|")
    return Line(key, int(value), kind)


class StatsdServer:
    """Takes datagrams. The daemon under test sends statistics of memory too, whose last line ends a round."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(WAIT_S)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()

    def read_packets(self) -> list[bytes]:
        packets: list[bytes] = []
        while not packets or f"{LAST_KEY}:".encode() not in packets[-1]:
            packets.append(self._socket.recv(65536))
        return packets

    def read_round(self, prefix: str) -> list[Line]:
        text = b"".join(self.read_packets()).decode()
        assert text.endswith("\n")
        return [parse_line(line, prefix) for line in text.splitlines()]
