"""The README's first five minutes, run as they are written there."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from tests.interop.process import ROOT, WAIT_S
from tests.support.server import Daemon

pytestmark = pytest.mark.interop

EXAMPLE = ROOT / "docs/examples/consume_pynsq.py"


@pytest.fixture
def consumer(daemon: Daemon, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    pytest.importorskip("nsq", reason="pynsq is not installed")
    command = [sys.executable, str(EXAMPLE), "{}:{}".format(*daemon.tcp_address)]
    with (tmp_path / "consumer.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    yield process
    if process.poll() is None:
        process.kill()
        process.wait(WAIT_S)
    assert process.stdout is not None
    process.stdout.close()


def publish_with_curl(daemon: Daemon, body: str) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    return subprocess.run(
        ["curl", "-sS", "-d", body, "http://{}:{}/pub?topic=test".format(*daemon.http_address)],
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    ).stdout


def test_the_example_consumer_prints_what_curl_published(daemon: Daemon, consumer: subprocess.Popen[str]) -> None:
    assert publish_with_curl(daemon, "hello") == "OK"
    printed: Queue[str] = Queue()

    def read_lines() -> None:
        assert consumer.stdout is not None
        for line in consumer.stdout:
            printed.put(line)

    reader = threading.Thread(target=read_lines, daemon=True)
    reader.start()
    assert printed.get(timeout=WAIT_S) == "hello\n"
    assert publish_with_curl(daemon, "again") == "OK"
    assert printed.get(timeout=WAIT_S) == "again\n"
    consumer.kill()
    reader.join(WAIT_S)
