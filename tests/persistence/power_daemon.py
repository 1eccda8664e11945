"""The daemon on a disk that forgets. Arguments: directory for the state after a power cut, then the daemon's flags.

SIGUSR1 cuts the power and ends the process; SIGUSR2 lets syncs fail, and the next one lets them succeed again. Prints
its ports once it listens.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import gevent

from pyqd.apps.daemon import Daemon
from pyqd.config.options import parse_args
from tests.support.nsq import Client
from tests.support.power import PowerFiles
from tests.support.server import REPOSITORY

WAIT_S = 20


class PowerDaemon:
    """Process of this program."""

    def __init__(self, directory: Path, *flags: str) -> None:
        (directory / "before").mkdir()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.persistence.power_daemon", str(directory / "after")),
                *(f"--data-path={directory / 'before'}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"),
                *flags,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
        )
        self.tcp_port, self.http_port = map(int, self.line().split())

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def post(self, target: str, body: bytes) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_S)
        try:
            connection.request("POST", target, body=body)
            return connection.getresponse().status
        finally:
            connection.close()

    def client(self, receive_buffer_bytes: int = 0) -> Client:
        return Client(("127.0.0.1", self.tcp_port), receive_buffer_bytes=receive_buffer_bytes)

    def in_flight(self, topic: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_S)
        try:
            connection.request("GET", f"/stats?format=json&topic={topic}")
            (found,) = json.loads(connection.getresponse().read())["topics"]
            return sum(channel["in_flight_count"] for channel in found["channels"])
        finally:
            connection.close()

    def toggle_failing(self) -> bytes:
        self.process.send_signal(signal.SIGUSR2)
        return self.line()

    def cut(self) -> None:
        self.process.send_signal(signal.SIGUSR1)
        assert self.process.wait(WAIT_S) == 0

    def end(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def main() -> None:
    target, *flags = sys.argv[1:]
    options = parse_args(flags)
    files = PowerFiles(Path(options.data_path), "before")
    daemon = Daemon(options, files)

    def cut() -> None:
        files.cut(Path(target))
        os._exit(0)

    def fail() -> None:
        files.failing = not files.failing
        print(files.failing, flush=True)

    gevent.signal_handler(signal.SIGUSR1, cut)
    gevent.signal_handler(signal.SIGUSR2, fail)
    daemon.start()
    print(daemon.identity.tcp_port, daemon.identity.http_port, flush=True)
    daemon.stop_wanted.wait()


if __name__ == "__main__":
    main()
