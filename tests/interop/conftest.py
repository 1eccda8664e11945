"""Client libraries as pytest sees them: a fixture a role, the library as a parameter."""

import contextlib
import importlib.util
import itertools
import queue
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.interop.process import ROOT, WAIT_S, ClientProcess, Event
from tests.support.scripted_broker import ScriptedBroker, scripted_brokers
from tests.support.server import Daemon, Implementation, nsqd, pyqd, wait_until

# The name of a client library, and the module whose absence means it is not installed.
PYTHON_CLIENTS = {"pynsq": "nsq", "gnsq": "gnsq", "ansq": "ansq"}
CLIENTS = [*PYTHON_CLIENTS, "go-nsq"]
GO_BUILD_WAIT_S = 120.0


@dataclass
class Clients:
    """Starts scripts of client libraries against one daemon."""

    daemon: Daemon
    directory: Path
    go_program: Callable[[], Path]
    started: list[ClientProcess] = field(default_factory=list)

    def _start(
        self, library: str, role: str, *arguments: str, events: "queue.Queue[Event] | None" = None
    ) -> ClientProcess:
        if library == "go-nsq":
            command = [str(self.go_program())]
        elif importlib.util.find_spec(PYTHON_CLIENTS[library]) is None:
            pytest.skip(f"{library} is not installed")
        else:
            command = [sys.executable, "-m", f"tests.interop.clients.{library}_client"]
        command += ["--role", role, "--address", "{}:{}".format(*self.daemon.tcp_address), *arguments]
        log = self.directory / f"{library}-{role}-{len(self.started)}.log"
        process = ClientProcess(command, log, events)
        self.started.append(process)
        return process

    def producer(self, library: str, **options: int | str) -> ClientProcess:
        """Start a producer and wait until it may publish. ``options`` are as those of a consumer."""
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        process = self._start(library, "producer", *arguments)
        process.expect("connected")
        return process

    def consumer(
        self,
        library: str,
        topic: str,
        channel: str,
        *,
        events: "queue.Queue[Event] | None" = None,
        **options: int | str,
    ) -> ClientProcess:
        """Start a consumer and wait until the daemon counts it, ready, among the channel's clients.

        ``options`` are those of the scripts' command line, with underscores.
        """
        before = self.ready_count(topic, channel)
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        arguments += [f"--topic={topic}", f"--channel={channel}"]
        process = self._start(library, "consumer", *arguments, events=events)

        def ready() -> bool:
            process.assert_running()
            return self.ready_count(topic, channel) > before

        wait_until(ready, f"{library} is ready on {topic}:{channel}", WAIT_S)
        return process

    def ready_count(self, topic: str, channel: str) -> int:
        """Count the channel's clients that are ready for at least one message."""
        stats = self.daemon.channel(topic, channel) or {}
        return sum(client["ready_count"] > 0 for client in stats.get("clients", []))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that need a daemon against this project's own, and against Go's nsqd if its path is given."""
    if "implementation" in metafunc.fixturenames:
        path = metafunc.config.getoption("--nsqd")
        servers = [pyqd(), nsqd(path)] if path else [pyqd()]
        metafunc.parametrize("implementation", servers, ids=lambda server: server.name, scope="session")


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Implementation, tuple[str, ...]], Daemon]]:
    """Give a function that starts a daemon on its first call; all daemons stop cleanly with the session."""
    daemons: dict[tuple[str, tuple[str, ...]], Daemon] = {}

    def find(implementation: Implementation, flags: tuple[str, ...]) -> Daemon:
        key = (implementation.name, flags)
        if key not in daemons:
            daemons[key] = Daemon(implementation, tmp_path_factory.mktemp(implementation.name), flags).start()
        return daemons[key]

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [stack.callback(daemon.stop) for daemon in daemons.values()])
        yield find


@pytest.fixture
def daemon_flags() -> tuple[str, ...]:
    """Give the daemon's flags; a test that wants others parametrizes this name."""
    return ()


@pytest.fixture
def daemon(
    implementation: Implementation,
    daemon_flags: tuple[str, ...],
    running: Callable[[Implementation, tuple[str, ...]], Daemon],
) -> Iterator[Daemon]:
    """Give a running daemon, shared by the tests of its flags, and assert that the test did it no harm."""
    daemon = running(implementation, daemon_flags)
    yield daemon
    daemon.assert_healthy()


@pytest.fixture(params=CLIENTS)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clients(daemon: Daemon, tmp_path: Path, go_program: Callable[[], Path]) -> Iterator[Clients]:
    """Give a starter of client scripts, which ends them with the test."""
    clients = Clients(daemon, tmp_path, go_program)
    yield clients
    for process in clients.started:
        process.kill()


_topic_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"interop-{next(_topic_numbers)}"


@pytest.fixture(scope="session")
def go_programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give a function that compiles the programs in go/ once, skips the test if that is impossible, and finds one."""
    compiled: list[Path] = []
    obstacle = ""

    def find(name: str) -> Path:
        nonlocal obstacle
        if not compiled and not obstacle:
            directory = tmp_path_factory.mktemp("go") / "interop"
            shutil.copytree(ROOT / "tests/interop/go", directory)
            if obstacle := _obstacle_to_compiling(directory):
                pytest.skip(obstacle)
            _go(directory, "build", "-o", "bin/", "./...", check=True)
            compiled.append(directory / "bin")
        if obstacle:
            pytest.skip(obstacle)
        return compiled[0] / name

    return find


@pytest.fixture(scope="session")
def go_program(go_programs: Callable[[str], Path]) -> Callable[[], Path]:
    """Give a function that compiles go/main.go once, and skips the test if that is impossible."""
    return lambda: go_programs("interop")


def _obstacle_to_compiling(directory: Path) -> str:
    if shutil.which("go") is None:
        return "go is not on the PATH, so the test of go-nsq cannot be compiled"
    try:
        _go(directory, "mod", "download", check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return f"go-nsq, or a module it needs, could not be had: {error} {error.stderr!r}"
    return ""


def _go(directory: Path, *arguments: str, check: bool) -> None:
    subprocess.run(
        ["go", *arguments], cwd=directory, check=check, timeout=GO_BUILD_WAIT_S, capture_output=True, text=True
    )


@pytest.fixture
def brokers() -> Iterator[list[ScriptedBroker]]:
    """Give three brokers, a, b and c. None has admitted the client."""
    with scripted_brokers("a", "b", "c") as brokers:
        yield brokers
