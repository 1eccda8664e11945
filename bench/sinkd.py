"""Run the sink as a daemon that takes the flags of the others: `python -m bench.sinkd -tcp-address=HOST:PORT ...`."""

import argparse
import socket
from contextlib import ExitStack
from pathlib import Path

from bench.sink import serve


def listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    listener = socket.create_server((host, int(port)), backlog=4096)
    listener.setblocking(False)
    return listener


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sinkd", description=__doc__)
    parser.add_argument("-tcp-address", required=True, metavar="HOST:PORT")
    parser.add_argument("-http-address", required=True, metavar="HOST:PORT")
    parser.add_argument("-data-path", type=Path, help="where --store makes its file")
    parser.add_argument("--store", action="store_true", help="append all that is received to a file")
    arguments = parser.parse_known_args()[0]
    with ExitStack() as stack:
        tcp = stack.enter_context(listen(arguments.tcp_address))
        # Only accepts, which shows that the sink runs.
        stack.enter_context(listen(arguments.http_address))
        store_fd = -1
        if arguments.store:
            store_fd = stack.enter_context((arguments.data_path / "received").open("wb", buffering=0)).fileno()
        serve(tcp.fileno(), store_fd)


if __name__ == "__main__":
    main()
