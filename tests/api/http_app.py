"""A broker with an HTTP server and nothing else, as a process: prints its address, stops when its input ends.

Arguments: data directory, address to listen on, flags of the daemon. The disk refuses every segment of the topic "full"
beyond its first. The environment variable PROFILERS is the search path for py-spy.
"""

import errno
import os
import sys
import time

import gevent
from gevent.fileobject import FileObject

from pyqd.api.publish import plain_publishers
from pyqd.apps.listeners import accepted_sites, http_settings
from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from pyqd.debug.profiler import Profiler
from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.http.messages import Request, Response, Route
from pyqd.http.server import HttpServer
from pyqd.metrics.identity import Identity, port_of
from pyqd.primitives.addresses import split_address
from pyqd.primitives.errors import DiskFull
from pyqd.primitives.loglines import LogLevel, configure
from tests.support.routes import routes_of

FIRST_SEGMENT_BYTES = 64 << 10

PRODUCER = {
    "client_id": "prod",
    "hostname": "prodhost",
    "version": "V2",
    "remote_address": "127.0.0.1:54952",
    "state": 0,
    "ready_count": 0,
    "in_flight_count": 0,
    "message_count": 0,
    "finish_count": 0,
    "requeue_count": 0,
    "connect_ts": 1795177302,
    "user_agent": "ua/1",
    "pub_counts": [{"topic": "other", "count": 1}, {"topic": "orders", "count": 6}],
    "tls": False,
}


class FullForOne(Files):
    """A disk on which one topic gets no more room."""

    def new_mapped(self, path: str | None, size_bytes: int, populate: bool) -> Mapping:
        if path is not None and "/full.topic/log" in path and size_bytes > FIRST_SEGMENT_BYTES:
            raise DiskFull("reserve", path, 28, "No space left on device")
        return super().new_mapped(path, size_bytes, populate)


def broken(_request: Request) -> Response:
    """Fail, as a handler with an internal error does."""
    raise KeyError("a bug")


def without_space(_request: Request) -> Response:
    """Fail, as a handler does if the disk is full."""
    raise DiskFull("store in", "topic t", errno.ENOSPC, "No space left on device")


def large(_request: Request) -> Response:
    """Answer with more than a socket takes at once."""
    return Response(200, bytes(32 << 20), "application/octet-stream")


def option(request: Request) -> Response:
    """Answer with the parameter in the path."""
    return Response(200, request.match.argument.encode(), "text/plain")


def main() -> None:
    data_path, address, *flags = sys.argv[1:]
    options = parse_args([f"--data-path={data_path}", *flags])
    configure("[test] ", LogLevel.INFO)
    broker = Broker(options, FullForOne())
    broker.load()
    loop = gevent.get_hub().loop
    broker.scheduler.on_wake_wanted = lambda: loop.run_callback(broker.scheduler.run_wakes)
    identity = Identity(hostname="host1", start_ns=time.time_ns(), tcp_port=4150, producers=lambda: [PRODUCER])
    extra = [
        Route("GET", "/broken", broken),
        Route("POST", "/without_space", without_space),
        Route("GET", "/large", large),
        Route("GET", "/config/:opt", option),
        Route("PUT", "/config/:opt", option),
        Route("GET", "/debug/pprof/", option, common_headers=False),
    ]
    profiler = Profiler(os.environ.get("PROFILERS"))
    routes = [*routes_of(broker, identity, profiler), *extra]
    sites = accepted_sites(options)
    server = HttpServer(
        routes, short_path=plain_publishers(broker, sites), settings=http_settings(options), sites=sites
    )
    bound = server.start(split_address(address))
    identity.http_port = port_of(bound)
    print(bound, flush=True)
    FileObject(sys.stdin.fileno(), "rb", closefd=False).read()
    server.stop()
    profiler.stop()
    # The greenlets of the connections see their sockets shut.
    while server.connections:
        gevent.sleep(0)
    broker.close()


if __name__ == "__main__":
    main()
