"""pyq_trace on the command line: output, exit codes, and its life as a process."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyqd.tools.ctl.output import CommandOutput
from pyqd.tools.pyq_trace import main
from pyqd.tools.trace import reading
from pyqd.trace.database import Database
from pyqd.trace.story import Story, stories_of
from tests.support.http_stub import http_stub, lookup_answers
from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until
from tests.support.trace_broker import TraceBroker
from tests.support.trace_log import TraceLog, add_all
from tests.support.trace_shipping import publish
from tests.support.trace_tables import rows_of

TRACE = (sys.executable, "-m", "pyqd.tools.pyq_trace")
ID = "0000000000000001"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide terminal: a table leaves columns out that it has no space for."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def url(sqlite: Database, log: TraceLog) -> str:
    """A database with two messages: one was finished in its second delivery, one is in flight."""
    log.add("published", 1, client="10.0.0.1:9", size=5, body=b"he\x1bo", due_ns=1_795_177_400_000_000_000)
    add_all(log, [("sent", 1)])
    log.add("requeued", 1, channel="a", attempt=1, delay_ms=1500)
    add_all(log, [("sent", 1), ("finished", 1)], attempt=2)
    log.add("published", 2)
    add_all(log, [("sent", 2)])
    sqlite.write(sqlite.node("log", "broker:4151"), log.decoded())
    return sqlite.store.url.render_as_string()


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Function that runs a command on the database. Returns: exit code, standard output and standard error."""

    def run_(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--from", url])
        return code, *capsys.readouterr()

    return run_


def test_show_prints_the_story_of_a_message(run: Callable[..., Any]) -> None:
    code, out, _ = run("show", ID, "--table")
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == f"message {ID} of topic orders at broker:4151, 5 bytes"
    assert lines[1] == "body: he\\x1bo"
    assert lines[2].startswith("a: finished, 2 deliveries, first after ")
    steps = re.findall(r"published|sent|requeued|finished", "\n".join(lines[6:]))
    assert steps == ["published", "sent", "requeued", "sent", "finished"]
    assert "delay 1.5 s" in out
    assert "due 2026-11-20 12:23:20" in out


def test_show_prints_json(run: Callable[..., Any]) -> None:
    code, out, _ = run("show", ID)
    (story,) = json.loads(out)["stories"]
    assert code == 0
    assert (story["message_id"], story["topic"], story["nsqd"], story["body"]) == (
        ID,
        "orders",
        "broker:4151",
        "he\x1bo",
    )
    assert [step["event"] for step in story["steps"]] == ["published", "sent", "requeued", "sent", "finished"]
    assert story["steps"][2]["delay_ms"] == 1500
    (channel,) = story["channels"]
    assert (channel["channel"], channel["state"], channel["attempts"]) == ("a", "finished", 2)
    assert story["published_at"] == "2026-11-20T12:21:42.000001Z"


def test_a_body_that_is_no_text_is_base64(run: Callable[..., Any], sqlite: Database, log: TraceLog) -> None:
    node = sqlite.node("log", "broker:4151")
    log.add("published", 9, body=b"\xff\x00")
    sqlite.write(node, log.decoded(node.position))
    _, out, _ = run("show", "0000000000000009")
    assert json.loads(out)["stories"][0]["body"] == {"base64": "/wA="}


def test_show_says_that_a_message_is_unknown(run: Callable[..., Any]) -> None:
    code, out, error = run("show", "00000000000000ff")
    assert (code, out) == (4, "")
    assert "no event of message 00000000000000ff is in sqlite:///" in error


def test_show_follow_ends_with_the_last_event(
    url: str, sqlite: Database, log: TraceLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "POLL_S", 0.01)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["show", "0" * 15 + "2", "--follow", "--from", url])))
    thread.start()
    out = ""

    def printed() -> bool:
        nonlocal out
        out += capsys.readouterr().out
        return out.count("\n") == 2

    wait_until(printed, "the events so far")
    node = sqlite.node("log", "broker:4151")
    add_all(log, [("finished", 2)])
    sqlite.write(node, log.decoded(node.position))
    thread.join(10)
    out += capsys.readouterr().out
    assert codes == [0]
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["published", "sent", "finished"]


def test_show_follow_prints_each_event_once_if_two_brokers_have_the_id(
    sqlite: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "POLL_S", 0)
    logs = {name: TraceLog() for name in ("one:4151", "two:4151")}
    # Whose event the database gets before each poll.
    turns = iter([("one:4151", "sent"), ("two:4151", "sent"), ("one:4151", "finished"), ("two:4151", "finished")])

    def ask() -> list[Story]:
        name, kind = next(turns)
        node = sqlite.node(f"log of {name}", name)
        add_all(logs[name], [(kind, 1)])
        sqlite.write(node, logs[name].decoded(node.position))
        return stories_of(sqlite, ID)

    assert reading._follow_story(CommandOutput(True), ask) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["nsqd"], line["event"]) for line in lines] == [
        ("one:4151", "sent"),
        ("two:4151", "sent"),
        ("one:4151", "finished"),
        ("two:4151", "finished"),
    ]


