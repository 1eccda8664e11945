"""Stops a daemon while the kernel holds a whole publish of a kept-alive HTTP connection. Argument: the data directory.

Prints the end of the topic's log when the data counts as clean, and its end after the stop.
"""

import socket
import sys

import gevent.socket

from pyqd.apps.daemon import Daemon
from pyqd.config.options import parse_args
from pyqd.primitives.memory import leave_to_exit

PUBLISH = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"


def main() -> None:
    flags = [f"--data-path={sys.argv[1]}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    daemon = Daemon(parse_args(flags))
    daemon.start()
    topic = daemon.broker.topic("t")
    client = socket.create_connection(("127.0.0.1", daemon.identity.http_port))
    client.sendall(PUBLISH)
    gevent.socket.wait_read(client.fileno())
    assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")
    ends = []
    mark_clean = daemon.broker.mark_clean

    def mark() -> None:
        mark_clean()
        ends.append(topic.log.end)

    daemon.broker.mark_clean = mark  # type: ignore[method-assign]
    client.sendall(PUBLISH)
    # Nothing has polled since: the publish is read after the socket was shut.
    daemon.stop()
    print(*ends, topic.log.end, flush=True)
    leave_to_exit()


if __name__ == "__main__":
    main()
