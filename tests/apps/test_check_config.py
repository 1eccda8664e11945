"""`pyqd --check-config`, and a daemon that is started with a configuration file."""

import os
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from pyqd.apps import daemon
from pyqd.config.options import parse_args
from tests.support.certificates import Certificates
from tests.support.server import Daemon, pyqd


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str) -> str:
    Path("pyqd.toml").write_text(text)
    return "--config=pyqd.toml"


def check(*flags: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, list[str]]:
    """Run the check. Returns: exit code, standard output, lines of standard error."""
    code = daemon.main(["--check-config", *flags])
    out, err = capsys.readouterr()
    return code, out, err.splitlines()


def test_effective_values_are_printed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    config = written('# mine\nmsg_timeout = "30s"\nmax_rdy_count = 7\n')
    code, out, err = check(config, "--max-rdy-count=9", "--verbose", capsys=capsys)
    assert code == 0
    assert err == ["warning: --verbose has no effect; use --log-level"]
    lines = {line.split(" = ")[0]: line for line in out.splitlines() if " = " in line}
    assert lines["msg_timeout"].split("  ")[0] == 'msg_timeout = "30s"'
    assert lines["msg_timeout"].endswith("# pyqd.toml, line 2, msg_timeout")
    assert lines["max_rdy_count"].startswith("max_rdy_count = 9 ")
    assert lines["max_rdy_count"].endswith("# command line")
    assert lines["max_msg_size"].startswith("max_msg_size = 1048576 ")
    assert lines["max_msg_size"].endswith("# default")
    assert "# Messages and commands" in out.splitlines()


@pytest.mark.slow
def test_the_printed_configuration_is_a_file_with_the_same_effect(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--tls-min-version=tls1.2", '--log-prefix=a"b\\ ', "--node-id=7", "--retention-time=1h30m"]
    flags += ["--e2e-processing-latency-percentile=0.5,0.99", "--enable-experiment=x", "--snappy=false"]
    _, out, _ = check(*flags, capsys=capsys)
    assert tomllib.loads(out)["id"] == 7
    again = parse_args([written(out)])
    assert again == parse_args([*flags, "--config=pyqd.toml"])


def test_all_mistakes_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    config = written('id = 2000\nsync_every = "often"\ncolour = "red"\n')
    code, out, err = check(config, "--mem-queue-size=-1", capsys=capsys)
    assert (code, out) == (1, "")
    assert sorted(err) == [
        "error: failed to instantiate pyqd - --mem-queue-size must not be negative",
        "error: failed to instantiate pyqd - pyqd.toml, line 1, id: --node-id must be [0,1024)",
        "error: failed to load config file pyqd.toml - line 2, sync_every: not a whole number",
        'warning: pyqd.toml, line 3: there is no key "colour", it has no effect',
    ]


def test_a_file_with_errors_does_not_keep_the_rest_from_being_checked(capsys: pytest.CaptureFixture[str]) -> None:
    config = written('id = 2000\ndata_path = "no"\nhttp_address = "4151"\ntls_cert = "no.pem"\ntls_key = "no.pem"\n')
    code, _, err = check(config, capsys=capsys)
    assert code == 1
    told = [
        "pyqd.toml, line 1, id: --node-id must be",
        "/no does not exist",
        "open no.pem: no such file",
        "write :4151",
    ]
    assert len(err) == len(told)
    assert [text for text, line in zip(told, err, strict=True) if text not in line] == []


@pytest.mark.parametrize(
    ("text", "flags", "told"),
    [
        ("data_path = 5\n", [], ["line 1, data_path: must be a string"]),
        ("nonsense\n", [], ["failed to load config file pyqd.toml"]),
        ("nonsense\n", ["--data-path=no"], ["failed to load config file pyqd.toml", "/no does not exist"]),
        ('id = 2000\ndata_path = "no"\n', ["--data-path=."], ["pyqd.toml, line 1, id"]),
    ],
)
def test_checks_that_depend_on_a_wrong_value_are_skipped(
    text: str, flags: list[str], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = check(written(text), *flags, capsys=capsys)
    assert code == 1
    assert len(err) == len(told)
    assert [text for text, line in zip(told, err, strict=True) if text not in line] == []


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--config=no.toml"], "failed to load config file no.toml - open no.toml: no such file or directory"),
        (["--data-path=no"], "/no does not exist; create it with mkdir -p "),
        (["--data-path=file"], "/file is not a directory; --data-path names another"),
        (["--data-path=file/below"], "/file/below cannot be reached: not a directory; --data-path names another"),
        (["--tcp-address=a:70000"], "listen (a:70000) failed - listen tcp: address 70000: invalid port"),
        (["--tls-cert=no.pem", "--tls-key=no.pem"], "failed to build TLS config - open no.pem: no such file"),
        (["--tls-required"], "cannot require TLS client connections without TLS key and cert"),
    ],
)
def test_obstacles_to_a_start_are_reported(flags: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    code, _, err = check(*flags, capsys=capsys)
    assert code == 1
    assert text in "".join(err)


def test_certificates_that_serve_are_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(*Certificates(tmp_path).server_flags(), "--tls-required=tcp-https", capsys=capsys)
    assert (code, err) == (0, [])
    assert 'tls_required = "tcp-https" ' in out


def test_a_check_leaves_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(capsys=capsys)[0] == 0
    assert os.listdir() == []


def test_a_wrong_command_line_is_a_usage_error_for_the_check_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        daemon.main(["--check-config", "--no-such-flag"])
    assert left.value.code == 2


@pytest.mark.slow
def test_a_daemon_runs_with_a_file_and_names_unknown_keys(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.cfg"
    config.write_text('max_msg_size = 2000\nmsg_timeout = 30000\ncolour = "red"\n')
    running = Daemon(pyqd(), tmp_path, [f"--config={config}"])
    running.start()
    try:
        assert running.http("GET", "/config/max_msg_size").json() == 2000
        assert running.http("GET", "/config/msg_timeout").json() == 30_000_000_000
        assert f'{config}, line 3: there is no key "colour", it has no effect' in running.log_text()
        running.stop()
    finally:
        running.kill()