@contextlib.contextmanager
def following(url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command with --follow for a block, and end it by SIGINT."""
    command = [*TRACE, *arguments, "--follow", "--from", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()


@pytest.mark.slow
def test_find_follow_prints_messages_as_they_come_and_says_if_it_leaves_some_out(
    url: str, sqlite: Database, log: TraceLog
) -> None:
    with following(url, "find", "--limit=2") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = [json.loads(process.stdout.readline())["message_id"] for _ in range(2)]
        assert shown == [ID, "0000000000000002"]
        node = sqlite.node("log", "broker:4151")
        add_all(log, [("sent", guid) for guid in (3, 4, 5)])
        sqlite.write(node, log.decoded(node.position))
        shown = [json.loads(process.stdout.readline())["message_id"] for _ in range(2)]
        assert shown == ["0000000000000004", "0000000000000005"]
        assert "more than 2 messages at once" in process.stderr.readline()


@pytest.mark.slow
def test_stats_follow_prints_figures_again_and_again(url: str, sqlite: Database, log: TraceLog) -> None:
    with following(url, "stats") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["topics"][0]["message_count"] == 2
        node = sqlite.node("log", "broker:4151")
        log.add("published", 3)
        sqlite.write(node, log.decoded(node.position))
        counts = (json.loads(line)["topics"][0]["message_count"] for line in process.stdout)
        assert next(count for count in counts if count != 2) == 3


@pytest.mark.slow
def test_find_lists_messages(run: Callable[..., Any]) -> None:
    code, out, _ = run("find", "--topic=orders", "--channel=a")
    assert code == 0
    assert [(row["message_id"], row["state"]) for row in json.loads(out)["messages"]] == [
        ("0000000000000002", "in_flight"),
        (ID, "finished"),
    ]
    _, out, _ = run("find", "--state=unfinished", "--table")
    assert [line.split()[:4] for line in out.splitlines()[2:]] == [["0000000000000002", "orders", "a", "in_flight"]]


@pytest.mark.slow
def test_find_lists_messages_that_no_channel_has_got(run: Callable[..., Any], sqlite: Database, log: TraceLog) -> None:
    node = sqlite.node("log", "broker:4151")
    log.add("published", 9, "held")
    sqlite.write(node, log.decoded(node.position))
    for options in (["--topic=held"], ["--topic=held", "--state=unfinished"], ["--limit=1"]):
        _, out, _ = run("find", *options)
        (row,) = json.loads(out)["messages"]
        assert (row["message_id"], row["channel"], row["state"]) == ("0000000000000009", "", "waiting")
    _, out, _ = run("find", "--topic=held", "--table")
    assert out.splitlines()[2].split()[:4] == ["0000000000000009", "held", "-", "waiting"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--state=dead"], 0),
        (["--attempts-above=1"], 1),
        (["--slower-than=1h"], 0),
        (["--since=2026-11-20T12:21:42.000003Z", "--until=2026-11-20T12:22:00Z"], 2),
        (["--since=-1s"], 0),
        (["--limit=1"], 1),
    ],
)
def test_find_takes_conditions(run: Callable[..., Any], options: list[str], expected: int) -> None:
    _, out, _ = run("find", *options)
    assert len(json.loads(out)["messages"]) == expected


@pytest.mark.slow
def test_stats_shows_topics_and_channels(run: Callable[..., Any]) -> None:
    code, out, _ = run("stats")
    figures = json.loads(out)
    assert code == 0
    assert [(row["topic"], row["message_count"]) for row in figures["topics"]] == [("orders", 2)]
    assert figures["channels"][0]["outcomes"] == {"finished": 1, "requeued": 1, "in_flight": 1}
    _, out, _ = run("stats", "--table")
    assert "Deliveries" in out


@pytest.mark.slow
def test_stats_shows_lost_events(run: Callable[..., Any], sqlite: Database, log: TraceLog) -> None:
    _, out, _ = run("stats", "--table")
    assert "Lost events" not in out
    node = sqlite.node("log", "broker:4151")
    log.skip(1234)
    log.add("published", 9)
    sqlite.write(node, log.decoded(node.position))
    _, out, _ = run("stats")
    (gap,) = json.loads(out)["gaps"]
    assert (gap["nsqd"], gap["event_count"], gap["unknown_count"]) == ("broker:4151", 1234, 0)
    _, out, _ = run("stats", "--table")
    assert re.search(r"Lost events.*\n.*\nbroker:4151 +1,234 ", out)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show", "12"], 2, "is no message id: it has 16 hexadecimal digits"),
        (["show", ID, "--from", "nothing"], 2, "no URL of a database"),
        (["show", ID, "--from", "sqlite:///no/such.db"], 2, "no such file; `pyq_trace ship` makes it"),
        (["find", "--since", "yesterday"], 2, "give -10m"),
        (["find", "--slower-than", "5"], 2, "is no duration such as 500ms"),
        (["find", "--slower-than", "1000000000d"], 2, "is longer than 999999999 days"),
        (["find", "--state", "lost"], 2, "'lost' is not one of"),
        (["ship", "--keep-bytes", "many"], 2, "is no size such as 500M"),
        (["ship", "--to", "oracle://x"], 2, "traces cannot be stored in 'oracle'"),
        (["ship", "--once", "-a", "127.0.0.1:1", "--to", "sqlite:///{directory}/x.db"], 3, "127.0.0.1:1: GET /info"),
        (["unknown"], 2, "No such command"),
    ],
)
def test_mistakes_have_an_exit_code_and_a_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    assert main([argument.format(directory=tmp_path) for argument in arguments]) == code
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_database_that_fails_is_an_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "no.db"
    path.write_bytes(b"this is no database of SQLite" * 100)
    assert main(["stats", "--from", f"sqlite:///{path}"]) == 1
    assert f"cannot read sqlite:///{path}: file is not a database" in capsys.readouterr().err


@pytest.fixture
def shipping(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [*TRACE, "ship", "--to", f"sqlite:///{tmp_path}/trace.db", "--interval=20ms", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def shown(tmp_path: Path, message_id: str) -> list[str]:
    """Return the events of a message that `pyq_trace show` knows."""
    command = [*TRACE, "show", message_id, "--from", f"sqlite:///{tmp_path}/trace.db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return [step["event"] for step in json.loads(done.stdout)["stories"][0]["steps"]] if done.returncode == 0 else []


@pytest.mark.slow
@pytest.mark.flags("--trace-topic=*")
def test_a_message_of_a_daemon_is_shown_a_moment_later(
    daemon: Daemon, shipping: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = shipping(f"--nsqd-http-address=127.0.0.1:{daemon.http_port}")
    daemon.http("POST", "/topic/create", topic="orders")
    daemon.http("POST", "/channel/create", topic="orders", channel="email")
    message_id = daemon.http("POST", "/pub", b"hello", topic="orders").headers["x-nsq-message-id"]
    with Client(daemon.tcp_address) as client:
        client.sub("orders", "email", rdy_count=1)
        client.fin(client.read_message())
        wait_until(
            lambda: shown(tmp_path, message_id) == ["published", "stored", "sent", "finished"], "the story", 30.0
        )
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert "storing events from position 0 on" in process.stderr.read()


@pytest.mark.flags("--trace-topic=*", "--trace-body-bytes=1000", "--trace-retention-bytes=1048576")
def test_events_that_a_daemon_has_overwritten_are_a_gap(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = b"\n".join([b"x" * 1000] * 1000)
    for _ in range(5):
        daemon.http("POST", "/mpub", body, topic="orders")
    url = f"sqlite:///{tmp_path}/trace.db"
    assert main(["ship", "--once", "-a", f"127.0.0.1:{daemon.http_port}", "--to", url]) == 0
    assert "events were overwritten or damaged before they were read; gap_log has a row" in capsys.readouterr().err
    database = Database(url)
    lost = sum(row["event_count"] for row in rows_of(database, "gap_log", "position"))
    kept = len(rows_of(database, "publish_log"))
    database.close()
    assert (lost + kept, lost > 1000, kept > 0) == (5000, True, True)


@pytest.mark.slow
def test_ship_ends_at_sigint_while_the_database_does_not_answer(
    shipping: Callable[..., subprocess.Popen[str]], brokers: list[TraceBroker]
) -> None:
    publish(1, 3)(brokers[0].log)
    process = shipping("-a", brokers[0].address, "--to=postgresql://nobody@127.0.0.1:1/x")
    assert process.stderr is not None
    assert "cannot make the tables in postgresql://nobody@127.0.0.1:1/x" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ship_ends_at_a_signal_while_it_starts(tmp_path: Path, number: signal.Signals) -> None:
    program = [sys.executable, "-X", "importtime", "-m", "pyqd.tools.pyq_trace", "ship"]
    command = [*program, f"--to=sqlite:///{tmp_path}/trace.db", "-a", "127.0.0.1:1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # Modules of the commands are being imported.
        assert any(line.endswith(" click.globals\n") for line in process.stderr)
        process.send_signal(number)
        process.stderr.read()
        assert process.wait(20) == 0


@pytest.mark.slow
def test_ship_names_a_lookup_daemon_that_does_not_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, brokers: list[TraceBroker]
) -> None:
    publish(1, 3)(brokers[0].log)
    with http_stub(lookup_answers({"orders": [brokers[0].address]})) as lookup:
        addresses = [f"-l{address}" for address in (lookup.address, "127.0.0.1:1")]
        assert main(["ship", "--once", f"--to=sqlite:///{tmp_path}/trace.db", *addresses]) == 0
    assert "cannot look up all brokers: 127.0.0.1:1: GET /nodes: Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"], ["ship", "--help"]])
def test_help_is_printed_without_a_database(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 0
    assert "pyq_trace" in capsys.readouterr().out


def test_ship_has_the_options_of_pyqctl_for_brokers(capsys: pytest.CaptureFixture[str]) -> None:
    main(["ship", "--help"])
    out = capsys.readouterr().out
    for option in ("--nsqd-http-address", "--lookupd-http-address", "--token-file", "--ca", "--context"):
        assert option in out
