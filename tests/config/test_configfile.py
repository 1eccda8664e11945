"""Configuration files: keys, values, and error messages."""

from pathlib import Path
from typing import Any

import pytest

from pyqd.config import options
from pyqd.config.configfile import quoted, read_config, shown, unknown_keys, value_of
from pyqd.config.options import DAEMON, parse_args
from pyqd.primitives.errors import StartupError
from pyqd.primitives.loglines import LogLevel

FLAG_OF = {flag.name: flag for flag in options.FLAGS}
KEY_OF = {flag.name: flag.config_key for flag in options.FLAGS}
MS = 10**6
S = 10**9

# The keys of the example that comes with nsqd, and its kinds of values, with values of our own.
NSQD_FILE = """
## comments as they come with it
log_level = "warn"
id = 5
tcp_address = "127.0.0.1:5150"
http_address = "127.0.0.1:5151"
https_address = "127.0.0.1:5152"
broadcast_address = "broker.example"

nsqlookupd_tcp_addresses = [
    "127.0.0.1:4160",
    "127.0.0.1:5160"
]
data_path = ""
mem_queue_size = 500
max_bytes_per_file = 1048576
sync_every = 100
sync_timeout = "1s"
msg_timeout = "30s"
max_msg_timeout = "5m"
max_msg_size = 1024768
max_req_timeout = "2h"
max_body_size = 5123840
max_heartbeat_interval = "45s"
max_rdy_count = 100
max_output_buffer_size = 32768
max_output_buffer_timeout = "1s"
statsd_address = "127.0.0.1:8125"
statsd_prefix = "other.%s"
statsd_interval = "30s"
statsd_mem_stats = false
statsd_udp_packet_size = 1400
e2e_processing_latency_percentiles = [
    0.95,
    1.0,
    0.99
]
e2e_processing_latency_window_time = "5m"
tls_cert = ""
tls_key = ""
tls_client_auth_policy = ""
tls_root_ca_file = ""
tls_required = false
tls_min_version = ""
deflate = false
max_deflate_level = 4
snappy = false
"""


def written(directory: Path, text: str) -> str:
    path = directory / "pyqd.toml"
    path.write_text(text)
    return str(path)


def test_a_file_made_for_nsqd_is_taken_as_it_is(tmp_path: Path) -> None:
    settings = DAEMON.parse_settings([f"--config={written(tmp_path, NSQD_FILE)}"])
    assert settings.problems == ()
    assert [notice for notice in settings.notices if "there is no" in notice] == []
    found = settings.options()
    assert found.log_level is LogLevel.WARN
    assert found.node_id == 5
    assert found.tcp_address == "127.0.0.1:5150"
    assert found.lookupd_tcp_address == ("127.0.0.1:4160", "127.0.0.1:5160")
    assert found.sync_timeout_ns == S
    assert found.max_req_timeout_ns == 7200 * S
    assert found.statsd_mem_stats is False
    assert found.e2e_processing_latency_percentile == (0.95, 1.0, 0.99)
    assert (found.tls_required, found.tls_min_version) == (0, 0x0303)
    assert (found.deflate, found.snappy, found.max_deflate_level) == (False, False, 4)


def test_the_command_line_comes_before_the_file_and_the_file_before_the_default(tmp_path: Path) -> None:
    path = written(tmp_path, 'msg_timeout = "30s"\nnsqlookupd_tcp_addresses = ["a:1", "b:1"]\nmax_rdy_count = 7\n')
    found = parse_args([f"--config={path}", "--msg-timeout=5s", "--lookupd-tcp-address=c:1"])
    assert (found.msg_timeout_ns, found.max_rdy_count, found.max_msg_size) == (5 * S, 7, 1048576)
    assert found.lookupd_tcp_address == ("c:1",)


def test_a_flag_of_the_default_s_value_comes_before_the_file_too(tmp_path: Path) -> None:
    path = written(tmp_path, "snappy = false\nmax_rdy_count = 7\n")
    found = parse_args([f"--config={path}", "--snappy", "--max-rdy-count=2500"])
    assert (found.snappy, found.max_rdy_count) == (True, 2500)


@pytest.mark.parametrize(
    ("name", "found", "value"),
    [
        ("msg-timeout", "1m30s", 90 * S),
        ("msg-timeout", 1500, 1500 * MS),
        ("max-rdy-count", 10, 10),
        ("max-rdy-count", "10", 10),
        ("snappy", True, True),
        ("snappy", "false", False),
        ("snappy", "0", False),
        ("data-path", "data", "data"),
        ("lookupd-tcp-address", ["a:1", "b:2"], ("a:1", "b:2")),
        ("lookupd-tcp-address", "a:1,b:2", ("a:1", "b:2")),
        ("lookupd-tcp-address", "", ()),
        ("e2e-processing-latency-percentile", [0.5, 1], (0.5, 1.0)),
        ("e2e-processing-latency-percentile", "0.5, 0.99", (0.5, 0.99)),
        ("log-level", "DEBUG", LogLevel.DEBUG),
        ("tls-required", True, 2),
        ("tls-required", "tcp-https", 1),
        ("tls-required", "false", 0),
        ("tls-min-version", "TLS1.2", 0x0303),
    ],
)
def test_values_are_as_toml_has_them_or_strings(name: str, found: Any, value: Any) -> None:
    assert value_of(FLAG_OF[name], found) == value


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("msg_timeout = 1.5", 'must be a duration like "250ms", or a whole number of milliseconds'),
        ('msg_timeout = "5"', 'missing unit in duration "5"; write 5s, 5ms or 5m'),
        ("msg_timeout = true", 'must be a duration like "250ms", or a whole number of milliseconds'),
        ("msg_timeout = 9223372036854775807", "value out of range"),
        ("max_rdy_count = 1.0", "must be a whole number"),
        ("max_rdy_count = false", "must be a whole number"),
        ('max_rdy_count = "0x10"', "not a whole number"),
        ("max_rdy_count = 9223372036854775808", "value out of range"),
        ('max_rdy_count = "9223372036854775808"', "value out of range"),
        ("snappy = 1", "must be true or false"),
        ('snappy = "yes"', "must be true or false"),
        ("data_path = 5", "must be a string"),
        ("nsqlookupd_tcp_addresses = 5", "must be an array of strings, or a string with commas"),
        ("nsqlookupd_tcp_addresses = [5]", "must be a string"),
        ("e2e_processing_latency_percentiles = 0.5", "must be an array of numbers, or a string with commas"),
        ('log_level = "loud"', "invalid log level 'loud' (debug, info, warn, error, fatal)"),
        ("tls_required = 1", 'must be true, false or "tcp-https"'),
        ('tls_min_version = "ssl3.0"', 'unknown tlsVersionOption "ssl3.0" (tls1.0, tls1.1, tls1.2, tls1.3)'),
    ],
)
def test_a_wrong_value_is_reported_with_file_line_and_key(tmp_path: Path, line: str, text: str) -> None:
    path = written(tmp_path, f"# first\nid = 5\n{line}\n")
    with pytest.raises(StartupError) as caught:
        parse_args([f"--config={path}"])
    key = line.split()[0]
    assert str(caught.value) == f"failed to load config file {path} - line 3, {key}: {text}"


