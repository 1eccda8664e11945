"""`pyqd up`: broker, lookup daemon and web admin on this machine's loopback, as one group of processes.

For development and for a first look. Each program has flags, logs and restarts of its own; this process starts them,
starts again what has crashed, and stops all together.

Source: docs/install.md, "Everything at once".
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import http.client
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click

from pyqd.config.options import parse_args
from pyqd.primitives.addresses import TcpAddress, split_address
from pyqd.primitives.backoff import NO_JITTER, Backoff
from pyqd.primitives.http_client import fetch
from pyqd.primitives.loglines import LogLevel, configure
from pyqd.tools.trace.frame import size, span
from pyqd.trace import TRACES

PROG: Final = "pyqd up"
LOOPBACK: Final = "127.0.0.1"
BROKER: Final = "pyqd"
SHIPPER: Final = ("pyqd.tools.pyq_trace", "ship")
START_WAIT_S: Final = 30.0
STOP_WAIT_S: Final = 30.0
ANSWER_WAIT_S: Final = 5.0
POLL_S: Final = 0.05
TRACED_BODY_BYTES: Final = 200
# Without a limit, 100 messages a second take 7 GB a day.
TRACES_KEPT: Final = "1d"
TRACES_KEPT_BYTES: Final = "1GiB"
# A crash is followed by a start after this long, twice as long each time, until the program has run for a while.
RESTART_FIRST_S: Final = 1.0
RESTART_LONGEST_S: Final = 30.0
STEADY_S: Final = 60.0
PR_SET_PDEATHSIG: Final = 1

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class Companion:
    """One program of the group. ping: host and port that answer GET /ping; empty if there is none."""

    name: str
    command: list[str]
    ping: tuple[str, int] | None = None
    process: subprocess.Popen[bytes] | None = None
    # A process that the program has handed over to, which is no child of this one.
    successor: int = 0
    started_s: float = 0.0
    restart_at_s: float = 0.0
    delays: Backoff = dataclasses.field(
        default_factory=lambda: Backoff(RESTART_FIRST_S, RESTART_LONGEST_S, jitter=NO_JITTER)
    )

    def start(self) -> None:
        """Start the process; it ends with this one, however this one ends."""
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
        self.started_s, self.restart_at_s, self.successor = time.monotonic(), 0.0, 0

    def ended(self) -> int | None:
        """Return the exit code; None while the program runs."""
        if self.successor:
            if Path(f"/proc/{self.successor}").exists():
                return None
            self.successor = 0
            return 0
        assert self.process is not None
        code = self.process.poll()
        if code == 0 and self.ping is not None:
            self.successor = successor_of(self.ping)
            return None if self.successor else 0
        return code

    def is_ready(self) -> bool:
        return self.ping is None or get(self.ping, "/ping") is not None

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.successor:
                os.kill(self.successor, number)
            elif self.process is not None and self.process.poll() is None:
                self.process.send_signal(number)

    def stop(self) -> None:
        """End the program, by force if it takes too long."""
        self.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_WAIT_S
        while (self.process is not None or self.successor) and self.ended() is None:
            if time.monotonic() > deadline_s:
                logger.error("%s does not stop: it is killed", self.name)
                self.signal(signal.SIGKILL)
                deadline_s = float("inf")
            time.sleep(POLL_S)


class Group:
    """The programs, in the order of their start. They stop in the other order."""

    def __init__(self, programs: Sequence[Companion]) -> None:
        self.programs = programs
        self.is_stopping = False

    def start(self) -> bool:
        """Start all, and wait until they answer. Returns: False if one ended, or a signal came."""
        for program in self.programs:
            if program.ping is not None and program.is_ready():
                # It would be taken for the program, which cannot listen there and ends.
                place = ":".join(map(str, program.ping))
                logger.error(
                    "%s cannot start: another process answers at http://%s already; stop it, or choose other ports: "
                    "`pyqd up --help`",
                    program.name,
                    place,
                )
                return False
            program.start()
            deadline_s = time.monotonic() + START_WAIT_S
            while not program.is_ready():
                if self.is_stopping or program.ended() is not None:
                    return False
                if time.monotonic() > deadline_s:
                    logger.error(
                        "%s does not answer %g s after its start; its log lines above tell why",
                        program.name,
                        START_WAIT_S,
                    )
                    return False
                time.sleep(POLL_S)
            if program.ended() is not None:
                return False
        return True

    def watch(self) -> int:
        """Start crashed programs again, until a signal comes or the broker stops. Returns: the exit code."""
        while not self.is_stopping:
            for program in self.programs:
                if program.restart_at_s:
                    if time.monotonic() >= program.restart_at_s:
                        program.start()
                    continue
                code = program.ended()
                if code == 0 and program.name == BROKER:
                    logger.info("%s has stopped; the other programs stop too", program.name)
                    return 0
                if code is not None:
                    self._plan_restart(program, code)
            time.sleep(POLL_S)
        return 0

    def stop(self) -> None:
        for program in reversed(self.programs):
            program.stop()

    def request_stop(self, *_signal: object) -> None:
        """Have `start` and `watch` return. Safe in a signal handler."""
        self.is_stopping = True

    def _plan_restart(self, program: Companion, code: int) -> None:
        if time.monotonic() - program.started_s > STEADY_S:
            program.delays.reset()
        wait_s = program.delays.next_s()
        logger.error("%s has ended with code %d; it starts again in %g s", program.name, code, wait_s)
        program.restart_at_s = time.monotonic() + wait_s


def end_with_parent() -> None:
    """Have the system stop this process when its parent ends, and keep a terminal's Ctrl-C for the parent.

    The parent stops the programs in order. Source: prctl(2), setpgid(2).
    """
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def get(address: tuple[str, int], path: str) -> bytes | None:
    url = f"http://{TcpAddress(*address)}{path}"
    try:
        reply = fetch(url, redirects_max=0, timeout_s=ANSWER_WAIT_S)
    except (OSError, http.client.HTTPException):
        return None
    return reply.body if reply.status == http.client.OK else None


def successor_of(address: tuple[str, int]) -> int:
    """Return the process id of the broker that now answers at an address; 0 if none does."""
    body = get(address, "/restart")
    try:
        return int(json.loads(body)["pid"]) if body else 0
    except (ValueError, KeyError, TypeError):
        return 0


def parser() -> argparse.ArgumentParser:
    text = "Run broker, lookup daemon and web admin together, on loopback. All other flags go to the broker."
    whole = argparse.ArgumentParser(PROG, description=text, allow_abbrev=False)
    whole.add_argument("--data-path", default="data", help="directory of the data, made if missing (default: data)")
    for name, port, what in (
        ("tcp-port", 4150, "the broker's TCP protocol"),
        ("http-port", 4151, "the broker's HTTP API"),
        ("lookupd-tcp-port", 4160, "the lookup daemon, for brokers"),
        ("lookupd-http-port", 4161, "the lookup daemon, for clients"),
        ("admin-port", 4171, "the web admin"),
    ):
        whole.add_argument(f"--{name}", type=int, default=port, help=f"port of {what} (default: {port})")
    for name, default, check, what in (
        ("keep", TRACES_KEPT, span, "duration"),
        ("keep-bytes", TRACES_KEPT_BYTES, size, "size"),
    ):
        text = f"{what} of the traces that DATA_PATH/{TRACES} keeps (default: {default})"
        whole.add_argument(f"--trace-{name}", default=default, type=checked(check), metavar=what.upper(), help=text)
    whole.add_argument("--no-trace", action="store_true", help="do not trace messages into DATA_PATH/trace.db")
    return whole


def checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """Return a type of argparse: a text that pyq_trace takes for an option of its own."""

    def text_of(text: str) -> str:
        try:
            check(text)
        except click.BadParameter as error:
            raise argparse.ArgumentTypeError(error.message) from None
        return text

    return text_of


def programs_of(given: argparse.Namespace, broker_flags: Sequence[str]) -> list[Companion]:
    python = [sys.executable, "-m"]

    def at(port: int) -> str:
        return f"{LOOPBACK}:{port}"

    database = "" if given.no_trace else trace_database(given.data_path)
    flags = [
        f"--data-path={given.data_path}",
        f"--tcp-address={at(given.tcp_port)}",
        f"--http-address={at(given.http_port)}",
        f"--broadcast-address={LOOPBACK}",
        f"--lookupd-tcp-address={at(given.lookupd_tcp_port)}",
        *(["--trace-topic=*", f"--trace-body-bytes={TRACED_BODY_BYTES}"] if database else []),
        *broker_flags,
    ]
    # A flag of the user's may name another address, and a wrong one ends this process with its usual text.
    http_address = split_address(parse_args(flags).http_address)
    ping = (http_address.host, http_address.port) if isinstance(http_address, TcpAddress) else None
    broker = [*python, "pyqd.apps.daemon", *flags]
    lookupd = [
        *(*python, "pyqd.apps.lookupd"),
        f"--tcp-address={at(given.lookupd_tcp_port)}",
        f"--http-address={at(given.lookupd_http_port)}",
        f"--broadcast-address={LOOPBACK}",
        "--log-level=warn",
    ]
    admin = [
        *(*python, "pyqd.apps.admin"),
        f"--http-address={at(given.admin_port)}",
        f"--lookupd-http-address={at(given.lookupd_http_port)}",
        # Logins and changes are told at all levels; requests are not.
        "--log-level=warn",
        *([f"--trace-database={database}"] if database else []),
    ]
    programs = [
        Companion("pyqlookupd", lookupd, (LOOPBACK, given.lookupd_http_port)),
        Companion(BROKER, broker, ping),
    ]
    if database and ping is not None:
        # The shipper makes the tables that the web admin reads.
        shipper = [
            *(*python, *SHIPPER),
            f"--nsqd-http-address={ping[0]}:{ping[1]}",
            f"--to={database}",
            f"--keep={given.trace_keep}",
            f"--keep-bytes={given.trace_keep_bytes}",
        ]
        programs.append(Companion("pyq_trace", shipper))
    return [*programs, Companion("pyqadmin", admin, (LOOPBACK, given.admin_port))]


def trace_database(data_path: str) -> str:
    """Return the URL of the trace database in a data directory; empty without the packages of the extra `trace`."""
    if importlib.util.find_spec("sqlalchemy") is None or importlib.util.find_spec("alembic") is None:
        logger.info("messages are not traced: pip install 'pyqd[trace]' adds what this needs")
        return ""
    return f"sqlite:///{Path(data_path).absolute()}/{TRACES}"


def make_private(database: Path) -> None:
    """Let only the owner read the trace database of an earlier run: it has bodies."""
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            database.with_name(database.name + end).chmod(0o600)


def pyqctl() -> str:
    """Return how to call pyqctl: by its path if a shell would not find that of this environment."""
    beside = Path(sys.executable).with_name("pyqctl")
    found = shutil.which("pyqctl")
    if not beside.exists() or (found is not None and beside.samefile(found)):
        return "pyqctl"
    return os.path.relpath(beside)


def welcome(given: argparse.Namespace, has_traces: bool) -> str:
    admin = f"http://{LOOPBACK}:{given.admin_port}"
    story = ""
    if has_traces:
        story = f"""Its life is at {admin}/messages then, and in `{pyqctl()} trace ID`.
