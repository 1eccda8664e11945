"""Tests of tests.support.preloaded: programs as forks of a process that has loaded them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import preloaded
from tests.support.preloaded import Process, run, spawn
from tests.support.server import wait_until

COMMAND = [sys.executable, "-m", "tests.support.echo_program"]
WAIT_S = 20.0


def echo(directory: Path, *arguments: str, **variables: str) -> tuple[int, dict[str, Any], bytes]:
    """Run the program. Returns: exit code, what it was started with, standard error."""
    code, out, error = run([*COMMAND, *arguments], directory, os.environ | variables, b"input", WAIT_S)
    return code, json.loads(out), error


def waiting(directory: Path) -> Process:
    """Start the program, which waits for its input to end."""
    pipe = subprocess.PIPE
    process = spawn([*COMMAND, "3"], directory, os.environ, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def parent_of(process: Process) -> int:
    """Return the process that has forked a program. Source: proc(5)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    parent = int(status.partition("PPid:")[2].split()[0])
    assert parent != os.getpid()
    return parent


def close(process: Process) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


@pytest.mark.slow
def test_a_program_gets_what_its_start_gives_and_nothing_else(tmp_path: Path) -> None:
    code, facts, error = echo(tmp_path, "0", "a b", ODD="1")
    assert (code, error) == (0, b"input")
    assert facts["is_loaded_before"]
    assert facts["arguments"] == ["0", "a b"]
    assert facts["original"] == [*COMMAND, "0", "a b"]
    assert facts["directory"] == str(tmp_path)
    assert facts["variables"] == os.environ | {"ODD": "1"}
    assert facts["descriptor_count"] == 3
    assert "ODD" not in echo(tmp_path, "0")[1]["variables"]


@pytest.mark.slow
def test_variables_that_the_interpreter_reads_at_its_start_get_a_process_of_their_own(tmp_path: Path) -> None:
    assert echo(tmp_path, "0", PYTHONHASHSEED="1")[1]["variables"]["PYTHONHASHSEED"] == "1"


@pytest.mark.parametrize("code", [0, 7, -signal.SIGKILL, -signal.SIGTERM])
def test_the_exit_code_is_that_of_the_program(tmp_path: Path, code: int) -> None:
    assert echo(tmp_path, str(code))[0] == code


def test_programs_run_side_by_side_and_take_signals(tmp_path: Path) -> None:
    first, second = waiting(tmp_path), waiting(tmp_path)
    assert (first.poll(), second.poll()) == (None, None)
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.01)
    first.terminate()
    assert first.wait(WAIT_S) == first.poll() == -signal.SIGTERM
    # A signal for a program that has ended goes nowhere.
    first.kill()
    assert second.poll() is None
    assert second.stdin is not None
    second.stdin.close()
    assert second.wait(WAIT_S) == 3
    close(first)
    close(second)


@pytest.mark.slow
def test_programs_go_on_and_new_ones_start_if_the_process_that_forks_is_killed(tmp_path: Path) -> None:
    first = waiting(tmp_path)
    os.kill(parent_of(first), signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.5)
    second = waiting(tmp_path)
    for process in (first, second):
        assert process.poll() is None
        process.kill()
        assert process.wait(WAIT_S) == -signal.SIGKILL
        close(process)


def test_a_start_that_is_interrupted_leaves_no_program_and_does_not_disturb_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = waiting(tmp_path)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preloaded, "is_readable", interrupted)
        with pytest.raises(KeyboardInterrupt):
            waiting(tmp_path)
    assert first.poll() is None
    children = Path(f"/proc/{parent_of(first)}/task/{parent_of(first)}/children")
    wait_until(lambda: children.read_text().split() == [str(first.pid)], "the end of the other program")
    assert echo(tmp_path, "0")[0] == 0
    first.kill()
    first.wait(WAIT_S)
    close(first)


def test_other_commands_are_started_as_they_are(tmp_path: Path) -> None:
    assert run(["/bin/sh", "-c", "cat; exit 5"], tmp_path, os.environ, b"x" * 100_000, WAIT_S) == (
        5,
        b"x" * 100_000,
        b"",
    )
