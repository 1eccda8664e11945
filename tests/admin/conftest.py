"""A cluster of two brokers and a lookup daemon, and web admins over it: pyqadmin, and nsqadmin if a path is given."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyqd.admin.access.roles import UserRole
from pyqd.admin.access.users import add_user
from tests.support.needs import skip_outside_ci
from tests.support.preloaded import Process, program_environment, spawn
from tests.support.server import REPOSITORY, WAIT_S, Daemon, Implementation, free_port, listens, nsqd, pyqd, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

START_WAIT_S = 30.0
PASSWORDS = {"ada": "correct horse", "otto": "battery staple", "vera": "only looking"}
LISTENING = re.compile(r"HTTP: listening on \S*?(\d+)\)?$", re.MULTILINE)


@dataclass
class Answer:
    """An HTTP answer; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> Any:
        return self.json["message"]


@dataclass
class Admin:
    """The process of a web admin with its log. authority: of its certificate, if it speaks HTTPS."""

    name: str
    command: tuple[str, ...]
    log: Path
    authority: Path | None = None
    port: int = 0
    process: Process | None = None

    @property
    def is_reference(self) -> bool:
        return self.name == "nsqadmin"

    def start(self, ping: str) -> None:
        self.port = free_port()
        with self.log.open("wb") as log:
            command = [*self.command, f"--http-address=127.0.0.1:{self.port}"]
            self.process = spawn(command, REPOSITORY, program_environment(), stdout=log.fileno(), stderr=log.fileno())
        deadline_s = time.monotonic() + START_WAIT_S
        while True:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline_s, self.log.read_text()
            with contextlib.suppress(OSError):
                if self.ask("GET", ping).body == b"OK":
                    return
            time.sleep(0.02)

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(WAIT_S)
        text = self.log.read_text()
        assert (code, "Traceback" in text) == (0, False), text

    def ask(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request on a connection of its own."""
        if self.authority is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        else:
            context = ssl.create_default_context(cafile=self.authority)
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=WAIT_S, context=context)
        with contextlib.closing(connection):
            connection.request(method, target, body=body, headers=dict(headers or {}))
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read())

    def get(self, target: str) -> Any:
        """Return the JSON of a page that must exist."""
        answer = self.ask("GET", target)
        assert answer.status == 200, answer
        return answer.json

    def send(self, method: str, target: str, value: Any = None) -> Answer:
        """Send JSON."""
        return self.ask(method, target, None if value is None else json.dumps(value).encode())


@dataclass
class World:
    """Two brokers, registered with one lookup daemon. is_reference: they are NSQ's own."""

    brokers: list[Daemon]
    lookupd: str
    lookupd_process: Process
    topics: set[str] = field(default_factory=set)
    is_reference: bool = False

    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{broker.http_port}" for broker in self.brokers]

    def lookup(self, method: str, target: str) -> Answer:
        host, _, port = self.lookupd.partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request(method, target)
            answer = connection.getresponse()
            return Answer(answer.status, {}, answer.read())

    def publish(self, topic: str, bodies: Mapping[int, int], channel: str = "") -> None:
        """Make a topic on brokers, wait until the lookup daemon knows it, and publish. bodies: number by broker."""
        self.topics.add(topic)
        for number, count in bodies.items():
            broker = self.brokers[number]
            assert broker.http("POST", "/topic/create", topic=topic).status == 200
            if channel:
                assert broker.http("POST", "/channel/create", topic=topic, channel=channel).status == 200
            if count:
                body = b"\n".join(b"body %d" % each for each in range(count))
                assert broker.http("POST", "/mpub", body, topic=topic).status == 200
                # A new topic holds its messages until the lookup daemon has named its channels.
                if channel:
                    wait_until(
                        partial(self.has_passed_on, number, topic, channel, count),
                        f"{count} messages in {topic}/{channel}",
                    )
        wait_until(lambda: self.registered(topic) == len(bodies), f"{topic} in the lookup daemon")

    def has_passed_on(self, number: int, topic: str, channel: str, count: int) -> bool:
        """Return whether a channel of a broker has got this number of messages, or more."""
        found = self.brokers[number].channel(topic, channel)
        return found is not None and found["message_count"] >= count

    def registered(self, topic: str) -> int:
        """Return how many brokers the lookup daemon names for a topic."""
        answer = self.lookup("GET", f"/lookup?topic={topic}")
        return len(answer.json["producers"]) if answer.status == 200 else 0


def started_lookupd(
    directory: Path, command: tuple[str, ...] = (sys.executable, "-m", "pyqd.apps.lookupd")
) -> tuple[str, str, Process]:
    """Start a lookup daemon, and wait until it answers. Returns: TCP address, HTTP address, process."""
    tcp, http_address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    flags = (f"--tcp-address={tcp}", f"--http-address={http_address}", "--broadcast-address=127.0.0.1")
    with (directory / "lookupd.log").open("wb") as log:
        fd = log.fileno()
        process = spawn([*command, *flags], REPOSITORY, program_environment(), stdout=fd, stderr=fd)

    def serves() -> bool:
        assert process.poll() is None, (directory / "lookupd.log").read_text()
        return listens(process.pid, int(http_address.rpartition(":")[2]))

    wait_until(serves, "the start of the lookup daemon", START_WAIT_S)
    return tcp, http_address, process


@contextlib.contextmanager
def running_world(
    directory: Path, implementation: Implementation, lookupd: tuple[str, ...], *, is_reference: bool = False
) -> Iterator[World]:
    """Run two brokers and a lookup daemon. lookupd: its command."""
    tcp, http_address, process = started_lookupd(directory, lookupd)
    flags = (f"-lookupd-tcp-address={tcp}",)
    brokers = [Daemon(implementation, directory / name, flags) for name in ("a", "b")]
    try:
        for broker in brokers:
            broker.start()
        yield World(brokers, http_address, process, is_reference=is_reference)
        for broker in brokers:
            broker.stop()
    finally:
        for broker in brokers:
            broker.kill()
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    lookupd = (sys.executable, "-m", "pyqd.apps.lookupd")
    with running_world(tmp_path_factory.mktemp("world"), pyqd(), lookupd) as found:
        yield found


@pytest.fixture(scope="module")
def nsq_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The same of NSQ's own daemons."""
    paths = [os.environ.get(name) for name in ("NSQD", "NSQLOOKUPD")]
    if not all(paths):
        pytest.skip("no nsqd and nsqlookupd: NSQD and NSQLOOKUPD may name them")
    broker, lookupd = map(str, paths)
    with running_world(tmp_path_factory.mktemp("nsq"), nsqd(broker), (lookupd,), is_reference=True) as found:
        yield found


@pytest.fixture(scope="session")
def start_admin(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Admin]]:
    """Return a function that starts a web admin by name, with flags."""
    started: list[Admin] = []

    def start(name: str, *flags: str, ping: str = "/ping", authority: Path | None = None) -> Admin:
        if name == "nsqadmin":
            path = os.environ.get("NSQADMIN")
            if not path:
                pytest.skip("no nsqadmin: NSQADMIN may name one")
            command: tuple[str, ...] = (path,)
        else:
            command = (sys.executable, "-m", "pyqd.apps.admin")
        log = tmp_path_factory.mktemp("admin") / "log"
        admin = Admin(name, (*command, *flags), log, authority)
        started.append(admin)
        admin.start(ping)
        return admin

    yield start
    try:
        for admin in started:
            admin.stop()
    finally:
        for admin in started:
            if admin.process is not None:
                admin.process.kill()
                admin.process.wait()


