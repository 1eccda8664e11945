"""Run the sink as a daemon that takes the flags of the others: `python -m bench.sinkd -tcp-address=HOST:PORT ...`."""

import argparse
import socket

from bench.sink import serve


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sinkd", description=__doc__)
    parser.add_argument("-tcp-address", required=True, metavar="HOST:PORT")
    parser.add_argument("-http-address", help="ignored")
    parser.add_argument("-data-path", help="ignored")
    host, _, port = parser.parse_known_args()[0].tcp_address.rpartition(":")
    with socket.create_server((host, int(port)), backlog=4096) as listener:
        listener.setblocking(False)
        serve(listener.fileno())


if __name__ == "__main__":
    main()
