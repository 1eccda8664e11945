"""pyqctl trace: it tells what is missing, and runs pyq_trace if nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_stub import Answer, HttpStub, http_stub
from tests.tools.ctl.conftest import Ctl

MESSAGE_ID = "0c5f0e5b2ac07000"


@pytest.fixture
def recorder() -> Iterator[HttpStub]:
    """A broker that records events."""

    def answer(path: str, query: dict[str, str]) -> Answer:
        return (200, {}, b"") if path == "/trace/log" else (404, {}, b'{"message":"NOT_FOUND"}')

    with http_stub(answer) as stub:
        yield stub


@pytest.fixture
def older() -> Iterator[HttpStub]:
    """A broker that has no such call."""
    with http_stub(lambda path, query: (404, {}, b'{"message":"NOT_FOUND"}')) as stub:
        yield stub


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A pyq_trace that prints its arguments, in a directory of its own."""
    path = tmp_path / "bin" / "pyq_trace"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nexit 3\n')
    path.chmod(0o755)
    return path


def test_what_is_missing_is_named(bare: Ctl, older: HttpStub) -> None:
    ran = bare("trace", MESSAGE_ID, "-a", older.address, PATH="/nowhere")
    assert (ran.code, ran.out) == (6, "")
    assert f"{older.address}: GET /trace/log: the broker has no such call" in ran.err
    assert "the program pyq_trace, which stores and shows recorded events, is not installed" in ran.err


def test_brokers_that_record_nothing_are_named(bare: Ctl, older: HttpStub, program: Path) -> None:
    ran = bare("trace", MESSAGE_ID, "-a", older.address, PATH=str(program.parent))
    assert ran.code == 6
    assert "it does not record" in ran.err
    assert "not installed" not in ran.err


def test_the_program_shows_the_message(bare: Ctl, recorder: HttpStub, program: Path) -> None:
    path = f"{program.parent}:/bin:/usr/bin"
    ran = bare("trace", MESSAGE_ID, "-a", recorder.address, "--", "--from", "x", PATH=path)
    assert ran.code == 3
    assert (program.parent.parent / "arguments").read_text() == f"show {MESSAGE_ID} --from x\n"


def test_what_is_no_id_is_not_looked_for(bare: Ctl) -> None:
    assert bare("trace", "orders", "-a", "127.0.0.1:1").code == 2
