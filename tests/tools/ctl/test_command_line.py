"""pyqctl as a whole: help, exit codes, completion, and runs as a process with and without a terminal."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from pyqd import __version__
from pyqd.tools.ctl.app import cli
from pyqd.tools.ctl.frame import CtlCommand
from tests.support import preloaded
from tests.support.http_stub import http_stub, json_answer
from tests.support.readiness import is_readable
from tests.support.server import REPOSITORY, Daemon
from tests.tools.ctl.conftest import VARIABLES, Ctl, address_of

WAIT_S = 20.0
PROGRAM = (sys.executable, "-m", "pyqd.tools.pyqctl")


def commands(group: click.Group = cli, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the words and the command of each leaf."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*prefix, name))
        else:
            yield (*prefix, name), command


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(REPOSITORY), "TERM": "xterm", **more}


def run(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *arguments]
    code, out, error = preloaded.run(command, REPOSITORY, environment(home, **more), b"", WAIT_S)
    return subprocess.CompletedProcess(command, code, out.decode(), error.decode())


class Terminal:
    """A run of pyqctl at a terminal."""

    def __init__(self, home: Path, arguments: Sequence[str]) -> None:
        self._fd, child_fd = pty.openpty()
        variables = environment(home, COLUMNS="120", LINES="24")
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments],
            env=variables,
            stdin=child_fd,
            stdout=child_fd,
            stderr=child_fd,
            start_new_session=True,
        )
        os.close(child_fd)
        self.shown = ""

    def read_until(self, text: str) -> None:
        """Read until a text is shown, or the program ends."""
        deadline_s = time.monotonic() + WAIT_S
        while text not in self.shown:
            wait_s = max(0.0, deadline_s - time.monotonic())
            assert is_readable(self._fd, wait_s), f"{text!r} is not shown, but {self.shown!r}"
            try:
                self.shown += os.read(self._fd, 65536).decode()
            except OSError:
                # The other end is closed.
                break
        assert text in self.shown, self.shown

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait(self) -> int:
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_each_command_says_in_its_help_what_it_sends(bare: Ctl, words: tuple[str, ...]) -> None:
    ran = bare(*words, "--help")
    assert ran.code == 0
    told = ran.out.partition("On the wire:")[2]
    assert re.search(r"(GET|POST) /|Nothing\.|sends nothing", told), told


def test_each_command_has_the_shared_options() -> None:
    without = [words for words, command in commands() if not isinstance(command, CtlCommand)]
    assert without == []


def test_no_option_of_a_command_takes_the_value_of_another() -> None:
    names = {words: [param.name for param in command.params] for words, command in commands()}
    assert [words for words, found in names.items() if len(set(found)) < len(found)] == []


def test_a_shared_option_may_stand_before_and_behind_the_command(bare: Ctl, broker: Daemon) -> None:
    assert bare("-a", address_of(broker), "--json", "topics").code == 0
    ran = bare("-a", "absent:1", "--json", "topics", "-a", address_of(broker), "--table")
    assert ran.code == 0
    assert "Depth" in ran.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nope",), "No such command 'nope'"),
        (("topics", "--nope"), "No such option"),
        (("topics", "--timeout=1"), "no duration such as 250ms"),
        (("topics", "--timeout=0s"), "at least 1ms"),
        (("watch", "--interval=-1s"), "is negative"),
        (("topics", "-a", "host:port"), "no address"),
        (("topics", "-a", "a:1", "-l", "b:1"), "not both"),
        (("topics", "--ca", "/absent.pem"), "--ca, --cert or --key"),
    ],
)
def test_a_wrong_use_ends_with_exit_code_2(bare: Ctl, arguments: tuple[str, ...], reason: str) -> None:
    ran = bare(*arguments)
    assert ran.code == 2
    assert reason in ran.err


def test_the_version_is_that_of_the_package(bare: Ctl) -> None:
    assert bare("--version").out == f"pyqctl v{__version__} (NSQ v1.3.0)\n"


def test_without_a_broker_on_this_machine_the_error_tells_how_to_name_one(bare: Ctl) -> None:
    # The address is that of --nsqd-http-address's default, but at a port without a broker.
    ran = bare("topics", "--timeout=1s", PYQD_HTTP_ADDRESS="")
    if ran.code == 0:
        pytest.skip("a broker runs at the default address")
    assert "`pyqctl context add`" in ran.err


@pytest.mark.slow
def test_a_process_without_a_terminal_prints_json(tmp_path: Path, broker: Daemon) -> None:
    done = run(tmp_path, "topics", "absent", "-a", address_of(broker))
    assert (done.returncode, done.stdout, done.stderr) == (0, '{\n  "topics": []\n}\n', "")


@pytest.mark.slow
def test_at_a_terminal_there_is_a_table(tmp_path: Path, broker: Daemon, topic: str) -> None:
    broker.http("POST", "/topic/create", topic=topic)
    terminal = Terminal(tmp_path, ("topics", topic, "-a", address_of(broker)))
    try:
        terminal.read_until(topic)
        assert terminal.wait() == 0
        assert "Depth" in terminal.shown
    finally:
        terminal.close()


@pytest.mark.slow
def test_a_question_at_a_terminal_is_answered_there(tmp_path: Path) -> None:
    assert run(tmp_path, "context", "add", "a", "-a", "a:1").returncode == 0
    for answer, code, left in (("n\n", 1, 1), ("y\n", 0, 0)):
        terminal = Terminal(tmp_path, ("context", "remove", "a"))
        try:
            terminal.read_until("Remove the context 'a'? [y/N]")
            terminal.type(answer)
            assert terminal.wait() == code
        finally:
            terminal.close()
        assert run(tmp_path, "context", "list").stdout.count('"name"') == left


@pytest.mark.slow
def test_ctrl_c_ends_a_watch_without_an_error(tmp_path: Path, broker: Daemon) -> None:
    terminal = Terminal(tmp_path, ("watch", "-a", address_of(broker), "--interval=100ms"))
    try:
        terminal.read_until("every 100ms")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.shown
    finally:
        terminal.close()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["--json", "--table"])
def test_a_reader_that_goes_away_ends_a_watch(tmp_path: Path, broker: Daemon, form: str) -> None:
    command = [*PROGRAM, "watch", "-a", address_of(broker), "--interval=100ms", form]
    with subprocess.Popen(
        command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(WAIT_S) == -signal.SIGPIPE


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("topics",), ("topics", "--table"), ("watch", "--count=1", "--interval=100ms"),
                                       ("completion", "bash"), ("--version",)], ids=" ".join)  # fmt: skip
def test_a_full_disk_ends_it_with_1(tmp_path: Path, broker: Daemon, arguments: tuple[str, ...]) -> None:
    command = [*PROGRAM, *arguments]
    where = environment(tmp_path, PYQD_HTTP_ADDRESS=address_of(broker))
    with open("/dev/full", "wb") as full:
        ran = preloaded.spawn(command, REPOSITORY, where, stdout=full.fileno(), stderr=subprocess.PIPE)
    assert ran.stderr is not None
    with ran.stderr:
        error = ran.stderr.read().decode()
    said = "pyqctl: cannot write to standard output: No space left on device; a change may already be made\n"
    assert (error, ran.wait(WAIT_S)) == (said, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("create t >&-", 1, "cannot write to standard output: it is closed; nothing is done"),
        ("publish t <&-", 2, "cannot read standard input: it is closed"),
        ("cancel t - --yes <&-", 2, "cannot read standard input: it is closed"),
        ("context remove c <&-", 2, "There is no terminal to answer at: add --yes"),
        ("-a 127.0.0.1:1 topics 2>&-", 3, ""),
    ],
)
def test_a_closed_stream_is_a_mistake(tmp_path: Path, broker: Daemon, line: str, code: int, said: str) -> None:
    assert run(tmp_path, "context", "add", "c", "-a", "127.0.0.1:1").returncode == 0
    ran = subprocess.run(
        ["bash", "-c", f"{shlex.join(PROGRAM)} {line}"],
        env=environment(tmp_path, PYQD_HTTP_ADDRESS=address_of(broker)),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (code, "")
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


# Completes each of the command lines in the arguments, and prints what is offered for its last word.
SCRIPT = """
eval "$(pyqctl completion bash)"
for line in "$@"; do
    COMPREPLY=() COMP_WORDS=($line)
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    _pyqctl_completion pyqctl
    echo "${COMPREPLY[*]}"