def test_a_value_out_of_range_is_reported_with_file_line_and_key(tmp_path: Path) -> None:
    path = written(tmp_path, "\n\nid = 1024\n")
    with pytest.raises(StartupError) as caught:
        parse_args([f"--config={path}"])
    assert str(caught.value) == f"failed to instantiate pyqd - {path}, line 3, id: --node-id must be [0,1024)"


def test_a_wrong_value_that_a_flag_replaces_is_ignored(tmp_path: Path) -> None:
    path = written(tmp_path, 'id = "many"\n')
    assert parse_args([f"--config={path}", "--node-id=3"]).node_id == 3


def test_a_file_that_is_not_there_or_no_toml_keeps_the_daemon_from_starting(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    with pytest.raises(StartupError) as caught:
        parse_args([f"--config={missing}"])
    assert str(caught.value) == (f"failed to load config file {missing} - open {missing}: no such file or directory")
    path = written(tmp_path, 'id = 5\ndata_path = "unclosed\n')
    with pytest.raises(StartupError, match=r"failed to load config file .*pyqd\.toml - .*line 2"):
        parse_args([f"--config={path}"])
    (tmp_path / "pyqd.toml").write_bytes(b'data_path = "\xff"\n')
    with pytest.raises(StartupError, match="not UTF-8: invalid start byte at byte 13"):
        parse_args([f"--config={path}"])


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "pyqd.toml"
    path.write_bytes(b"\xef\xbb\xbfid = 5\r\nmax_rdy_count = 7\r\n")
    found = parse_args([f"--config={path}"])
    assert (found.node_id, found.max_rdy_count) == (5, 7)


def test_unknown_keys_and_tables_change_nothing_and_are_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, 'node_id = 7\nverbose = true\ncolour = "red"\nmax-rdy-cuont = 5\n\n[limits]\nid = 9\n')
    assert unknown_keys(read_config(path), options.FLAGS) == [
        f'{path}, line 1: there is no key "node_id", it has no effect; the key is id',
        f'{path}, line 2: there is no key "verbose", it has no effect; the flag is one of the command line alone',
        f'{path}, line 3: there is no key "colour", it has no effect',
        f'{path}, line 4: there is no key "max-rdy-cuont", it has no effect; did you mean max_rdy_count?',
        f'{path}: there is no table "limits", it has no effect',
    ]
    found = parse_args([f"--config={path}"])
    assert found.node_id == options.default_node_id()
    assert len(found.notices) == 5


def test_keys_without_effect_are_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, "queue_scan_selection_count = 5\n")
    assert parse_args([f"--config={path}"]).notices == (
        f"{path}, line 1, queue_scan_selection_count: --queue-scan-selection-count has no effect; timeouts are exact",
    )


def test_a_line_is_found_although_strings_and_tables_have_the_same_text(tmp_path: Path) -> None:
    text = 'log_prefix = """\nid = 1\n"""\nnsqlookupd_tcp_addresses = [\n  "id = 3",\n]\n"id" = 2\n[other]\nid = 4\n'
    file = read_config(written(tmp_path, text))
    assert file.values["id"] == 2
    assert file.line_of("id") == 7
    assert file.line_of("missing") == 0


@pytest.mark.parametrize("flag", [flag for flag in options.FLAGS if flag.config_key], ids=lambda flag: flag.name)
def test_every_default_is_the_same_when_it_is_written_to_a_file_and_read(flag: Any, tmp_path: Path) -> None:
    value = flag.default_value()
    file = read_config(written(tmp_path, f"{flag.config_key} = {shown(flag, value)}\n"))
    assert value_of(flag, file.values[flag.config_key]) == value


@pytest.mark.parametrize("text", ['a"b\\c', "tab\tand\nline", "\x00\x1f\x7f", "grün ☃ \U0001f600"])
def test_any_string_can_be_written_to_a_file(text: str, tmp_path: Path) -> None:
    assert read_config(written(tmp_path, f"s = {quoted(text)}\n")).values == {"s": text}


def test_two_flags_have_different_keys() -> None:
    keys = [key for key in KEY_OF.values() if key is not None]
    assert len(set(keys)) == len(keys)
