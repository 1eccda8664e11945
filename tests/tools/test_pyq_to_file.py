"""pyq_to_file and nsq_to_file: messages go to files, and are finished when they are safe there."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path

import cramjam
import pytest

from pyqd.tools import pyq_to_file
from pyqd.tools.common import Fatal
from pyqd.tools.pyq_to_file import ToFile
from pyqd.tools.to_file.options import ToFileOptions
from tests.support import small_disk
from tests.support.http_stub import http_stub
from tests.support.server import free_port, wait_until
from tests.support.tools import Tools, finished, tools_environment

TOOL = "pyq_to_file"
NSQD = "--nsqd-tcp-address=127.0.0.1:1"
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"
HOST = socket.gethostname().split(".")[0]
# Names of files that do not depend on the time.
NO_TIME = "--datetime-format=x"


@pytest.fixture
def out(tmp_path):
    path = tmp_path / "out"
    path.mkdir()
    return path


@pytest.fixture
def to_file(start, address, topic, out):
    def start_it(*arguments, directory=out):
        base = (f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}", f"--output-dir={directory}")
        return start(TOOL, *base, NO_TIME, *arguments)

    return start_it


def files(directory: Path) -> dict[str, bytes]:
    """Return the contents of all files below a directory, by their paths."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def is_in_a_file(directory: Path, data: bytes) -> bool:
    return data in files(directory).values()


class TestFiles:
    def test_messages_become_lines_and_are_finished_at_the_end(self, to_file, publish, broker, topic, out) -> None:
        running = to_file("--datetime-format=%Y-%m-%d")
        broker.wait_for_channel(topic, "c", client_count=1)
        publish(b"one")
        finished(broker, topic)
        publish(b"two", b"three\x00\xff", b"four\nlines")
        lines = b"one\ntwo\nthree\x00\xff\nfour\nlines\n"
        wait_until(partial(is_in_a_file, out, lines), "all lines")
        assert broker.channel(topic, "c")["in_flight_count"] == 3
        assert running.stop().code == 0
        ((name, data),) = files(out).items()
        assert re.fullmatch(rf"{topic}\.{re.escape(HOST)}\.\d{{4}}-\d\d-\d\d\.log", name)
        assert data == lines
        broker.wait_for_channel(topic, "c", depth=0, in_flight_count=0, client_count=0)
        assert f"[{topic}/c] syncing 1 records to disk" in running.err

    def test_held_messages_are_synced_at_intervals(self, to_file, publish, broker, topic) -> None:
        running = to_file("--sync-interval=100ms")
        broker.wait_for_channel(topic, "c", client_count=1)
        publish(b"one")
        finished(broker, topic)
        publish(b"two")
        finished(broker, topic)
        assert running.stop().code == 0

    def test_as_many_as_may_be_in_flight_are_synced_together(self, to_file, publish, broker, topic, out) -> None:
        running = to_file("--max-in-flight=10")
        broker.wait_for_channel(topic, "c", client_count=1)
        publish(b"first")
        finished(broker, topic)
        publish(*[b"%d" % number for number in range(50)])
        wait_until(lambda: sum(data.count(b"\n") for data in files(out).values()) == 51, "all lines")
        assert running.stop().code == 0
        broker.wait_for_channel(topic, "c", depth=0, in_flight_count=0)

    def test_the_format_may_have_directories_and_names_of_hosts(self, to_file, publish, broker, topic, out) -> None:
        publish(b"one")
        running = to_file("--filename-format=<DATETIME>/<TOPIC>/<HOST>.<PID>.txt", "--host-identifier=<SHORT_HOST>-a")
        finished(broker, topic)
        assert running.stop().code == 0
        assert files(out) == {f"x/{topic}/{HOST}-a.{running.process.pid}.txt": b"one\n"}

    def test_gzip_files_are_never_continued(self, to_file, publish, broker, topic, out) -> None:
        (out / f"{topic}.{HOST}-000000.x.log.gz").write_bytes(b"precious")
        publish(b"one")
        running = to_file("--gzip", "--gzip-level=1", "--sync-interval=50ms")
        finished(broker, topic)
        publish(b"two")
        finished(broker, topic)
        assert running.stop().code == 0
        found = files(out)
        assert found.pop(f"{topic}.{HOST}-000000.x.log.gz") == b"precious"
        assert {name: gzip.decompress(data) for name, data in found.items()} == {
            f"{topic}.{HOST}-000001.x.log.gz": b"one\ntwo\n"
        }

    def test_a_file_that_is_old_enough_is_rotated(self, to_file, publish, broker, topic, out) -> None:
        publish(b"one")
        running = to_file("--rotate-interval=300ms", "--sync-interval=50ms", "--skip-empty-files")
        finished(broker, topic)
        running.wait_for_error("since last open, rotating")
        publish(b"two")
        finished(broker, topic)
        assert running.stop().code == 0
        assert files(out) == {f"{topic}.{HOST}-000000.x.log": b"one\n", f"{topic}.{HOST}-000001.x.log": b"two\n"}

    def test_sighup_closes_the_file_and_the_next_message_opens_one(self, to_file, publish, broker, topic, out) -> None:
        running = to_file("--rotate-size=1000000")
        broker.wait_for_channel(topic, "c", client_count=1)
        publish(b"one")
        finished(broker, topic)
        publish(b"two")
        wait_until(partial(is_in_a_file, out, b"one\ntwo\n"), "both lines")
        assert broker.channel(topic, "c")["in_flight_count"] == 1
        running.process.send_signal(signal.SIGHUP)
        finished(broker, topic)
        publish(b"three")
        finished(broker, topic)
        assert running.stop().code == 0
        assert files(out) == {
            f"{topic}.{HOST}-000000.x.log": b"one\ntwo\n",
            f"{topic}.{HOST}-000001.x.log": b"three\n",
        }


