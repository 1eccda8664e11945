"""Fuzzing campaign: plays cases against a daemon in batches, and checks after each batch that the daemon is well.

The daemon is well if

- the process runs and its log has no sign of a crash, of a broken invariant or of a failed handler;
- a permanent consumer, and one of the upgraded kinds, receive every message that a publisher sends over TCP and HTTP
once, within a bound; so no wake and no answer was lost;
- it has no socket but those of these clients, and no other client is in /stats;
- its own memory stays: after the warm-up it grows by less than a bound, however many cases are played.
"""

from __future__ import annotations

import itertools
import random
import ssl
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.authd import Answer, AuthServer, Query, entry, state
from tests.support.certificates import Certificates
from tests.support.fuzz.cases import Case, Port
from tests.support.fuzz.http_cases import http_case
from tests.support.fuzz.player import Player
from tests.support.fuzz.tcp_cases import tcp_case
from tests.support.nsq import RESPONSE, Client, fin, sized
from tests.support.server import Daemon, free_port, pyqd, wait_until

TOPIC = "well_behaved"
SETTLE_S = 20.0
WARM_UP_CASES = 600
GROWTH_BYTES_MAX = 24 << 20
MESSAGES = 20
# Of the probe's own clients, which may be kept waiting by a busy machine: longer than that of the cases'.
MSG_TIMEOUT_MS = 60_000
SIGNS_OF_INTERNAL_ERRORS = (
    "internal error",
    " failed\nTraceback",
    "INTERNAL_ERROR",
    "Traceback",
    "MemoryError",
    "SystemError",
)
FLAGS = (
    "-max-msg-size=65536",
    "-max-body-size=262144",
    "-msg-timeout=1s",
    "-max-req-timeout=1h",
    "-mem-queue-size=100",
    "-broadcast-address=127.0.0.1",
)
# Secret of clients that must AUTH; the auth server gives odd answers to other secrets.
SECRET = "secret"
AUTH = "an auth server"
ODD_ANSWERS = (
    Answer(403, b"{}"),
    Answer(500, b""),
    Answer(200, b"{"),
    Answer(200, b'{"ttl":-1}'),
    Answer(200, b"[]" * 10000),
    state(entry(topic="("), ttl=1),
    state(entry(topic="f.*", channels=("c",), permissions="publish"), ttl=1),
)
# The seed takes one of them.
FLAG_SETS: tuple[tuple[str, ...], ...] = (
    (),
    ("-sync-every=1",),
    ("-mem-queue-size=0", "-max-bytes-per-file=65536"),
    ("-max-output-buffer-size=1024", "-max-rdy-count=100", "-max-channel-consumers=1", "-max-heartbeat-interval=5s"),
    (AUTH,),
)
# Settings that a case may have changed over HTTP.
CONFIGURED = {
    "log_level": b"info",
    "max_channel_consumers": b"0",
    "sync_timeout": b"2s",
    "nsqlookupd_tcp_addresses": b"[]",
}


class Unwell(AssertionError):  # noqa: N818 - a finding is the purpose of the campaign, not an error of it
    """The daemon is not well; the text gives the failure and the cases before it."""


@dataclass
class Report:
    """Result of a campaign. memory_bytes: anonymous memory of the daemon, after each batch."""

    seed: int
    cases: int = 0
    connections: int = 0
    steps: int = 0
    sent_bytes: int = 0
    slowest_probe_s: float = 0.0
    memory_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def text(self) -> str:
        return (
            f"seed {self.seed}: {self.cases} cases, {self.connections} connections, {self.steps} steps,"
            f" {self.sent_bytes / 1e6:.1f} MB sent; slowest probe {self.slowest_probe_s:.2f} s; memory"
            f" {self.memory_bytes[0] / 1e6:.1f} to {self.memory_bytes[-1] / 1e6:.1f} MB, at most"
            f" {max(self.memory_bytes) / 1e6:.1f} MB; descriptors {self.descriptors[0]} to {self.descriptors[-1]}"
        )


def make_case(seed: int, number: int) -> Case:
    """Return a case; the same for the same arguments."""
    rng = random.Random(f"{seed}/{number}")
    return (tcp_case if rng.random() < 0.5 else http_case)(rng, number)


