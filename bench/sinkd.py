"""Run the sink as a daemon that takes the flags of the others: `python -m bench.sinkd -tcp-address=HOST:PORT ...`."""

import argparse
import socket

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
    parser.add_argument("-data-path", help="ignored")
    arguments = parser.parse_known_args()[0]
    with listen(arguments.tcp_address) as tcp, listen(arguments.http_address) as http:
        serve(tcp.fileno(), http.fileno())


if __name__ == "__main__":
    main()
