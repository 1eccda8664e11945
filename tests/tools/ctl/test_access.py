"""pyqctl with tokens, TLS, client certificates and unix sockets, against real brokers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyqd.tools.ctl.cluster import TargetCluster
from pyqd.tools.ctl.contexts import Context, CtlTarget
from pyqd.tools.trace.ship import Brokers
from tests.lookupd.conftest import LookupDaemon
from tests.lookupd.conftest import running as lookup_running
from tests.support.certificates import Certificates
from tests.support.http_stub import http_stub, json_answer, lookup_answers
from tests.support.server import Daemon, free_port, pyqd, running, wait_until
from tests.tools.ctl.conftest import Ctl, address_of

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

WAIT_S = 20.0
READER = "a-token-of-the-tests-0001"
ADMIN = "a-token-of-the-tests-0002"


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates, lookup: LookupDaemon
) -> Iterator[tuple[Daemon, str]]:
    """A broker with HTTPS for clients with a certificate, a login, and a lookup daemon; and its HTTPS address."""
    directory = tmp_path_factory.mktemp("guarded")
    tokens = directory / "tokens"
    tokens.write_text(f"{READER} status\n{ADMIN} admin\n")
    tokens.chmod(0o600)
    port = free_port()
    flags = (
        *certificates.server_flags(),
        f"-https-address=127.0.0.1:{port}",
        "-tls-client-auth-policy=require-verify",
        "-tls-required=tcp-https",
        f"-tls-root-ca-file={certificates.authority.path}",
        f"-http-auth-token-file={tokens}",
        f"-lookupd-tcp-address=127.0.0.1:{lookup.ports['TCP']}",
        "-broadcast-address=127.0.0.1",
    )
    with running(Daemon(pyqd(), directory, flags)) as daemon:
        wait_until(lambda: lookup.ask("GET", "/nodes")[1]["producers"] != [], "the broker is registered")
        yield daemon, f"127.0.0.1:{port}"


def files(certificates: Certificates) -> tuple[str, ...]:
    client = certificates.client
    return (f"--ca={certificates.authority.path}", f"--cert={client.path}", f"--key={client.key_path}")


def test_without_a_token_the_broker_refuses(bare: Ctl, guarded: tuple[Daemon, str]) -> None:
    ran = bare("topics", "-a", address_of(guarded[0]))
    assert ran.code == 5
    assert "is the token right, and has it the right to do this? (GET /stats: 401 UNAUTHORIZED)" in ran.err


def test_a_token_has_its_rights_only(bare: Ctl, guarded: tuple[Daemon, str], tmp_path: Path) -> None:
    address = address_of(guarded[0])
    assert bare("topics", "-a", address, "--token", READER).code == 0
    assert bare("topics", "-a", address, PYQD_TOKEN=READER).code == 0
    ran = bare("create", "orders", "-a", address, "--token", READER)
    assert ran.code == 5
    assert "FORBIDDEN" in ran.err
    assert READER not in ran.err
    path = tmp_path / "token"
    path.write_text(ADMIN)
    assert bare("create", "orders", "-a", address, f"--token-file={path}").code == 0
    assert bare("context", "add", "guarded", "-a", address, "--token", ADMIN).code == 0
    assert bare("pause", "orders").code == 0


def test_https_with_a_client_certificate(bare: Ctl, guarded: tuple[Daemon, str], certificates: Certificates) -> None:
    _, secure = guarded
    assert bare("nodes", "-a", secure, *files(certificates), "--token", READER).code == 0
    assert bare("context", "add", "secure", "-a", secure, *files(certificates), "--token", READER).code == 0
    assert bare("nodes").json()["nodes"][0]["node"] == secure


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "option --ca names the file with the authorities to trust"),
        (("--ca",), "does it want a client's certificate, options --cert and --key?"),
    ],
)
def test_a_failure_of_tls_names_the_option_that_helps(
    bare: Ctl, guarded: tuple[Daemon, str], certificates: Certificates, options: tuple[str, ...], reason: str
) -> None:
    given = [f"--ca={certificates.authority.path}"] if options else []
    ran = bare("nodes", "-a", f"https://{guarded[1]}", *given, "--token", READER)
    assert ran.code == 3
    assert reason in ran.err + ran.out


def test_a_port_without_tls_is_named_as_such(bare: Ctl, broker: Daemon, certificates: Certificates) -> None:
    ran = bare("topics", "-a", address_of(broker), f"--ca={certificates.authority.path}")
    assert ran.code == 3
    assert "write http:// before the address" in ran.err
    assert bare("topics", "-a", f"http://{address_of(broker)}", f"--ca={certificates.authority.path}").code == 0


@pytest.fixture(scope="module")
def strict(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[tuple[Daemon, str, LookupDaemon]]:
    """A broker that refuses HTTP without TLS, its HTTPS address, and a lookup daemon that names it."""
    directory = tmp_path_factory.mktemp("strict")
    command = (sys.executable, "-m", "pyqd.apps.lookupd")
    port = free_port()
    with lookup_running(LookupDaemon(command, directory / "lookup.log")) as lookup:
        flags = (
            *certificates.server_flags(),
            f"-https-address=127.0.0.1:{port}",
            "-tls-required=true",
            f"-lookupd-tcp-address=127.0.0.1:{lookup.ports['TCP']}",
            "-broadcast-address=127.0.0.1",
        )
        with running(Daemon(pyqd(), directory, flags)) as daemon:
            wait_until(lambda: lookup.ask("GET", "/nodes")[1]["producers"] != [], "the broker is registered")
            yield daemon, f"127.0.0.1:{port}", lookup


def test_a_broker_that_wants_https_tells_its_port(bare: Ctl, strict: tuple[Daemon, str, LookupDaemon]) -> None:
    daemon, secure, _ = strict
    ran = bare("topics", "-a", address_of(daemon))
    assert ran.code == 3
    assert f"give https://{secure}" in ran.err


def test_the_https_port_of_a_broker_is_found_behind_a_lookup_daemon(
    bare: Ctl, strict: tuple[Daemon, str, LookupDaemon], certificates: Certificates
) -> None:
    _, secure, lookup = strict
    given = ("-l", f"http://127.0.0.1:{lookup.ports['HTTP']}", f"--ca={certificates.authority.path}")
    assert bare("nodes", *given).json()["nodes"][0]["node"] == f"https://{secure}"


@pytest.mark.parametrize("is_other_up", [True, False])
def test_doctor_finds_a_broker_whose_https_port_is_not_told(
    bare: Ctl, strict: tuple[Daemon, str, LookupDaemon], certificates: Certificates, is_other_up: bool
) -> None:
    daemon, secure, _ = strict
    down = f"127.0.0.1:{free_port()}"
    known = lookup_answers({"t": [down, *([address_of(daemon)] if is_other_up else [])]})
    with http_stub(lambda path, query: json_answer("OK") if path == "/ping" else known(path, query)) as lookup:
        ran = bare("doctor", "-l", f"http://{lookup.address}", f"--ca={certificates.authority.path}")
    assert ran.code == 7, ran.err
    answers = {row["node"]: row["state"] for row in json.loads(ran.out)["checks"] if row["check"] == "answer"}
    assert answers[down] == "failure"
    assert (answers.get(f"https://{secure}") == "ok") == is_other_up


def test_a_token_is_not_sent_to_a_plain_port_if_tls_is_asked_for(
    bare: Ctl, guarded: tuple[Daemon, str], lookup: LookupDaemon, certificates: Certificates
) -> None:
    address = f"http://127.0.0.1:{lookup.ports['HTTP']}"
    ran = bare("topics", "-l", address, *files(certificates), "--token", READER)
    assert ran.code == 3
    assert "names its port for HTTP only, and --ca or --cert asks for HTTPS" in ran.err
    assert bare("topics", "-l", address, "--token", READER, "--trusted-broker=127.0.0.1").code == 0


@pytest.mark.parametrize("entry", ["", "10.0.0.0/8", "127.0.0.0/8"])
def test_a_broker_of_a_lookup_daemon_gets_the_token_only_if_it_is_named(bare: Ctl, entry: str) -> None:
    with http_stub(lambda *_: json_answer({"topics": []})) as broker:
        with http_stub(lookup_answers({"orders": [broker.address]})) as stub:
            ran = bare("topics", "-l", stub.address, "--token", READER, PYQD_TRUSTED_BROKER=entry)
        has_token = entry.startswith("127")
        assert (f"Bearer {READER}" in broker.tokens) is has_token
        assert (f"{broker.address} is asked without the token" in ran.err) is not has_token
        assert f"Bearer {READER}" not in stub.tokens


def test_a_context_keeps_the_brokers_that_get_the_token(bare: Ctl) -> None:
    with http_stub(lambda *_: json_answer({"topics": []})) as broker:
        with http_stub(lookup_answers({"orders": [broker.address]})) as stub:
            options = ("-l", stub.address, "--token", READER, f"--trusted-broker={broker.address}")
            assert bare("context", "add", "named", *options).code == 0
            assert bare("topics").code == 0
        assert f"Bearer {READER}" in broker.tokens


def test_shipping_sends_the_token_only_to_named_brokers(bare: Ctl) -> None:
    with (
        http_stub(lambda *_: json_answer({"topics": []})) as broker,
        http_stub(lookup_answers({"orders": [broker.address]})) as stub,
    ):
        for trusted, has_token in (((), False), ((broker.address,), True)):
            target = CtlTarget(Context(lookupd_http_addresses=(stub.address,), token=READER, trusted_brokers=trusted))
            with contextlib.closing(TargetCluster(target, WAIT_S)) as cluster:
                for client in Brokers(cluster).clients():
                    with client:
                        client.request("GET", "/info", retry=False)
            assert (f"Bearer {READER}" in broker.tokens) is has_token


def test_a_unix_socket_is_an_address_too(bare: Ctl, tmp_path: Path) -> None:
    path, data = tmp_path / "http.sock", tmp_path / "data"
    data.mkdir()
    flags = (f"-data-path={data}", f"-http-address={path}", f"-tcp-address={tmp_path / 'tcp.sock'}")
    with (tmp_path / "log").open("wb") as log, subprocess.Popen([*pyqd().argv, *flags], stderr=log) as process:
        try:
            wait_until(lambda: bare("nodes", "-a", str(path)).code == 0, "the broker answers")
            assert bare("nodes", "-a", str(path)).json()["nodes"][0]["node"] == str(path)
            assert bare("drain", "-a", str(path), "--yes").code == 0
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
