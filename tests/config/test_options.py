"""The daemon's options: nsqd's names and defaults, and the ranges."""

import re
import socket
from collections.abc import Callable

import pytest

from pyqd import __version__
from pyqd.config import options
from pyqd.config.options import parse_args
from pyqd.lookupd.options import LOOKUP_DAEMON
from pyqd.primitives.errors import StartupError
from pyqd.primitives.goflags import DURATION
from pyqd.primitives.loglines import LogLevel

MS = 10**6
S = 10**9

NSQD_DEFAULTS = {
    "version": False,
    "verbose": False,
    "log-level": LogLevel.INFO,
    "worker-id": False,
    "tcp-address": "0.0.0.0:4150",
    "http-address": "0.0.0.0:4151",
    "broadcast-tcp-port": 0,
    "broadcast-http-port": 0,
    "data-path": "",
    "mem-queue-size": 10000,
    "max-bytes-per-file": 104857600,
    "sync-every": 2500,
    "sync-timeout": 2 * S,
    "queue-scan-worker-pool-max": 4,
    "queue-scan-selection-count": 20,
    "msg-timeout": 60 * S,
    "max-msg-timeout": 900 * S,
    "max-msg-size": 1048576,
    "max-req-timeout": 3600 * S,
    "max-defer": 0,
    "max-body-size": 5242880,
    "max-heartbeat-interval": 60 * S,
    "max-rdy-count": 2500,
    "max-output-buffer-size": 65536,
    "max-output-buffer-timeout": 30 * S,
    "min-output-buffer-timeout": 25 * MS,
    "output-buffer-timeout": 250 * MS,
    "max-channel-consumers": 0,
    "deflate": True,
    "snappy": True,
    "max-deflate-level": 6,
    "topology-region": "",
    "topology-zone": "",
    "lookupd-tcp-address": (),
    "enable-experiment": (),
    "https-address": "0.0.0.0:4152",
    "tls-cert": "",
    "tls-key": "",
    "tls-client-auth-policy": "",
    "tls-root-ca-file": "",
    "tls-required": 0,
    # Stricter than nsqd's.
    "tls-min-version": 0x0303,
    "auth-http-address": (),
    "auth-http-request-method": "get",
    "http-client-connect-timeout": 2 * S,
    "http-client-request-timeout": 5 * S,
    "statsd-address": "",
    "statsd-prefix": "nsq.%s",
    "statsd-interval": 60 * S,
    "statsd-mem-stats": True,
    "statsd-udp-packet-size": 508,
    "statsd-exclude-ephemeral": False,
    "e2e-processing-latency-percentile": (),
    "e2e-processing-latency-window-time": 600 * S,
}


def test_defaults_are_those_of_nsqd() -> None:
    given_nothing = parse_args([])
    values = {flag.name: getattr(given_nothing, flag.attribute) for flag in options.FLAGS}
    assert values["log-prefix"] == "[pyqd] "
    assert values["broadcast-address"] == socket.gethostname()
    assert values["node-id"] == options.default_node_id()
    assert {name: values[name] for name in NSQD_DEFAULTS} == NSQD_DEFAULTS


def test_every_flag_is_held_by_its_own_name_with_ns_for_durations() -> None:
    for flag in options.FLAGS:
        suffix = "_ns" if flag.type is DURATION else ""
        assert flag.attribute == flag.name.replace("-", "_") + suffix


def test_every_default_is_in_its_own_range() -> None:
    for flag in options.FLAGS:
        flag.check(flag.default_value())


@pytest.mark.parametrize(("hostname", "node_id"), [("vm", 617), ("localhost", 16), ("", 812)])
def test_the_default_node_id_is_nsqds_hash_of_the_host_name(
    hostname: str, node_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: hostname)
    assert options.default_node_id() == node_id


def test_keys_of_the_configuration_file_are_nsqds() -> None:
    keys = {flag.name: flag.config_key for flag in options.FLAGS}
    assert keys["node-id"] == "id"
    assert keys["msg-timeout"] == "msg_timeout"
    assert all(keys[name] is None for name in ("version", "verbose", "worker-id", "config", "check-config"))