@pytest.fixture(scope="session", params=["pyqadmin", "nsqadmin"])
def admin(request: pytest.FixtureRequest, world: World, start_admin: Callable[..., Admin]) -> Admin:
    """A web admin in front of the lookup daemon."""
    return start_admin(request.param, f"--lookupd-http-address={world.lookupd}")


@pytest.fixture(scope="session", params=["pyqadmin", "nsqadmin"])
def direct(request: pytest.FixtureRequest, world: World, start_admin: Callable[..., Admin]) -> Admin:
    """A web admin in front of the brokers, without a lookup daemon."""
    return start_admin(request.param, *(f"--nsqd-http-address={address}" for address in world.addresses()))


@pytest.fixture(scope="module")
def open_admin(world: World, start_admin: Callable[..., Admin]) -> Admin:
    """A pyqadmin without logins, for the tests of one file."""
    return start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}")


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("access") / "users.toml"
    add_user(path, "ada", PASSWORDS["ada"], UserRole.ADMIN, ("*",))
    add_user(path, "otto", PASSWORDS["otto"], UserRole.OPERATE, ("orders*",))
    add_user(path, "vera", PASSWORDS["vera"], UserRole.VIEW, ("*",))
    return path


@pytest.fixture(scope="module")
def closed(world: World, start_admin: Callable[..., Admin], users_file: Path) -> Admin:
    """A web admin that needs a login."""
    return start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}", f"--users-file={users_file}")


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic's name of this test alone."""
    name = re.sub(r"\W", "_", request.node.name)[-40:]
    return f"{name}_{os.getpid()}"


# Not for the session: while Playwright runs in this thread, asyncio cannot.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    # Without the windows of the whole browser, a page takes half the processor time.
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        skip_outside_ci("no chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