class TestTopics:
    def test_each_topic_has_files_of_its_own(self, to_file, publish, broker, topic, out) -> None:
        publish(b"1")
        publish(b"2", to=f"{topic}-b")
        running = to_file(f"--topic={topic}-b")
        finished(broker, topic)
        finished(broker, f"{topic}-b")
        assert running.stop().code == 0
        assert files(out) == {f"{topic}.{HOST}.x.log": b"1\n", f"{topic}-b.{HOST}.x.log": b"2\n"}

    def test_named_topics_that_do_not_match_the_pattern_are_left_out(
        self, to_file, publish, broker, topic, out
    ) -> None:
        publish(b"1")
        running = to_file("--topic=other", f"--topic-pattern=^{topic}$")
        running.wait_for_error(f"skipping topic other (doesn't match pattern ^{topic}$)")
        finished(broker, topic)
        assert running.stop().code == 0
        assert files(out) == {f"{topic}.{HOST}.x.log": b"1\n"}

    def test_a_topic_that_has_no_valid_name_does_not_stop_the_others(self, to_file, publish, broker, topic) -> None:
        publish(b"1")
        running = to_file("--topic=bad topic")
        running.wait_for_error("couldn't create logger for new topic bad topic: ")
        finished(broker, topic)
        assert running.stop().code == 0

    def test_topics_of_a_pattern_come_from_the_lookup_daemons(self, start, publish, broker, topic, out, tools) -> None:
        publish(b"1", to=f"{topic}.a")
        publish(b"2", to=f"{topic}.b")
        producer = {"broadcast_address": "127.0.0.1", "tcp_port": broker.tcp_port, "http_port": broker.http_port}
        named = [f"{topic}.a", "unrelated"]

        def answer(path, query):
            shown = {"topics": list(named)} if path == "/topics" else {"producers": [producer]}
            return 200, {"X-NSQ-Content-Type": "nsq; version=1.0"}, json.dumps(shown).encode()

        # The original's first search comes after an interval.
        refresh = "100ms" if tools.are_originals else "1h"
        with http_stub(answer) as lookupd:
            source = f"--lookupd-http-address={lookupd.address}"
            pattern = rf"--topic-pattern={topic}\.[ab]"
            arguments = (source, pattern, "--channel=c", f"--output-dir={out}", NO_TIME)
            running = start(TOOL, *arguments, f"--topic-refresh={refresh}")
            finished(broker, f"{topic}.a")
            assert running.stop().code == 0
            named.append(f"{topic}.b")
            running = start(TOOL, *arguments, "--topic-refresh=100ms")
            finished(broker, f"{topic}.b")
            assert running.stop().code == 0
        assert files(out) == {f"{topic}.a.{HOST}.x.log": b"1\n", f"{topic}.b.{HOST}.x.log": b"2\n"}


