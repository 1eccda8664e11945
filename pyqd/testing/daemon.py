"""A real daemon for tests, on free loopback ports.

The ports are reserved by two sockets that are bound and never listen. So the kernel picks ports that are free, gives
them to no other program while the daemon is stopped, and refuses connections then. The daemon can bind them because
both sides set SO_REUSEADDR.

The daemon reports that it serves through NOTIFY_SOCKET, as to systemd, so nothing polls for the start.
"""

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pyqd.primitives.http_client import HttpAddress, HttpClientConnection, Reply
from pyqd.testing.published import PublishedMessage, utc

HOST = "127.0.0.1"
LOG_NAME = "pyqd.log"
LOG_LINES_SHOWN = 40
START_WAIT_S = 20.0
STOP_WAIT_S = 10.0
REQUEST_WAIT_S = 10.0
# Between looks at a starting process; its report of success needs no look.
ALIVE_POLL_S = 0.05
STATS_POLL_S = 0.01
DATAGRAM_BYTES_MAX = 4096
ANSWER_BYTES_MAX = 4 << 20
# Finished messages stay readable for `published`. Flags of the test come later and win.
DEFAULT_FLAGS = ("--retention-time=24h",)
# Written bytecode halves the time of all later starts. The others would connect the daemon to a service manager.
HIDDEN_VARIABLES = (
    "PYTHONDONTWRITEBYTECODE",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
)
NO_DAEMON = "only pyqd-client is installed: `pip install pyqd`, on Linux, or use pyqd.testing.MemoryBroker"


class BrokerError(AssertionError):
    """The daemon did not start, died, refused a request, or did not come to an expected state."""


