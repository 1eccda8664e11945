"""The command line: accepted arguments, refusals, and exit codes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyqd.primitives.nsq_compat import VERSIONS
from pyqd_spark import cli
from pyqd_spark.jobs import runner
from pyqd_spark.options import BrokerOptions
from tests.spark.drained import InProcess, numbers, publish
from tests.support.server import Daemon
from tests.support.spark_side import http_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tasks in this process, without Spark."""

    @contextlib.contextmanager
    def none(parsed: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(cli, "spark_of", none)
    monkeypatch.setattr(runner, "OnSpark", lambda *_: InProcess())


def test_a_drain_prints_its_report_and_says_0(
    in_process: None, broker: Daemon, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(broker, topic, range(10))
    words = ["drain", "--nsqd", http_address(broker), "--topic", topic, "--path", str(tmp_path / "t")]
    assert cli.main([*words, "--report", str(tmp_path / "r.json")]) == cli.DONE
    out, err = capsys.readouterr()
    assert "run 1: 10 rows" in out
    assert "100%, 10 of 10 rows" in err
    assert (tmp_path / "r.json").exists()
    assert numbers(tmp_path / "t") == list(range(10))
    assert cli.main([*words, "--quiet"]) == cli.DONE
    assert capsys.readouterr() == ("nothing new\n", "")
    assert cli.main(["compact", "--path", str(tmp_path / "t")]) == cli.DONE
    assert "nothing to compact" in capsys.readouterr().out


def test_it_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pyq_spark {VERSIONS}\n"


def test_missing_messages_make_the_exit_code_3(
    in_process: None, broker: Daemon, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["drain", "--nsqd", http_address(broker), "--topic", topic, "--path", str(tmp_path)]
    assert cli.main(words) == cli.FAILED
    assert f"pyq_spark: no broker has topic {topic}" in capsys.readouterr().err
    assert cli.main([*words, "--fail-on-data-loss=false"]) == cli.INCOMPLETE
    assert f"note: no broker has topic {topic}" in capsys.readouterr().out


def test_a_re_created_topic_is_reported_with_the_remedy(
    in_process: None, broker: Daemon, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["drain", "--quiet", "--nsqd", http_address(broker), "--topic", topic, "--path", str(tmp_path)]
    publish(broker, topic, [1])
    assert cli.main(words) == cli.DONE
    broker.http("POST", "/topic/delete", topic=topic)
    publish(broker, topic, [2])
    assert cli.main(words) == cli.FAILED
    assert "With --fail-on-data-loss=false the rest is taken" in capsys.readouterr().err
    assert cli.main([*words, "--fail-on-data-loss=false"]) == cli.INCOMPLETE
    assert numbers(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--path", "/t"], cli.MISUSED, "exactly one of nsqd, lookupd is needed"),
        (["--path", "/t", "--nsqd", "h", "--lookupd", "h"], cli.MISUSED, "nsqd and lookupd are given"),
        (["--path", "/t", "--nsqd", "h", "--topic", "a", "--topics-pattern", "b"], cli.MISUSED, "exclude each other"),
        (["--path", "/t", "--nsqd", "h", "--retry-timeout", "soon"], cli.MISUSED, "--retry-timeout 'soon'"),
        (["--path", "/t", "--nsqd", "h", "--token-file", "/none"], cli.MISUSED, "--token-file /none: No such file"),
        (["--path", "/t", "--nsqd", "h", "--tls-key", "k"], cli.MISUSED, "tlsKey needs tlsCert"),
        (["--path", "s3a://bucket/t", "--nsqd", "127.0.0.1:1"], cli.FAILED, "only paths of file systems"),
        (
            ["--path", "/t", "--nsqd", "127.0.0.1:1", "--start", "soon"],
            cli.FAILED,
            "start 'soon' is invalid: expected earliest",
        ),
    ],
)
def test_contradictory_or_impossible_arguments_are_refused_before_any_request(
    in_process: None, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["drain", *words]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [[], ["drein"], ["drain"], ["drain", "--path", "/t", "--max-rows-per-file", "0"], ["compact", "--pa", "/t"]],
)
def test_a_command_line_that_cannot_be_read_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == cli.MISUSED
    said = capsys.readouterr().err
    assert said.startswith("pyq_spark")
    assert said.count("\n") == 1


def test_help_shows_the_flags_of_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert all(f in out for f in ("--topics-pattern", "--small-bytes", "--dry-run", "--received", "--tls-cert"))


def test_flags_say_how_brokers_are_spoken_to(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    words = ["drain", "--path", "/t", "--nsqd", "a:1", "--nsqd", "b", "--token-file", str(tmp_path / "token"), "--tls"]
    parsed = cli.parser().parse_args([*words, "--tls-insecure-skip-verify", "--retry-timeout", "1m30s"])
    assert cli.connection_of(parsed) == BrokerOptions(
        nsqd=("a:1", "b:4151"), token="secret", tls=True, tls_insecure_skip_verify=True, retry_timeout_s=90
    )


def test_a_missing_requirement_of_spark_tasks_is_reported_in_one_sentence(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def lacking(_: Any) -> dict[str, Any]:
        raise ModuleNotFoundError("No module named 'arrows'")

    def failing(parsed: Any) -> Any:
        runner.OnSpark(spark, "test").run(lacking, [1])

    monkeypatch.setattr(cli, "spark_of", failing)
    assert cli.main(["compact", "--path", str(tmp_path)]) == cli.FAILED
    assert capsys.readouterr().err.splitlines()[-1] == (
        "pyq_spark: Spark gave up: No module named 'arrows', which the Python of the executors needs"
    )


def test_an_error_that_is_not_of_spark_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def failing(parsed: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "spark_of", failing)
    with pytest.raises(ZeroDivisionError):
        cli.main(["compact", "--path", str(tmp_path)])


def test_an_interrupt_is_reported_and_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(parsed: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "spark_of", interrupted)
    assert cli.main(["compact", "--path", str(tmp_path)]) == cli.INTERRUPTED
    assert "interrupted; the same command goes on" in capsys.readouterr().err
