"""Smoke suite for an installed pyqd: imports, the command line, publishing to a daemon and consuming from it.

Run it with the interpreter of the installation, isolated (-I) and away from any checkout, so that only the installation
can be found. It needs only the standard library, prints a line per check, and exits with 1 at the first failure.
"""

import http.client
import importlib
import json
import pkgutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 30.0
POLL_S = 0.05
PROGRAM = Path(sysconfig.get_path("scripts")) / "pyqd"
FRAME_MESSAGE = 2
# Size and type of a frame; timestamp, attempts and id of a message.
FRAME_HEADER = struct.Struct(">iI")
MESSAGE_HEADER = struct.Struct(">qH16s")


def check_imports():
    """Import every compiled module from the installation. Returns: how many there are."""
    import pyqd.hot

    installed = Path(sysconfig.get_path("platlib")).resolve()
    found = pkgutil.walk_packages(pyqd.hot.__path__, "pyqd.hot.")
    names = [module.name for module in found if not module.ispkg]
    assert names, "there is no compiled module"
    for name in names:
        module = importlib.import_module(name)
        assert installed in Path(module.__file__).resolve().parents, f"{module.__file__} is not in {installed}"
    return f"{len(names)} compiled modules from {installed}"


def check_version():
    """Compare the program's version with the installed one."""
    from importlib.metadata import version

    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    assert said.startswith(f"pyqd v{version('pyqd')} "), said
    return said.strip()


def free_ports(count):
    """Return loopback ports that were free at the time of the call."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in sockets]
    for probe in sockets:
        probe.close()
    return ports


def request(port, method, path, body=None):
    """Send one HTTP request. Returns: the body of the answer, which has to be 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, (path, answer.status, text)
        return text
    finally:
        connection.close()


@contextmanager
def daemon(directory, tcp_port, http_port):
    """Run the installed daemon, which has to stop cleanly."""
    command = [PROGRAM, f"--tcp-address=127.0.0.1:{tcp_port}", f"--http-address=127.0.0.1:{http_port}"]
    # Options that bring further libraries in.
    command += [f"--data-path={directory}", "--e2e-processing-latency-percentile=0.99"]
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory)
    try:
        wait_ready(process, http_port, directory / "log")
        yield
        process.send_signal(signal.SIGTERM)
        code = process.wait(WAIT_S)
        assert code == 0, (code, (directory / "log").read_text())
    finally:
        process.kill()
        process.wait()


def wait_ready(process, port, log):
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            assert request(port, "GET", "/ping") == b"OK"
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, f"the daemon was not ready within {WAIT_S} s"
            time.sleep(POLL_S)


def read_frame(stream):
    size, kind = FRAME_HEADER.unpack(stream.read(FRAME_HEADER.size))
    return kind, stream.read(size - 4)


def consume(port, topic, count):
    """Take messages over TCP and finish them. Returns: their bodies."""
    bodies = []
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as client, client.makefile("rb") as stream:
        client.sendall(b"  V2" + f"SUB {topic} smoke\nRDY {count}\n".encode())
        while len(bodies) < count:
            kind, data = read_frame(stream)
            if kind == FRAME_MESSAGE:
                _, _, message_id = MESSAGE_HEADER.unpack_from(data)
                bodies.append(data[MESSAGE_HEADER.size :])
                client.sendall(b"FIN " + message_id + b"\n")
        client.sendall(b"CLS\n")
        while read_frame(stream)[1] != b"CLOSE_WAIT":
            pass
    return bodies


def check_daemon():
    """Publish over TCP and HTTP, restart, consume, restart: nothing is lost, and nothing comes twice."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        ports = free_ports(2)
        with daemon(directory, *ports):
            with socket.create_connection(("127.0.0.1", ports[0]), WAIT_S) as client, client.makefile("rb") as stream:
                client.sendall(b"  V2PUB smoke\n" + struct.pack(">i", 3) + b"tcp")
                assert read_frame(stream) == (0, b"OK")
            assert request(ports[1], "POST", "/mpub?topic=smoke", b"one\ntwo\n") == b"OK"
            assert "/mpub" in json.loads(request(ports[1], "GET", "/openapi.json"))["paths"]
        with daemon(directory, *ports):
            assert consume(ports[0], "smoke", 3) == [b"tcp", b"one", b"two"]
            assert b"pyqd_healthy 1" in request(ports[1], "GET", "/metrics")
        with daemon(directory, *ports):
            [topic] = json.loads(request(ports[1], "GET", "/stats?format=json"))["topics"]
            [channel] = topic["channels"]
            assert (channel["depth"], channel["in_flight_count"]) == (0, 0), channel
        inspect = [PROGRAM, "inspect", "--verify", str(directory)]
        subprocess.run(inspect, capture_output=True, timeout=WAIT_S, check=True)
    return "published, consumed, stopped and started again"


def main():
    for check in (check_imports, check_version, check_daemon):
        print(f"{check.__name__.removeprefix('check_')}: {check()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