class BrokerProcess:
    """One pyqd daemon with its data directory. Not started by the constructor; a context manager starts and stops it.

    directory: holds the data directory and the log. flags: further flags of the daemon. Everything stays the same over
    a restart: ports, data, flags. Raises: BrokerError if the daemon is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str], flags: Sequence[str] = ()) -> None:
        if importlib.util.find_spec("pyqd.apps") is None:
            raise BrokerError(NO_DAEMON)
        self.directory = Path(directory)
        self.flags = tuple(flags)
        self.data_path = self.directory / "data"
        self.log_path = self.directory / LOG_NAME
        self._process: subprocess.Popen[bytes] | None = None
        self._reserved = reserved_port(), reserved_port()
        self._reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Linux picks an abstract name, which belongs to no file.
        self._reports.bind("")
        self._reports.settimeout(ALIVE_POLL_S)
        self.tcp_port, self.http_port = (each.getsockname()[1] for each in self._reserved)

    @property
    def tcp_address(self) -> str:
        """Address for the TCP protocol, host:port."""
        return f"{HOST}:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        """Address of the HTTP API, host:port."""
        return f"{HOST}:{self.http_port}"

    @property
    def url(self) -> str:
        """URL for the producers and consumers of pyqd.client; names the HTTP API as well."""
        return f"nsq://{self.tcp_address}?http={self.http_address}"

    @property
    def pid(self) -> int | None:
        """Process id; None while the daemon is stopped."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """True if the process is alive."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> "BrokerProcess":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the daemon and wait until it serves. Raises: BrokerError with its log."""
        if self._process is not None:
            raise self._error("the daemon is started already")
        self.data_path.mkdir(parents=True, exist_ok=True)
        self._process = self._spawned()
        try:
            self._wait_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the daemon as SIGTERM does and wait for its end. Raises: BrokerError if it did not end cleanly."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._error(f"the daemon did not stop within {STOP_WAIT_S:g} s after SIGTERM") from None
        self._ended()
        if code != 0:
            raise self._error(f"the daemon ended with exit code {code}")

    def kill(self) -> None:
        """Kill the daemon as a crash would, and wait for its end. Connections to it are refused from then on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_WAIT_S)
            self._ended()

    def restart(self) -> None:
        """Stop the daemon if it runs, and start it again with the same data on the same ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the daemon and release its ports."""
        try:
            self.stop()
        finally:
            for each in (*self._reserved, self._reports):
                each.close()

    def log_text(self) -> str:
        """Return all that the daemon has logged."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log_text().splitlines()[-LOG_LINES_SHOWN:]) or "(nothing)"

    def request(self, method: str, path: str, body: bytes | None = None, **query: object) -> bytes:
        """Return the body of an answer of the HTTP API. Raises: BrokerError if the status is not 200."""
        return self._request(method, path, body, query).body

    def stats(self) -> dict[str, Any]:
        """Return the answer of GET /stats: a dict with the list `topics`, and much about the process."""
        found: dict[str, Any] = json.loads(self.request("GET", "/stats", format="json"))
        return found

    def topic_stats(self, topic: str, channel: str | None = None) -> dict[str, Any] | None:
        """Return the counts of a topic or of one of its channels, as in /stats; None if it does not exist."""
        listed = json.loads(self.request("GET", "/stats", format="json", topic=topic, include_clients="false"))
        found = named(listed["topics"], "topic_name", topic)
        return found if found is None or channel is None else named(found["channels"], "channel_name", channel)

    def published(self, topic: str) -> list[bytes]:
        """Return the bodies of all messages published to a topic, in order; an empty list if it does not exist.

        Channels do not notice: nothing is delivered, and finished messages are included.
        """
        return [message.body for message in self.published_messages(topic)]

    def published_messages(self, topic: str) -> list[PublishedMessage]:
        """Return all messages published to a topic, in order, as `published` does."""
        from pyqd.fallback.records import decode

        messages: list[PublishedMessage] = []
        start: object = "earliest"
        while self.topic_stats(topic) is not None:
            query = {"topic": topic, "from": start, "max_bytes": ANSWER_BYTES_MAX}
            _, headers, body = self._request("GET", "/topic/log", None, query)
            # The records come from memory over loopback: their checksums would only bring compiled code in here.
            for record in decode(body, verify=False):
                due = utc(record.due_ns) if record.due_ns else None
                messages.append(PublishedMessage(record.id.decode(), record.body, utc(record.timestamp_ns), due))
            start = headers["x-pyqd-next"]
            if int(start) >= int(headers["x-pyqd-end"]):
                break
        return messages

    def delete_topics(self) -> None:
        """Delete all topics with their channels and messages. Their clients are disconnected."""
        for topic in self.stats()["topics"] or ():
            self.request("POST", "/topic/delete", topic=topic["topic_name"])

    def wait_for_depth(self, topic: str, channel: str | None = None, *, depth: int, timeout: float = 10.0) -> None:
        """Wait until a topic or channel holds this number of messages. Raises: BrokerError after timeout seconds.

        The depth of a channel counts neither messages in flight nor deferred ones; that of a topic counts the messages
        that no channel has received, because the topic is paused or has no channel.
        """

        def settled() -> str:
            found = self.topic_stats(topic, channel)
            if found is None:
                return "it does not exist"
            return "" if found["depth"] == depth else f"the depth is {found['depth']}"

        self._wait_until(settled, f"a depth of {depth} in {place(topic, channel)}", timeout)

    def wait_until_empty(self, topic: str, channel: str | None = None, *, timeout: float = 10.0) -> None:
        """Wait until every message is finished, in one channel or in all. Raises: BrokerError after timeout seconds.

        Messages in flight and deferred messages are not finished.
        """

        def settled() -> str:
            found = self.topic_stats(topic)
            channels = [] if found is None else found["channels"] or []
            if channel is not None:
                channels = [each for each in channels if each["channel_name"] == channel]
            if found is None or (channel is not None and not channels):
                return "it does not exist"
            return ", ".join(remaining(found, channels))

        self._wait_until(settled, f"an empty {place(topic, channel)}", timeout)

    def _wait_until(self, obstacle: Callable[[], str], what: str, timeout: float) -> None:
        """Wait until obstacle() is empty. what: the expected state, for the error."""
        deadline_s = time.monotonic() + timeout
        while text := obstacle():
            if time.monotonic() >= deadline_s:
                raise BrokerError(f"waited {timeout:g} s for {what}: {text}")
            time.sleep(STATS_POLL_S)

    def _request(self, method: str, path: str, body: bytes | None, query: Mapping[str, object]) -> Reply:
        address = HttpAddress(HOST, self.http_port, False)
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            with HttpClientConnection(address, timeout_s=REQUEST_WAIT_S) as connection:
                connection.open()
                reply = connection.exchange(method, target, body)
        except (OSError, http.client.HTTPException) as error:
            state = "running" if self.is_running else "stopped"
            reason = str(error) or type(error).__name__
            raise self._error(f"{method} {target} failed: {reason}; the daemon is {state}") from error
        if reply.status != http.client.OK:
            raise BrokerError(f"{method} {target}: {reply.status} {reply.body.decode(errors='replace')}")
        return reply

    def _spawned(self) -> "subprocess.Popen[bytes]":
        arguments = [
            *(sys.executable, "-m", "pyqd.testing.serve"),
            f"--tcp-address={self.tcp_address}",
            f"--http-address={self.http_address}",
            f"--broadcast-address={HOST}",
            f"--data-path={self.data_path}",
            *DEFAULT_FLAGS,
            *self.flags,
        ]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # With -m Python imports from the current directory first, which must not be the user's project.
                cwd=self.directory,
                env=environment(self._reports.getsockname()),
            )

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + START_WAIT_S
        while time.monotonic() < deadline_s:
            # A report of an earlier process may precede that of this one.
            try:
                lines = self._reports.recv(DATAGRAM_BYTES_MAX).decode().splitlines()
            except TimeoutError:
                code = self._process.poll()
                if code is not None:
                    raise self._error(f"the daemon ended with exit code {code} before it served") from None
            else:
                if {"READY=1", f"MAINPID={self._process.pid}"} <= set(lines):
                    return
        raise self._error(f"the daemon did not serve within {START_WAIT_S:g} s")

    def _ended(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = None

    def _error(self, text: str) -> BrokerError:
        return BrokerError(f"{text}; the end of its log, {self.log_path}:\n{self.log_tail()}")


def reserved_port() -> socket.socket:
    """Return a socket that holds a free port of loopback and does not listen."""
    holder = socket.socket()
    with contextlib.ExitStack() as on_error:
        on_error.callback(holder.close)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        on_error.pop_all()
    return holder


def environment(report_name: bytes) -> dict[str, str]:
    """Return the environment of a daemon. report_name: abstract name of the socket that its reports go to."""
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN_VARIABLES}
    # The daemon has another current directory.
    paths = [os.path.abspath(path) for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
    package = str(Path(__file__).resolve().parents[2])
    if package not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        # pytest may have found pyqd by its own setting `pythonpath`.
        paths.append(package)
    kept["PYTHONPATH"] = os.pathsep.join(paths)
    kept["NOTIFY_SOCKET"] = "@" + report_name[1:].decode()
    return kept


def named(listed: Sequence[dict[str, Any]] | None, key: str, name: str) -> dict[str, Any] | None:
    """Return the entry of a list in /stats with a name."""
    return next((each for each in listed or () if each[key] == name), None)


def remaining(topic: Mapping[str, Any], channels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a text for each count that is not 0 in a topic and in channels of it."""
    found = [f"the topic holds {topic['depth']}"] if topic["depth"] else []
    for channel in channels:
        counts = {"waiting": "depth", "in flight": "in_flight_count", "deferred": "deferred_count"}
        said = [f"{channel[key]} {word}" for word, key in counts.items() if channel[key]]
        if said:
            found.append(f"channel {channel['channel_name']} has {' and '.join(said)}")
    return found


def place(topic: str, channel: str | None) -> str:
    """Return a topic or channel as errors name it."""
    return f"topic {topic}" if channel is None else f"channel {channel} of topic {topic}"