def test_a_command_line_sets_the_named_options() -> None:
    parsed = parse_args(
        [
            "--tcp-address=127.0.0.1:0",
            "-http-address",
            "",
            "--msg-timeout",
            "1m30s",
            "-log-level=DEBUG",
            "--node-id=0x10",
        ]
    )
    assert parsed.tcp_address == "127.0.0.1:0"
    assert parsed.http_address == ""
    assert parsed.msg_timeout_ns == 90 * S
    assert parsed.log_level is LogLevel.DEBUG
    assert parsed.node_id == 16
    assert parsed.max_msg_size == 1048576
    assert parsed.notices == ()


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--node-id=1024", "--node-id must be [0,1024)"),
        ("--node-id=-1", "--node-id must be [0,1024)"),
        ("--mem-queue-size=-1", "--mem-queue-size must not be negative"),
        ("--sync-timeout=0", "--sync-timeout must be positive"),
        ("--sync-every=0", "--sync-every must be positive"),
        ("--output-buffer-timeout=0s", "--output-buffer-timeout must be positive"),
        ("--msg-timeout=-1s", "--msg-timeout must be positive"),
        ("--max-msg-size=0", "--max-msg-size must be positive"),
        ("--max-channel-consumers=-1", "--max-channel-consumers must not be negative"),
        ("--broadcast-tcp-port=65536", "--broadcast-tcp-port must be [0,65535]"),
    ],
)
def test_a_value_out_of_range_keeps_the_daemon_from_starting(argument: str, text: str) -> None:
    with pytest.raises(StartupError) as caught:
        parse_args([argument])
    assert str(caught.value) == f"failed to instantiate pyqd - {text}"


@pytest.mark.parametrize("text", ["broker-1.example", "my_host", "10.1.2.3", "::1", "fe80::1%eth0", "höhe.example"])
def test_a_broadcast_address_is_a_host_name_or_an_ip_address(text: str) -> None:
    assert parse_args([f"--broadcast-address={text}"]).broadcast_address == text


@pytest.mark.parametrize(
    "parse", [parse_args, lambda argv: LOOKUP_DAEMON.parse_settings(argv).options()], ids=["pyqd", "pyqlookupd"]
)
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "it is blank"),
        (" ", "it is blank"),
        ("a b", "it contains white space"),
        ("10.1.2.3\n", "it contains white space"),
        ("http://broker:4151", "it is a URL"),
        ("[::1]", "it has brackets"),
        ("[::1]:4150", "it has brackets"),
        ("broker:4150", "it has a colon"),
        ("10.1.2.3:", "it has a colon"),
        ("broker/x", "it contains a character that no host name has"),
        ("br\udcffker", "it contains a character that no host name has"),
    ],
)
def test_another_broadcast_address_is_refused_with_the_reason(
    text: str, fault: str, parse: Callable[[list[str]], object]
) -> None:
    with pytest.raises(StartupError) as caught:
        parse([f"--broadcast-address={text}"])
    expected = " - --broadcast-address must be a host name or an IP address, such as broker.example or ::1; "
    assert expected + fault in str(caught.value)


@pytest.mark.parametrize("text", ["", "nsq", "nsq.%s.", "a-b_c/d"])
def test_a_prefix_of_names_for_statsd_is_text(text: str) -> None:
    assert parse_args([f"--statsd-prefix={text}"]).statsd_prefix == text