@pytest.mark.parametrize("tools", ["ours"], indirect=True)
class TestWhatTheOriginalLacks:
    def test_zstd_files_hold_the_messages_as_lines(self, to_file, publish, broker, topic, out) -> None:
        publish(b"one", b"two")
        running = to_file("--zstd", "--zstd-level=1")
        finished(broker, topic)
        assert running.stop().code == 0
        ((name, data),) = files(out).items()
        assert (name, bytes(cramjam.zstd.decompress(data))) == (f"{topic}.{HOST}-000000.x.log.zst", b"one\ntwo\n")

    def test_parquet_files_hold_the_messages_as_rows(self, to_file, publish, broker, topic, out) -> None:
        parquet = pytest.importorskip("pyarrow.parquet")
        publish(b"one", b"two")
        running = to_file("--parquet")
        finished(broker, topic)
        assert running.stop().code == 0
        (path,) = out.iterdir()
        assert path.name == f"{topic}.{HOST}-000000.x.log.parquet"
        assert parquet.read_table(path)["value"].to_pylist() == [b"one", b"two"]

    @pytest.mark.slow
    def test_one_encoding_at_most(self, run) -> None:
        result = run(TOOL, "--topic=t", NSQD, "--gzip", "--parquet")
        assert (result.code, result.mistake()) == (1, "use one of --gzip, --zstd and --parquet")

    def test_sighup_with_a_work_directory(self, to_file, publish, broker, topic, out, tmp_path) -> None:
        running = to_file(f"--work-dir={tmp_path / 'work'}")
        for body in (b"one", b"two"):
            publish(body)
            finished(broker, topic)
            running.process.send_signal(signal.SIGHUP)
            wait_until(partial(is_in_a_file, out, body + b"\n"), "the finished file")
        assert running.stop().code == 0
        assert files(out) == {
            f"{topic}.{HOST}-000000.x.log": b"one\n",
            f"{topic}.{HOST}-000001.x.log": b"two\n",
        }

    def test_two_instances_on_one_directory_write_no_file_together(self, to_file, publish, broker, topic, out) -> None:
        first, second = to_file("--max-in-flight=20"), to_file("--max-in-flight=20")
        broker.wait_for_channel(topic, "c", client_count=2)
        bodies = [b"%04d" % number for number in range(2000)]
        publish(*bodies)
        wait_until(lambda: sum(data.count(b"\n") for data in files(out).values()) >= len(bodies), "all lines")
        assert (first.stop().code, second.stop().code) == (0, 0)
        found = files(out)
        assert sorted(found) == [f"{topic}.{HOST}-000001.x.log", f"{topic}.{HOST}.x.log"]
        assert sorted(b"".join(found.values()).split()) == bodies
        broker.wait_for_channel(topic, "c", depth=0, in_flight_count=0)

    def test_a_full_disk_ends_it_and_loses_nothing(self, to_file, publish, broker, topic, tmp_path) -> None:
        bodies = [b"%02d" % number + bytes(30_000) for number in range(20)]
        publish(*bodies)
        with small_disk.mounted_or_skipped(tmp_path / "small", 256 << 10) as disk:
            running = to_file("--max-in-flight=5", directory=disk)
            result = running.wait()
            assert result.code == 1
            assert (
                f"FATAL: [{topic}/c] cannot write to {disk}/{topic}.{HOST}.x.log: No space left on device" in result.err
            )
            broker.wait_for_channel(topic, "c", in_flight_count=0, deferred_count=0)
            written = (disk / f"{topic}.{HOST}.x.log").read_bytes().count(b"\n")
            assert 1 <= len(bodies) - broker.channel(topic, "c")["depth"] <= written < len(bodies)
            small_disk.enlarge(disk, 4 << 20)
            running = to_file("--max-in-flight=5", "--sync-interval=100ms", directory=disk)
            finished(broker, topic)
            assert running.stop().code == 0
            assert set(bodies) <= set((disk / f"{topic}.{HOST}.x.log").read_bytes().split(b"\n"))

    @pytest.mark.slow
    def test_a_directory_that_cannot_be_written_ends_it_before_a_message_is_taken(
        self, run, address, topic, tmp_path
    ) -> None:
        (tmp_path / "file").write_bytes(b"")
        result = run(TOOL, f"--topic={topic}", f"--nsqd-tcp-address={address}", f"--output-dir={tmp_path}/file/x")
        assert (result.code, result.mistake()) == (
            1,
            f"cannot create directory {tmp_path}/file/x: Not a directory",
        )

    def test_a_broker_that_cannot_be_reached_is_tried_again(self, start, out) -> None:
        port = free_port()
        running = start(TOOL, "--topic=t", f"--nsqd-tcp-address=127.0.0.1:{port}", f"--output-dir={out}")
        running.wait_for_error(f"127.0.0.1:{port}")
        assert running.process.poll() is None
        assert running.stop().code == 0

    def test_it_ends_if_no_topic_is_left(self, run, out) -> None:
        result = run(TOOL, "--topic=bad topic", NSQD, f"--output-dir={out}")
        assert (result.code, result.mistake()) == (1, "no topic is left to write")

    def test_files_that_a_kill_has_left_are_finished_at_the_next_start(
        self, to_file, publish, broker, topic, out, tmp_path
    ) -> None:
        work = tmp_path / "work"
        publish(b"one")
        running = to_file("--gzip", f"--work-dir={work}")
        finished(broker, topic)
        assert running.stop(signal.SIGKILL).code == -signal.SIGKILL
        assert files(out) == {}
        running = to_file("--gzip", f"--work-dir={work}")
        wait_until(lambda: files(out) != {}, "the finished file")
        assert running.stop().code == 0
        assert {name: gzip.decompress(data) for name, data in files(out).items()} == {
            f"{topic}.{HOST}-000000.x.log.gz": b"one\n"
        }


@pytest.mark.slow
@pytest.mark.parametrize("topics", [("--topic=t", NSQD), ("--topic-pattern=.", LOOKUPD)], ids=["a topic", "a pattern"])
def test_parquet_without_its_package_says_what_to_install(tmp_path, topics) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError")
    environment = tools_environment()
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
    command = [*Tools().command(TOOL), *topics, f"--output-dir={tmp_path}", "--parquet"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("--parquet needs a package: pip install 'pyqd[parquet]'\n")


def test_an_error_in_the_search_for_topics_ends_the_tool(monkeypatch, out) -> None:
    async def fail(*arguments):
        if arguments:
            raise Fatal("no more topics")
        yield ""

    monkeypatch.setattr(pyq_to_file, "new_topics", fail)
    options = ToFileOptions(topic_pattern=".", lookupd_http_address=("127.0.0.1:1",), output_dir=str(out))
    with pytest.raises(Fatal, match="no more topics"):
        asyncio.run(asyncio.wait_for(ToFile(options).run(), 5))
