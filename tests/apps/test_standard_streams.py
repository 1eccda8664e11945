"""Every program with standard streams that are closed, or on a full disk."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nsq import Client
from tests.support.server import REPOSITORY, Daemon, free_port, listens, pyqd, running, wait_until
from tests.support.tools import tools_environment

pytestmark = pytest.mark.slow

WAIT_S = 30.0
ENTRY = re.compile(r'^(py\w+|to_pyq) = "([\w.]+):main"$', re.MULTILINE)
# One program of each parser of command lines.
KINDS = ("pyqd", "pyq_tail", "pyqctl", "pyq_spark")
PROGRAMS = dict(ENTRY.findall((REPOSITORY / "pyproject.toml").read_text()))


def shell(directory: Path, module: str, words: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end with a shell's redirections."""
    return subprocess.run(
        ["bash", "-c", f"exec {shlex.quote(sys.executable)} -m {module} {words}"],
        cwd=directory,
        env=tools_environment() | {"PYTHONPATH": f"{tools_environment()['PYTHONPATH']}:{REPOSITORY}/spark"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_the_programs_are_found() -> None:
    assert len(PROGRAMS) == 13


@pytest.mark.parametrize(
    ("program", "target", "reason"),
    [
        *((program, ">/dev/full", "No space left on device") for program in PROGRAMS),
        *((program, ">&-", "it is closed") for program in KINDS),
    ],
)
def test_output_that_cannot_be_written_is_an_error_of_one_line(
    tmp_path: Path, program: str, target: str, reason: str
) -> None:
    ended = shell(tmp_path, PROGRAMS[program], f"--help {target}")
    said = f"{program}: cannot write to standard output: {reason}"
    assert (ended.returncode, ended.stderr.count("\n"), ended.stderr[: len(said)]) == (1, 1, said)


@pytest.mark.parametrize(
    ("program", "target"),
    [*((program, "2>&-") for program in PROGRAMS), *((program, "2>/dev/full") for program in KINDS)],
)
def test_a_mistake_that_cannot_be_reported_keeps_its_exit_code(tmp_path: Path, program: str, target: str) -> None:
    ended = shell(tmp_path, PROGRAMS[program], f"--no-such-flag {target}")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "")


@pytest.mark.parametrize("words", ["--version", "inspect --help", "--check-config"])
def test_a_report_for_a_full_disk_is_an_error_of_one_line(tmp_path: Path, words: str) -> None:
    ended = shell(tmp_path, PROGRAMS["pyqd"], f"{words} >/dev/full")
    assert (ended.returncode, ended.stderr) == (1, "pyqd: cannot write to standard output: No space left on device\n")


def test_a_failed_start_without_standard_error_exits_with_1(tmp_path: Path) -> None:
    ended = shell(tmp_path, PROGRAMS["pyqd"], "--node-id=4000 2>&-")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


def test_a_password_from_closed_standard_input_is_refused(tmp_path: Path) -> None:
    ended = shell(tmp_path, PROGRAMS["pyqadmin"], "user add --users-file=users.toml name <&-")
    said = "pyqadmin user add: cannot read the password from standard input: it is closed\n"
    assert (ended.returncode, ended.stderr) == (1, said)


@pytest.mark.parametrize("target", ["<&- >&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize("program", ["pyqd", "pyqlookupd", "pyqadmin"])
def test_a_daemon_serves_without_standard_streams(tmp_path: Path, program: str, target: str) -> None:
    port = free_port()
    words = f"-m {PROGRAMS[program]} --http-address=127.0.0.1:{port}"
    words += {"pyqadmin": " --nsqd-http-address=127.0.0.1:1"}.get(program, " --tcp-address=127.0.0.1:0")
    process = subprocess.Popen(
        ["bash", "-c", f"exec {shlex.quote(sys.executable)} {words} {target}"], cwd=tmp_path, env=tools_environment()
    )
    try:
        wait_until(lambda: listens(process.pid, port), "the daemon listens", WAIT_S)
        streams = [Path(f"/proc/{process.pid}/fd/{number}").readlink() for number in range(3)]
        assert not [each for each in streams if "socket" in str(each) or "anon_inode" in str(each)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("tool", ["pyq_tail --channel=c -n=1", "pyq_stat --channel=c --count=1 --interval=100ms"])
def test_log_lines_of_a_tool_do_not_get_among_its_output(tmp_path: Path, tool: str) -> None:
    with running(Daemon(pyqd(), tmp_path)) as broker:
        with Client(broker.tcp_address) as client:
            client.sub("t", "c")
            client.pub("t", b"one")
        name, _, flags = tool.partition(" ")
        address = f"--nsqd-tcp-address=127.0.0.1:{broker.tcp_port}"
        if name == "pyq_stat":
            address = f"--nsqd-http-address=127.0.0.1:{broker.http_port}"
        arguments = f"--topic=t {address} {flags} ignored"
        heard = shell(tmp_path, PROGRAMS[name], arguments)
        with Client(broker.tcp_address) as client:
            client.pub("t", b"one")
        unheard = shell(tmp_path, PROGRAMS[name], f"{arguments} 2>&-")
    assert heard.stderr != ""
    assert (unheard.returncode, unheard.stdout.count("\n")) == (0, heard.stdout.count("\n"))
    if name == "pyq_tail":
        assert unheard.stdout == "one\n"