@pytest.mark.parametrize("text", ["a:b", "a|b", "a b", "a\nb", "a\x00b", "a\udcffb", "a\u2028b"])
def test_a_prefix_that_spoils_each_line_for_statsd_is_refused(text: str) -> None:
    with pytest.raises(StartupError) as caught:
        parse_args([f"--statsd-prefix={text}"])
    said = "--statsd-prefix must be text without white space, colons and bars, at which statsd divides a line"
    assert str(caught.value) == f"failed to instantiate pyqd - {said}"


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--msg-timout=60s", "flag provided but not defined: -msg-timout; did you mean --msg-timeout?"),
        (
            "--msg-timeout=5",
            'invalid value "5" for flag -msg-timeout: missing unit in duration "5"; write 5s, 5ms or 5m',
        ),
        ("--worker-id=7", 'invalid boolean value "7" for -worker-id: must be true or false'),
        ("--tls-required=no", 'invalid boolean value "no" for -tls-required: must be true, false or tcp-https'),
        (
            "--log-level=loud",
            "invalid value \"loud\" for flag -log-level: invalid log level 'loud' (debug, info, warn, error, fatal)",
        ),
        (
            "--e2e-processing-latency-percentile=99%",
            'invalid value "99%" for flag -e2e-processing-latency-percentile: '
            "must be numbers with commas, such as 0.99,0.5",
        ),
        ("x", 'unexpected argument "x"'),
    ],
)
def test_a_wrong_command_line_ends_with_one_line_and_code_2(
    argument: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_args([argument])
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", f"pyqd: {text} (pyqd --help lists all flags)\n")


def test_help_ends_with_usage_on_stdout_and_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_args(["--help"])
    out, err = capsys.readouterr()
    assert (caught.value.code, err) == (0, "")
    assert "\n  --msg-timeout duration\n" in out
    assert "(default 1m0s)" in out


def test_version_is_printed_whatever_else_is_out_of_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_args(["--version", "--node-id=3000"])
    assert caught.value.code == 0
    pattern = rf"pyqd v{re.escape(__version__)} \(NSQ v1\.3\.0, built w/python\d+\.\d+\.\d+\S*\)\n"
    assert re.fullmatch(pattern, capsys.readouterr().out)


def test_version_false_starts_as_usual() -> None:
    assert parse_args(["--version=false"]) == parse_args([])


def test_flags_without_effect_are_accepted_and_noticed() -> None:
    parsed = parse_args(["--queue-scan-worker-pool-max=8", "--verbose", "--worker-id"])
    assert parsed.queue_scan_worker_pool_max == 8
    assert parsed.notices == (
        "--verbose has no effect; use --log-level",
        "--worker-id has no effect; use --node-id",
        "--queue-scan-worker-pool-max has no effect; timeouts are exact",
    )


@pytest.mark.parametrize(
    ("arguments", "required"),
    [
        ([], 0),
        (["-tls-required"], 2),
        (["-tls-required=true"], 2),
        (["-tls-required=T"], 2),
        (["-tls-required=false"], 0),
        (["-tls-required=TCP-HTTPS"], 1),
        (["-tls-client-auth-policy=require"], 2),
        (["-tls-client-auth-policy=whatever", "-tls-required=false"], 2),
        (["-tls-client-auth-policy=require-verify", "-tls-required=tcp-https"], 1),
    ],
)
def test_tls_is_required_by_its_flag_or_by_a_client_auth_policy(arguments: list[str], required: int) -> None:
    assert parse_args(arguments).tls_required == required


@pytest.mark.parametrize(("text", "number"), [("tls1.0", 0x301), ("TLS1.2", 0x303), ("tls1.3", 0x304), ("", 0x303)])
def test_the_least_tls_version_is_named(text: str, number: int) -> None:
    assert parse_args([f"-tls-min-version={text}"]).tls_min_version == number


@pytest.mark.parametrize("argument", ["-tls-required=maybe", "-tls-min-version=ssl3.0", "-tls-min-version=1.2"])
def test_an_invalid_policy_or_version_of_tls_is_a_usage_error(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_args([argument])
    assert ended.value.code == 2
    assert "invalid" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "mode"), [("0660", 0o660), ("600", 0o600), ("", None)])
def test_the_mode_of_unix_sockets_is_octal(text: str, mode: int | None) -> None:
    assert parse_args([f"--unix-socket-mode={text}"]).unix_socket_mode == mode


@pytest.mark.parametrize("text", ["8", "rw", "01777", "-1"])
def test_a_mode_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args([f"--unix-socket-mode={text}"])
    assert "octal digits such as 0660" in capsys.readouterr().err