done
"""


def complete_in_bash(home: Path, *lines: str, **variables: str) -> list[str]:
    """Return what bash offers for the last word of each command line."""
    program = home / "bin" / "pyqctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", SCRIPT, "bash", *lines],
        env=environment(home, PATH=f"{program.parent}:{os.environ['PATH']}", **variables),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_topics_and_channels(tmp_path: Path, broker: Daemon, topic: str) -> None:
    broker.http("POST", "/topic/create", topic=topic)
    broker.http("POST", "/channel/create", topic=topic, channel="email")
    address = address_of(broker)
    lines = ("pyqctl chan", f"pyqctl -a {address} topics {topic}", f"pyqctl -a {address} channels {topic} e")
    assert complete_in_bash(tmp_path, *lines) == ["channels", topic, "email"]


def test_completion_without_a_broker_offers_nothing(bare: Ctl) -> None:
    variables = {"COMP_WORDS": "pyqctl topics x", "COMP_CWORD": "2", "_PYQCTL_COMPLETE": "bash_complete"}
    with http_stub(lambda _path, _query: json_answer({"status": "ok"})) as other:
        for address in ("127.0.0.1:1", other.address):
            ran = bare(PYQD_HTTP_ADDRESS=address, **variables)
            assert (ran.code, ran.out.strip(), ran.err) == (0, "", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_completion_script_for_each_shell(bare: Ctl, shell: str) -> None:
    ran = bare("completion", shell)
    assert ran.code == 0
    assert f"_PYQCTL_COMPLETE={shell}_complete" in ran.out
