"""Log lines in nsqd's form."""

import io
import logging
import re
import time
from collections.abc import Iterator

import pytest

from pyqd.primitives import loglines
from pyqd.primitives.loglines import LogLevel, log_line, parse_level

STAMP = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    logger = logging.getLogger(loglines.ROOT_LOGGER)
    before = (logger.handlers[:], logger.level, logger.propagate)
    switches = (logging.logThreads, logging.logProcesses, logging.logMultiprocessing)
    yield
    logger.handlers[:] = before[0]
    logger.setLevel(before[1])
    logger.propagate = before[2]
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = switches


def test_a_line_has_prefix_local_time_level_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = time.struct_time((2026, 11, 20, 9, 5, 7, 4, 324, 0))
    monkeypatch.setattr(time, "localtime", lambda seconds: moment)
    assert log_line("[x] ", 1_795_000_000.015625, "INFO", "hello") == "[x] 2026/11/20 09:05:07.015625 INFO: hello"


def test_text_can_neither_forge_a_line_nor_drive_a_terminal() -> None:
    assert log_line("", 0.0, "INFO", "a\nb\x1b[31m\x7f\tc").endswith(" INFO: a\\nb\\x1b[31m\\x7f\tc")


@pytest.mark.parametrize(
    ("level", "word"),
    [
        (logging.DEBUG, "DEBUG"),
        (logging.INFO, "INFO"),
        (logging.WARNING, "WARNING"),
        (logging.ERROR, "ERROR"),
        (logging.CRITICAL, "FATAL"),
    ],
)
def test_levels_have_nsqds_words(level: int, word: str) -> None:
    stream = io.StringIO()
    loglines.configure("[p] ", LogLevel.DEBUG, stream).log(level, "TOPIC(%s): created", "t")
    assert re.fullmatch(rf"\[p\] {STAMP} {word}: TOPIC\(t\): created\n", stream.getvalue())


def test_a_record_below_the_level_is_dropped_and_not_even_formatted() -> None:
    class Explosive:
        def __str__(self) -> str:
            raise AssertionError

    stream = io.StringIO()
    logger = loglines.configure("", LogLevel.WARN, stream)
    logger.info("%s", Explosive())
    logger.warning("shown")
    assert stream.getvalue().count("\n") == 1
    assert not logger.isEnabledFor(logging.INFO)


def test_a_child_logger_writes_the_same_lines() -> None:
    stream = io.StringIO()
    loglines.configure("[p] ", LogLevel.INFO, stream)
    logging.getLogger("pyqd.broker").info("x")
    assert re.fullmatch(rf"\[p\] {STAMP} INFO: x\n", stream.getvalue())


def test_the_level_may_change_while_running() -> None:
    stream = io.StringIO()
    logger = loglines.configure("", LogLevel.FATAL, stream)
    logger.error("dropped")
    loglines.set_level(LogLevel.DEBUG)
    logger.debug("shown")
    assert "dropped" not in stream.getvalue()
    assert "shown" in stream.getvalue()


def test_a_second_configuration_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    loglines.configure("a", LogLevel.INFO, first)
    loglines.configure("b", LogLevel.INFO, second).info("x")
    assert first.getvalue() == ""
    assert second.getvalue().startswith("b")
    assert second.getvalue().count("\n") == 1


def test_a_traceback_follows_its_line() -> None:
    stream = io.StringIO()
    logger = loglines.configure("", LogLevel.INFO, stream)
    try:
        raise KeyError("k")
    except KeyError:
        logger.exception("bug")
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith(" ERROR: bug")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "KeyError: 'k'"


def test_lines_go_to_stderr_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    loglines.configure("[p] ", LogLevel.INFO).info("x")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"\[p\] {STAMP} INFO: x\n", err)


def test_a_failed_start_prints_one_fatal_line_with_the_programs_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    loglines.configure("[other] ", LogLevel.INFO)
    loglines.print_fatal("failed to instantiate pyqd - x")
    assert re.fullmatch(rf"\[pyqd\] {STAMP} FATAL: failed to instantiate pyqd - x\n", capsys.readouterr().err)


def test_level_words_are_read_in_any_case() -> None:
    assert [parse_level(word) for word in ("debug", "Info", "WARN", "error", "fAtAl")] == list(LogLevel)


@pytest.mark.parametrize("word", ["", "warning", "critical", "1", " info"])
def test_any_other_word_is_no_level(word: str) -> None:
    with pytest.raises(ValueError, match=rf"^invalid log level '{word}' \(debug, info, warn, error, fatal\)$"):
        parse_level(word)