def answer_of(query: Query) -> Answer:
    """Return the auth server's answer: everything for the secret; for other secrets an answer derived from them."""
    secret = query.values.get("secret", [""])[0]
    if secret == SECRET:
        return state(entry())
    return ODD_ANSWERS[sum(secret.encode("utf-8", "surrogateescape")) % len(ODD_ANSWERS)]


def anonymous_bytes(pid: int) -> int:
    """Return the memory that belongs to the process and to no file."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc")


def descriptors_of(pid: int) -> tuple[int, int]:
    """Return how many descriptors are sockets, and how many there are."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    return sum(link.startswith("socket:") for link in links), len(links)


class Campaign:
    """A daemon under cases. Raises, in all its methods: Unwell."""

    def __init__(self, directory: Path, seed: int, flags: Sequence[str] = ()) -> None:
        self.report = Report(seed)
        self.certificates = Certificates(directory)
        self.https_port = free_port()
        https = f"-https-address=127.0.0.1:{self.https_port}"
        chosen = FLAG_SETS[seed % len(FLAG_SETS)]
        self.authd: AuthServer | None = None
        if AUTH in chosen:
            self.authd = AuthServer(answer_of)
            chosen = (f"-auth-http-address={self.authd.address}",)
        self.daemon = Daemon(pyqd(), directory, (*FLAGS, *chosen, *self.certificates.server_flags(), https, *flags))
        self._numbers = itertools.count()
        self._consumer: Client | None = None
        self._sockets_before = 0
        self._recent: list[int] = []

    def start(self) -> None:
        self.daemon.start()
        context = self.certificates.client_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        addresses: dict[Port, tuple[str, int]] = {
            "tcp": self.daemon.tcp_address,
            "http": self.daemon.http_address,
            "https": ("127.0.0.1", self.https_port),
        }
        self.player = Player(addresses, context)
        self._consumer = Client(self.daemon.tcp_address)
        self._consumer.identify(msg_timeout=MSG_TIMEOUT_MS)
        self.authenticate(self._consumer)
        self._consumer.sub(TOPIC, "steady", rdy_count=100)
        self.wait_alone(1)
        # The daemon may not have closed the connection of the /stats request yet.
        counts = []
        for _ in range(20):
            counts.append(descriptors_of(self.daemon.pid)[0])
            time.sleep(0.01)
        self._sockets_before = min(counts)

    def stop(self) -> None:
        """Stop the daemon, which must end cleanly and in time."""
        if self._consumer is not None:
            self._consumer.close()
        self.daemon.stop()

    def kill(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self.daemon.kill()
        if self.authd is not None:
            self.authd.stop()
            self.authd = None

    def authenticate(self, client: Client) -> None:
        """AUTH if the daemon requires it."""
        if self.authd is not None:
            client.send(b"AUTH\n" + sized(SECRET.encode()))
            assert client.read_frame().type == RESPONSE

    def play(self, numbers: Sequence[int]) -> None:
        """Play cases, then look whether the daemon is well."""
        self._recent = list(numbers)
        for number in numbers:
            case = make_case(self.report.seed, number)
            self.report.cases += 1
            self.report.connections += len(case.scripts)
            self.report.steps += len(case.order)
            self.report.sent_bytes += sum(len(step.data) for script in case.scripts for step in script.steps)
            self.player.play(case)
        try:
            self.check()
        except Exception as error:
            raise Unwell(f"after cases {numbers[0]} to {numbers[-1]} of seed {self.report.seed}: {error}") from error

    def check(self) -> None:
        self.restore()
        started_s = time.monotonic()
        self.probe()
        self.report.slowest_probe_s = max(self.report.slowest_probe_s, time.monotonic() - started_s)
        self.check_log()
        self.wait_alone(1)
        wait_until(self.sockets_are_back, "only the sockets from before", SETTLE_S)
        self.report.memory_bytes.append(anonymous_bytes(self.daemon.pid))
        self.report.descriptors.append(descriptors_of(self.daemon.pid)[1])
        self.check_growth()

    def restore(self) -> None:
        """Undo the settings that cases may have changed, and delete the topics they made."""
        for key, value in CONFIGURED.items():
            self.daemon.http("PUT", f"/config/{key}", value)
        self.daemon.http("POST", "/debug/heap/stop")
        for topic in self.daemon.topics():
            if topic != TOPIC:
                reply = self.daemon.http("POST", "/topic/delete", topic=topic)
                assert reply.status in (200, 404), reply

    def probe(self) -> None:
        """Publish in each way; the steady consumer and one of an upgraded connection must get all of it, once."""
        consumer = self._consumer
        assert consumer is not None
        bodies = [b"%d" % next(self._numbers) for _ in range(MESSAGES)]
        with Client(self.daemon.tcp_address) as upgraded, Client(self.daemon.tcp_address) as publisher:
            self.upgrade(upgraded)
            self.authenticate(upgraded)
            self.authenticate(publisher)
            upgraded.sub(TOPIC, "upgraded#ephemeral", rdy_count=100)
            publisher.pub_each(TOPIC, bodies[:5])
            publisher.mpub(TOPIC, bodies[5:12])
            publisher.dpub(TOPIC, 10, bodies[12])
            for body in bodies[13:-3]:
                reply = self.daemon.http("POST", "/pub", body, topic=TOPIC)
                assert reply.status == 200, reply
            reply = self.daemon.http("POST", "/mpub", b"\n".join(bodies[-3:]), topic=TOPIC)
            assert reply.status == 200, reply
            for client in (consumer, upgraded):
                messages = client.read_messages(MESSAGES)
                assert sorted(message.body for message in messages) == sorted(bodies), messages
                assert all(message.attempts == 1 for message in messages), messages
                client.send(b"".join(fin(message.id) for message in messages))
                client.expect_alive()

    def upgrade(self, client: Client) -> None:
        """Negotiate another kind of connection each time."""
        kind = ("", "tls_v1", "snappy", "deflate")[len(self.report.memory_bytes) % 4]
        client.identify(msg_timeout=MSG_TIMEOUT_MS, **({kind: True} if kind else {}))
        if kind == "tls_v1":
            client.start_tls(self.player.context)
        elif kind == "snappy":
            client.start_snappy()
        elif kind == "deflate":
            client.start_deflate()

    def check_log(self) -> None:
        self.daemon.assert_healthy()
        text = self.daemon.log_text()
        for sign in SIGNS_OF_INTERNAL_ERRORS:
            assert sign not in text, f"the log says {sign!r}: {text[max(0, text.index(sign) - 500) :][:3000]}"
        # The log has been checked, and would grow without end; the daemon appends to it.
        self.daemon.empty_log()

    def wait_alone(self, client_count: int) -> None:
        """Wait until only so many clients are connected over TCP."""

        def alone() -> bool:
            topics = self.daemon.topics()
            return (
                sum(len(channel["clients"]) for topic in topics.values() for channel in topic["channels"])
                == client_count
            )

        wait_until(alone, f"{client_count} subscribed clients", SETTLE_S)

    def sockets_are_back(self) -> bool:
        return descriptors_of(self.daemon.pid)[0] <= self._sockets_before

    def check_growth(self) -> None:
        """Assert that memory does not grow once all kinds of cases have been played often."""
        memory = self.report.memory_bytes
        per_batch = self.report.cases / len(memory)
        warm = int(WARM_UP_CASES / per_batch) + 1
        if len(memory) <= 2 * warm:
            return
        # The least of some batches: the memory at rest.
        before, after = min(memory[warm : 2 * warm]), min(memory[-warm:])
        assert after < before + GROWTH_BYTES_MAX, f"memory grew from {before} to {after} bytes"


def batches(first: int, size: int) -> Iterator[range]:
    """Yield the numbers of the cases of one batch after another."""
    for start in itertools.count(first, size):
        yield range(start, start + size)


def run(seed: int, seconds: float, *, batch: int = 50, first: int = 0, flags: Sequence[str] = ()) -> Report:
    """Play cases for some seconds against a fresh daemon. Returns: the report. Raises: Unwell."""
    with tempfile.TemporaryDirectory(prefix="fuzz.") as directory:
        campaign = Campaign(Path(directory), seed, flags)
        try:
            campaign.start()
            end_s = time.monotonic() + seconds
            for numbers in batches(first, batch):
                campaign.play(numbers)
                if time.monotonic() > end_s:
                    break
            campaign.stop()
        finally:
            campaign.kill()
        return campaign.report