Traces go to {given.data_path}/{TRACES}, which keeps {given.trace_keep} or {given.trace_keep_bytes}, whichever is less.
--trace-keep and --trace-keep-bytes change this; --no-trace records none.

"""
    return f"""
pyqd is up:
  broker         {LOOPBACK}:{given.tcp_port} (TCP), http://{LOOPBACK}:{given.http_port}
  lookup daemon  {LOOPBACK}:{given.lookupd_tcp_port} (TCP), http://{LOOPBACK}:{given.lookupd_http_port}
  web admin      {admin}
The web admin needs no login: only this machine reaches it.

  curl -d 'hello world' 'http://{LOOPBACK}:{given.http_port}/pub?topic=greetings'

{story}Ctrl-C stops everything.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run until a signal. Returns: the exit code."""
    given, broker_flags = parser().parse_known_args(argv)
    configure(f"[{PROG}] ", LogLevel.INFO)
    os.makedirs(given.data_path, exist_ok=True)
    make_private(Path(given.data_path) / TRACES)
    group = Group(programs_of(given, broker_flags))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, group.request_stop)
    try:
        if not group.start():
            return 0 if group.is_stopping else 1
        has_traces = any(program.name == "pyq_trace" for program in group.programs)
        print(welcome(given, has_traces), flush=True)
        return group.watch()
    finally:
        group.stop()


if __name__ == "__main__":
    sys.exit(main())
