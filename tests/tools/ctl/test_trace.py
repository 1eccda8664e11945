"""pyqctl trace: it tells what is missing, and runs pyq_trace if nothing is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.http_stub import Answer, HttpStub, http_stub
from tests.tools.ctl.conftest import Ctl

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

MESSAGE_ID = "0c5f0e5b2ac07000"


@pytest.fixture
def recorder() -> Iterator[HttpStub]:
    def answer(path: str, query: dict[str, str]) -> Answer:
        return (200, {}, b"") if path == "/trace/log" else (404, {}, b'{"message":"NOT_FOUND"}')

    with http_stub(answer) as stub:
        yield stub


@pytest.fixture
def older() -> Iterator[HttpStub]:
    """A broker that has no such call."""
    with http_stub(lambda path, query: (404, {}, b'{"message":"NOT_FOUND"}')) as stub:
        yield stub


def test_brokers_that_record_nothing_are_named(bare: Ctl, older: HttpStub) -> None:
    ran = bare("trace", MESSAGE_ID, "-a", older.address)
    assert (ran.code, ran.out) == (6, "")
    assert f"{older.address}: GET /trace/log: the broker has no such call" in ran.err
    assert "it does not record" in ran.err


def test_the_program_shows_the_message(bare: Ctl, recorder: HttpStub, capfd: pytest.CaptureFixture[str]) -> None:
    ran = bare("trace", MESSAGE_ID, "-a", recorder.address, "--", "--from=sqlite:////nowhere/t.db", PATH="/nowhere")
    assert ran.code == 2
    assert "pyq_trace: sqlite:////nowhere/t.db: no such file" in capfd.readouterr().err


@pytest.mark.parametrize("form", ["--json", "--table"])
def test_the_program_prints_what_is_asked_for(
    bare: Ctl, recorder: HttpStub, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", run)
    assert bare("trace", MESSAGE_ID, form, "-a", recorder.address).code == 3
    assert commands == [[sys.executable, "-m", "pyqd.tools.pyq_trace", "show", form, MESSAGE_ID]]


def test_what_is_no_id_is_not_looked_for(bare: Ctl) -> None:
    assert bare("trace", "orders", "-a", "127.0.0.1:1").code == 2
