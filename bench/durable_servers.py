"""Brokers whose OK means "on stable storage": their commands, and the strace calls that are flushes."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.durable_protocols import Beanstalk, Nats, Nsq, Redis
from bench.server import (
    START_DEADLINE_S,
    STOP_DEADLINE_S,
    Launch,
    Server,
    Target,
    free_addresses,
    stop,
    wait_until_listening,
)

Arguments = Callable[[int, Path], Sequence[str]]


@dataclass(frozen=True)
class Broker:
    """A server under test. arguments: of its port and its empty data directory. durable: its OK promises a flush."""

    name: str
    command: tuple[str, ...]
    protocol: Nsq
    arguments: Arguments
    setting: str
    version_flag: str = "-version"
    environment: dict[str, str] = field(default_factory=dict)
    durable: bool = True

    def version(self) -> str:
        """Return the first line that the program says of its version."""
        asked = subprocess.run(
            [*self.command, self.version_flag], capture_output=True, text=True, timeout=START_DEADLINE_S
        )
        return (asked.stdout or asked.stderr).strip().partition("\n")[0]


def nsq_arguments(*flags: str) -> Arguments:
    def arguments(port: int, data_path: Path) -> Sequence[str]:
        (http,) = free_addresses(1)
        http_flag = f"-http-address={http[0]}:{http[1]}"
        return [f"-tcp-address=127.0.0.1:{port}", http_flag, f"-data-path={data_path}", *flags]

    return arguments


def redis_arguments(port: int, data_path: Path) -> Sequence[str]:
    flags = {"port": port, "bind": "127.0.0.1", "dir": data_path, "appendonly": "yes", "appendfsync": "always"}
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))] + ["--save", ""]


def beanstalkd_arguments(port: int, data_path: Path) -> Sequence[str]:
    return ["-l", "127.0.0.1", "-p", str(port), "-b", str(data_path), "-f", "0"]


def nats_arguments(port: int, data_path: Path) -> Sequence[str]:
    configuration = data_path.parent / "nats.conf"
    configuration.write_text(f'jetstream {{ store_dir: "{data_path}", sync_interval: always }}\n')
    return ["-a", "127.0.0.1", "-p", str(port), "-c", str(configuration)]


def of_target(target: Target) -> Broker:
    """Return a server of NSQ's protocol, with `--sync-every=1`."""
    return Broker(
        name=target.name,
        command=target.command,
        protocol=Nsq(),
        arguments=nsq_arguments("--sync-every=1"),
        setting="`--sync-every=1`",
        environment=dict(target.environment),
        durable=target.program != "sink",
    )


# Name, environment variable with the path, protocol, arguments, settings, command for the version.
OTHERS: tuple[tuple[str, str, Nsq, Arguments, str, str], ...] = (
    ("redis", "REDIS", Redis(), redis_arguments, "`appendonly yes`, `appendfsync always`", "--version"),
    ("beanstalkd", "BEANSTALKD", Beanstalk(), beanstalkd_arguments, "`-b DIR -f 0`", "-v"),
    ("nats", "NATS", Nats(), nats_arguments, "JetStream, files, `sync_interval: always`", "--version"),
)


def of_environment(name: str) -> Broker | None:
    """Return redis, beanstalkd or nats if the environment variable of that name in capitals is a program's path.

    Raises: ValueError for a path without a program.
    """
    [(_, variable, protocol, arguments, setting, flag)] = [other for other in OTHERS if other[0] == name]
    path = os.environ.get(variable)
    if not path:
        return None
    found = shutil.which(path)
    if found is None:
        raise ValueError(f"{variable}: no such program: {path}")
    # Only Go's servers use it; more running threads than cores would only add switches.
    one_core = {"GOMAXPROCS": "1"}
    return Broker(name, (found,), protocol, arguments, setting, version_flag=flag, environment=one_core)


@contextmanager
def running(
    broker: Broker, cores: Sequence[int] = (), data_root: Path | None = None, tracer: Sequence[str] = ()
) -> Iterator[Server]:
    """Run the broker with an empty data directory on a free loopback port; stop it afterwards.

    data_root: where the data is made, and left to the caller; None: it is made among the temporary files and removed.
    A file system that has just lost many files is slow to make others: ext4 looks at each inode that was freed a short
    while ago, and may still discard their blocks. tracer: words before the server's command, for strace -D, which keeps
    the server process as our child.
    """
    with ExitStack() as cleaned:
        directory = tempfile.mkdtemp(prefix="bench-", dir=data_root)
        if data_root is None:
            cleaned.callback(shutil.rmtree, directory)
        data_path = Path(directory) / "data"
        data_path.mkdir()
        (address,) = free_addresses(1)
        launch = Launch(
            command=(*tracer, *broker.command, *broker.arguments(address[1], data_path)),
            environment={**os.environ, **broker.environment},
            cores=tuple(cores),
            log_path=Path(directory) / "server.log",
        )
        server = Server(launch, launch.start(), tcp_address=address, http_address=address, data_path=data_path)
        try:
            wait_until_listening(server, START_DEADLINE_S)
            yield server
        finally:
            stop(server.process, STOP_DEADLINE_S)
