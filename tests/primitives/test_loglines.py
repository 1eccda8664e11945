"""Log lines in nsqd's form."""

import datetime
import io
import json
import logging
import re
import time
from collections.abc import Iterator

import pytest

from pyqd.primitives import loglines
from pyqd.primitives.loglines import LogFormat, LogLevel, fields, log_line, parse_format, parse_level

STAMP = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    logger = logging.getLogger(loglines.ROOT_LOGGER)
    before = (logger.handlers[:], logger.level, logger.propagate)
    switches = (logging.logThreads, logging.logProcesses, logging.logMultiprocessing)
    form = loglines._format
    yield
    loglines._format = form
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


def test_lines_go_to_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
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


def json_lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_as_json_a_line_is_one_object_with_time_level_and_message() -> None:
    stream = io.StringIO()
    logger = loglines.configure("[p] ", LogLevel.INFO, stream, LogFormat.JSON)
    before_s = time.time()
    logger.warning("disk %s\n", 'a"b\udcff')
    (line,) = json_lines(stream)
    moment = datetime.datetime.fromisoformat(str(line.pop("time")))
    assert moment.tzinfo is not None
    assert abs(moment.timestamp() - before_s) < 60
    assert line == {"level": "WARNING", "message": 'disk a"b\udcff\n'}


def test_as_json_the_subject_and_the_callers_fields_stand_beside_the_message() -> None:
    stream = io.StringIO()
    logger = loglines.configure("", LogLevel.INFO, stream, LogFormat.JSON)
    logger.info("TOPIC(%s): created", "orders")
    logger.info("200 GET /stats", extra=fields(status=200, remote="1.2.3.4:5"))
    first, second = json_lines(stream)
    assert (first["message"], first["topic"]) == ("TOPIC(orders): created", "orders")
    assert list(second) == ["time", "level", "message", "status", "remote"]
    assert (second["status"], second["remote"]) == (200, "1.2.3.4:5")


def test_as_json_a_traceback_stays_in_its_line() -> None:
    stream = io.StringIO()
    logger = loglines.configure("", LogLevel.INFO, stream, LogFormat.JSON)
    try:
        raise KeyError("k")
    except KeyError:
        logger.exception("bug")
    (line,) = json_lines(stream)
    assert str(line["traceback"]).endswith("KeyError: 'k'")


def test_as_json_a_failed_start_is_an_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    loglines.configure("", LogLevel.INFO, form=LogFormat.JSON)
    loglines.print_fatal("failed to instantiate pyqd - x")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["message"]) == ("FATAL", "failed to instantiate pyqd - x")


def test_fields_do_not_show_in_text() -> None:
    stream = io.StringIO()
    loglines.configure("", LogLevel.INFO, stream).info("200 GET", extra=fields(status=200))
    assert stream.getvalue().endswith(" INFO: 200 GET\n")


def test_the_formats_are_text_and_json() -> None:
    assert [parse_format(word) for word in ("text", "json")] == [LogFormat.TEXT, LogFormat.JSON]
    with pytest.raises(ValueError, match=r"^invalid log format 'xml' \(text, json\)$"):
        parse_format("xml")
