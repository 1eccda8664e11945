"""Fixtures of pyqctl's tests: brokers, and runs of the command line within the process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyqd.tools.ctl import contexts
from pyqd.tools.ctl.app import cli
from tests.lookupd.conftest import LookupDaemon
from tests.lookupd.conftest import running as lookup_running
from tests.support.server import Daemon, nsqd, pyqd, running

# A dead letter is published with a sync.
FLAGS = ("-sync-timeout=50ms",)
VARIABLES = (*contexts.VARIABLES.values(), contexts.CONTEXT_VARIABLE, "XDG_CONFIG_HOME", "COLUMNS")


@dataclass(frozen=True)
class Ran:
    """A finished run: exit code and outputs."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@dataclass(frozen=True)
class Ctl:
    """Runs pyqctl in a home directory of its own.

    address: HTTP address of the broker, or those of several, which the variable brings.
    """

    home: Path
    address: str = ""
    variable: str = "PYQD_HTTP_ADDRESS"

    def __call__(self, *arguments: str, input: str | bytes | None = None, **environment: str) -> Ran:
        """Run a command. environment: variables; others of pyqctl are unset."""
        variables = {
            **dict.fromkeys(VARIABLES),
            "HOME": str(self.home),
            self.variable: self.address,
            **environment,
        }
        result = CliRunner().invoke(cli, list(arguments), input=input, env=variables, prog_name="pyqctl")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return Ran(result.exit_code, result.stdout, result.stderr)


def address_of(daemon: Daemon) -> str:
    return f"127.0.0.1:{daemon.http_port}"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A broker for all tests, which use topics of their own."""
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("broker"), FLAGS)) as started:
        yield started


@pytest.fixture(scope="session")
def second_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("second"), FLAGS)) as started:
        yield started


@pytest.fixture(scope="session")
def go_broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Go's nsqd, if --nsqd gives its path."""
    path = pytestconfig.getoption("--nsqd")
    if not path:
        pytest.skip("needs nsqd: --nsqd=PATH, or the variable NSQD")
    with running(Daemon(nsqd(path), tmp_path_factory.mktemp("nsqd"))) as started:
        yield started


@pytest.fixture
def bare(tmp_path: Path) -> Ctl:
    """pyqctl without an address in its environment."""
    return Ctl(tmp_path)


@pytest.fixture
def ctl(broker: Daemon, tmp_path: Path) -> Ctl:
    """pyqctl with the address of the broker."""
    return Ctl(tmp_path, address_of(broker))


@pytest.fixture
def both(broker: Daemon, second_broker: Daemon, tmp_path: Path) -> Ctl:
    """pyqctl with the addresses of two brokers."""
    return Ctl(tmp_path, f"{address_of(broker)},{address_of(second_broker)}")


@pytest.fixture
def go_ctl(go_broker: Daemon, tmp_path: Path) -> Ctl:
    """pyqctl with the address of Go's nsqd."""
    return Ctl(tmp_path, address_of(go_broker))


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookupDaemon]:
    """A lookup daemon for all tests of a file, without a broker."""
    log = tmp_path_factory.mktemp("lookup") / "log"
    with lookup_running(LookupDaemon((sys.executable, "-m", "pyqd.apps.lookupd"), log)) as daemon:
        yield daemon
