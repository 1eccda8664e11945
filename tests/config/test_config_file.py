"""A configuration file means the same to both servers."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.nsq import Client
from tests.support.preloaded import completed
from tests.support.server import Daemon, Implementation, daemons_running

FILE = """
# comments and blank lines

log_level = "debug"
id = 5
node_id = 6
nsqlookupd_tcp_addresses = []
max_msg_timeout = "3m"
msg_timeout = 45000
max_msg_size = "2000"
max_rdy_count = 100
max_output_buffer_timeout = "1s"
max_output_buffer_size = 32768
output_buffer_timeout = "300ms"
tls_required = false
tls_min_version = ""
deflate = "true"
max_deflate_level = 4
snappy = false
unknown_key = 1

[a_table]
max_rdy_count = 7
"""

Start = Callable[..., Daemon]


@pytest.fixture
def start(implementation: Implementation, tmp_path: Path) -> Iterator[Start]:
    def start_with(*flags: str, text: str = FILE) -> Daemon:
        path = tmp_path / "nsqd.cfg"
        path.write_text(text)
        return start_daemon(Daemon(implementation, tmp_path, [f"-config={path}", *flags]))

    with daemons_running() as start_daemon:
        yield start_with


def test_values_of_every_kind_are_in_force(start: Start) -> None:
    daemon = start()
    with Client(daemon.tcp_address) as client:
        reply = client.identify(deflate_level=9)
    assert reply["max_rdy_count"] == 100
    assert reply["max_msg_timeout"] == 180_000
    assert reply["msg_timeout"] == 45_000
    assert reply["max_deflate_level"] == 4
    assert reply["output_buffer_timeout"] == 300
    assert daemon.http("GET", "/config/log_level").body in (b"debug", b"1", b'"debug"')
    assert daemon.http("POST", "/pub", b"x" * 2001, topic="t").status == 413
    assert daemon.http("POST", "/pub", b"x" * 2000, topic="t").status == 200


def test_a_flag_comes_before_the_file(start: Start) -> None:
    daemon = start("-max-rdy-count=50", "-msg-timeout=20s")
    with Client(daemon.tcp_address) as client:
        reply = client.identify()
    assert (reply["max_rdy_count"], reply["msg_timeout"], reply["max_msg_timeout"]) == (50, 20_000, 180_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        'log_level = "loud"',
        "max_rdy_count = 1.5",
        "msg_timeout = 1.5",
        'msg_timeout = "5"',
        'max_msg_size = "0x10"',
        'tls_min_version = "ssl3.0"',
        'tls_required = "perhaps"',
        'data_path = "unclosed',
        "id = 1024",
    ],
)
def test_a_wrong_value_ends_the_start_with_exit_code_1(
    implementation: Implementation, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(text + "\n")
    command = [*implementation.argv, f"-config={path}", "-http-address=", "-tcp-address=127.0.0.1:0"]
    ended = completed(command, tmp_path)
    assert ended.returncode == 1
    assert re.search("FATAL|ERROR", ended.stderr)


def test_a_file_that_is_not_there_ends_the_start(implementation: Implementation, tmp_path: Path) -> None:
    path = tmp_path / "missing.cfg"
    command = [*implementation.argv, f"-config={path}"]
    ended = completed(command, tmp_path)
    assert ended.returncode == 1
    assert f"failed to load config file {path} - open {path}: no such file or directory" in ended.stderr
