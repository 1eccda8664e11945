"""The tests' own ground: a missing thing is seen, and a daemon under test is the one that the test has started."""

import mmap
import os
from pathlib import Path

import pytest
from _pytest.outcomes import Failed, Skipped

from tests.persistence import stepping
from tests.support import machine
from tests.support.http_target import http_target
from tests.support.needs import skip_outside_ci
from tests.support.server import PORTS_KEPT, Daemon, free_port, listens, pyqd

OUTCOMES = [("true", Failed), ("1", Failed), ("false", Skipped), ("", Skipped)]


@pytest.mark.parametrize(("ci", "outcome"), OUTCOMES)
def test_a_missing_thing_fails_in_continuous_integration_and_skips_elsewhere(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no such thing"):
        skip_outside_ci("no such thing")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="single steps of x86-64")
@pytest.mark.parametrize(("ci", "outcome"), OUTCOMES)
def test_stepping_that_the_system_refuses_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(stepping, "_libc", Refusing())
    with pytest.raises(outcome, match="may not trace"):
        list(stepping.states_of(tmp_path, lambda: None))


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="single steps of x86-64")
def test_stepping_shows_single_stores_and_some_states_of_a_long_copy(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    path = directory / "file"
    path.write_bytes(bytes(65536))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:

        def store() -> None:
            mapped[0] = 1
            mapped[4096:8096] = b"x" * 4000
            mapped[1] = 2

        states = [(state / "file").read_bytes() for state in stepping.states_of(directory, store)]
    copied = [state.count(b"x") for state in states]
    assert copied == sorted(copied)
    assert (copied[0], copied[1] > 0, copied[-1]) == (0, True, 4000)
    assert {state[:2] for state in states[:-1]} == {b"\1\0"}
    assert states[-1][:2] == b"\1\2"
    assert stepping.RUN_STATES_MIN < len(states) < 400


class Refusing:
    """A system that allows no tracing."""

    def ptrace(self, *_: object) -> int:
        return -1


@pytest.mark.slow
def test_a_daemon_whose_port_was_taken_is_not_confused_with_the_other_process(tmp_path: Path) -> None:
    with http_target() as other:
        daemon = Daemon(pyqd(), tmp_path)
        daemon.tcp_port, daemon.http_port = free_port(), other.port
        try:
            daemon.start()
            assert daemon.http_port != other.port
            assert listens(daemon.pid, daemon.http_port)
            assert not listens(daemon.pid, other.port)
            assert listens(os.getpid(), other.port)
            assert daemon.topics() == {}
            daemon.stop()
        finally:
            daemon.kill()


@pytest.mark.parametrize(("ci", "outcome"), OUTCOMES)
def test_a_system_without_namespaces_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(machine, "WAYS", [("--no-such-namespace",)])
    with pytest.raises(outcome, match=r"no network namespace.*no-such-namespace"):
        machine.Machine(tmp_path)


def test_workers_of_a_suite_never_get_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    found = []
    for worker in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        found.append({free_port() for _ in range(PORTS_KEPT)})
    # A daemon binds its port a second after the probe, so a second use of it would collide.
    assert [len(ports) for ports in found] == [PORTS_KEPT] * 3
    assert len(set().union(*found)) == 3 * PORTS_KEPT
    assert len({port % 3 for port in found[0]}) == 1
