"""Reading, draining and publishing over TLS: with real brokers, and errors for certificates that do not fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives import serialization
from pyspark.sql.types import BinaryType, StructField, StructType

from pyqd.client.errors import RefusedError, TlsError
from pyqd_spark.channel import ChannelReadSettings, PyqdChannelReader
from pyqd_spark.decode import read_range
from pyqd_spark.options import BrokerOptions, OptionError
from pyqd_spark.read_options import parse_settings
from pyqd_spark.reader import batch_ranges
from pyqd_spark.writer import Published, WriteSettings, publish_batches
from tests.spark.drained import numbers, options, run
from tests.support.certificates import Certificate, Certificates
from tests.support.server import Daemon, Implementation, pyqd
from tests.support.spark_side import Starter, batch, parametrize_implementation, servers, tcp_address

pytest_generate_tests = parametrize_implementation

HTTPS_LINE = re.compile(r"HTTPS: listening on 127\.0\.0\.1:(\d+)")
COUNT = 300
# So long that a test which waits for it, instead of failing at once, does not end.
PATIENT_MS = "3600000"

Options = dict[str, str]
Act = Callable[[Options, Path], Any]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Starter]:
    """Give start(implementation, *flags), which starts a server with TLS; one for all tests with the same flags."""
    running: dict[tuple[str, ...], Daemon] = {}
    with servers(tmp_path_factory.mktemp("tls")) as starter:

        def start_once(implementation: Implementation, *flags: str) -> Daemon:
            key = (implementation.name, *flags)
            if key not in running:
                every = (*certificates.server_flags(), "-https-address=127.0.0.1:0", *flags)
                running[key] = starter(implementation, *every)
            return running[key]

        yield start_once


@pytest.fixture
def optional(start: Starter) -> Daemon:
    return start(pyqd())


def strict_flags(certificates: Certificates) -> tuple[str, ...]:
    return ("-tls-client-auth-policy=require-verify", f"-tls-root-ca-file={certificates.authority.path}")


@pytest.fixture
def strict(start: Starter, certificates: Certificates) -> Daemon:
    """A broker that requires a certificate of the authority."""
    return start(pyqd(), *strict_flags(certificates))


def https_address(daemon: Daemon) -> str:
    return f"127.0.0.1:{HTTPS_LINE.findall(daemon.log_text())[-1]}"


def trusting(certificates: Certificates, **more: str) -> Options:
    return {"tls": "true", "tlsRootCaFile": str(certificates.authority.path), **more}


def showing(certificate: Certificate) -> Options:
    return {"tlsCert": str(certificate.path), "tlsKey": str(certificate.key_path)}


def read(given: Options, _: Path | None = None) -> list[bytes]:
    """Read the topic t by position. Returns: the bodies."""
    settings = parse_settings({"subscribe": "t", "retryTimeoutMs": PATIENT_MS, **given}, streaming=False)
    tables = [rows for part in batch_ranges(settings) for rows in read_range(settings, part)]
    return [body for rows in tables for body in rows["value"].to_pylist()]


def publish(given: Options, _: Path | None = None, topic: str = "t") -> Published:
    rows = batch(value=[b"%d" % number for number in range(COUNT)])
    table = StructType([StructField("value", BinaryType())])
    settings = WriteSettings.of({"topic": topic, "retryTimeoutMs": PATIENT_MS, **given}, table)
    return publish_batches(settings, [rows], 0, "")


def empty_channel(given: Options, path: Path) -> list[bytes]:
    """Take all of a channel of the topic t. Returns: the bodies."""
    asked = {"topic": "t", "channel": "c", "idleTimeoutMs": "500", "path": str(path), "retryTimeoutMs": PATIENT_MS}
    reader = PyqdChannelReader(ChannelReadSettings.of({**asked, **given}))
    for part in reader.partitions():
        list(reader.read(part))
    return [body for file in path.iterdir() for body in pq.read_table(file)["value"].to_pylist()]


def bodies() -> list[bytes]:
    return [b"%d" % number for number in range(COUNT)]


def test_a_topic_is_published_read_and_consumed_over_tls(
    start: Starter, certificates: Certificates, tmp_path: Path
) -> None:
    daemon = start(pyqd(), "-tls-required=true")
    given = trusting(certificates, nsqd=https_address(daemon))
    assert publish(given).rows == COUNT
    assert read(given) == bodies()
    assert read(trusting(certificates, nsqd=f"https://{https_address(daemon)}", tls="false")) == bodies()
    assert sorted(empty_channel(given, tmp_path)) == sorted(bodies())


def test_a_scheme_before_an_address_wins_over_tls(start: Starter, certificates: Certificates, tmp_path: Path) -> None:
    daemon = start(pyqd(), "-tls-required=tcp-https")
    given = trusting(certificates, nsqd="http://{}:{}".format(*daemon.http_address))
    assert publish(given).rows == COUNT
    assert read(given) == bodies()
    assert sorted(empty_channel(given, tmp_path)) == sorted(bodies())
    with pytest.raises(RefusedError, match="TLS required"):
        publish({**given, "tls": "false", "nsqd": f"https://{https_address(daemon)}"})


def test_a_client_presents_its_certificate_if_one_is_required(
    strict: Daemon, certificates: Certificates, tmp_path: Path
) -> None:
    given = trusting(certificates, nsqd=https_address(strict), **showing(certificates.client))
    assert publish(given).rows == COUNT
    assert read(given) == bodies()
    assert sorted(empty_channel(given, tmp_path)) == sorted(bodies())


def test_publishing_and_consuming_take_certificates_to_any_broker(
    start: Starter, implementation: Implementation, certificates: Certificates, tmp_path: Path
) -> None:
    daemon = start(implementation, *strict_flags(certificates))
    given = trusting(certificates, nsqdTcp=tcp_address(daemon), **showing(certificates.client))
    assert empty_channel({**given, "topic": "u"}, tmp_path) == []
    assert publish(given, topic="u").rows == COUNT
    assert sorted(empty_channel({**given, "topic": "u"}, tmp_path)) == sorted(bodies())


@pytest.mark.parametrize("shown", ["no certificate", "another one"])
@pytest.mark.parametrize("act", [read, publish, empty_channel])
def test_a_client_without_the_required_certificate_is_refused_at_once(
    strict: Daemon, certificates: Certificates, act: Act, shown: str, tmp_path: Path
) -> None:
    with pytest.raises(TlsError, match=r"the other side refuses: .*tlsCert"):
        act(
            trusting(certificates, nsqd=https_address(strict))
            | ({} if shown == "no certificate" else showing(certificates.stranger)),
            tmp_path,
        )


@pytest.mark.parametrize("act", [publish, empty_channel])
def test_a_missing_client_certificate_is_reported_over_tcp_too(
    start: Starter, implementation: Implementation, certificates: Certificates, act: Act, tmp_path: Path
) -> None:
    daemon = start(implementation, *strict_flags(certificates))
    with pytest.raises(TlsError, match=r"the other side refuses: .*tlsCert"):
        act(trusting(certificates, nsqdTcp=tcp_address(daemon)), tmp_path)


@pytest.mark.parametrize("act", [read, publish, empty_channel])
def test_a_broker_whose_certificate_another_authority_signed_is_refused_at_once(
    optional: Daemon, certificates: Certificates, act: Act, tmp_path: Path
) -> None:
    given = {"tls": "true", "tlsRootCaFile": str(certificates.stranger.path)}
    with pytest.raises(TlsError, match=r"certificate verify failed: .*tlsRootCaFile names the file"):
        act({**given, "nsqd": https_address(optional)}, tmp_path)
    if act is not read:
        with pytest.raises(TlsError, match=r"certificate verify failed: .*tlsRootCaFile names the file"):
            act({**given, "nsqdTcp": tcp_address(optional)}, tmp_path)


def test_that_data_may_be_lost_is_no_leave_to_pass_over_a_broker_without_trust(
    optional: Daemon, certificates: Certificates
) -> None:
    given = {"tls": "true", "nsqd": https_address(optional), "failOnDataLoss": "false"}
    with pytest.raises(TlsError, match="certificate verify failed"):
        read({**given, "tlsRootCaFile": str(certificates.stranger.path)})


def test_an_address_has_to_be_one_of_the_certificate(optional: Daemon, certificates: Certificates) -> None:
    given = trusting(certificates, nsqd=https_address(optional).replace("127.0.0.1", "localhost"))
    with pytest.raises(TlsError, match=r"localhost.*the address has to be one of those that the certificate names"):
        read(given)


def test_certificates_are_not_verified_if_the_option_says_so(optional: Daemon) -> None:
    given = {"tls": "true", "tlsInsecureSkipVerify": "true", "nsqd": https_address(optional)}
    assert publish(given, topic="unseen").rows == COUNT
    assert read({**given, "subscribe": "unseen"}) == bodies()


def test_the_wrong_port_is_recognised(optional: Daemon, strict: Daemon, certificates: Certificates) -> None:
    plain = "{}:{}".format(*optional.http_address)
    with pytest.raises(TlsError, match=r"the port speaks no TLS.*write http://"):
        read(trusting(certificates, nsqd=plain))
    with pytest.raises(TlsError, match=r"a port that speaks TLS; is it tls=true\?"):
        read({"nsqd": https_address(optional), "retryTimeoutMs": "0"})
    port = https_address(strict).rpartition(":")[2]
    with pytest.raises(TlsError, match=rf"403 TLS_REQUIRED: it takes HTTPS only, at port {port}"):
        read({"nsqd": "{}:{}".format(*strict.http_address)})


def test_a_drain_is_made_over_tls(strict: Daemon, certificates: Certificates, tmp_path: Path) -> None:
    given = trusting(certificates, nsqd=https_address(strict), **showing(certificates.client))
    publish(given, topic="drained")
    connection = BrokerOptions(
        nsqd=(https_address(strict),),
        tls=True,
        tls_root_ca_file=given["tlsRootCaFile"],
        tls_cert=given["tlsCert"],
        tls_key=given["tlsKey"],
    )
    run(options(tmp_path, connection=connection, topics=("drained",)))
    assert numbers(tmp_path) == list(range(COUNT))


def encrypted(certificate: Certificate, path: Path) -> Path:
    path.write_bytes(
        certificate.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"sesame"),
        )
    )
    return path


@pytest.mark.slow
def test_a_file_that_cannot_be_used_is_named_with_its_option(certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    client = certificates.client
    locked = encrypted(client, tmp_path / "locked.key")
    own, other = str(client.path), str(certificates.server.key_path)
    for given, said in (
        ({"tlsRootCaFile": "/none.pem"}, "option tlsRootCaFile=/none.pem: No such file or directory on .*executor"),
        ({"tlsRootCaFile": str(tmp_path / "empty.pem")}, "option tlsRootCaFile=.*empty.pem: .*"),
        ({"tlsCert": own, "tlsKey": "/none.key"}, "option tlsKey=/none.key: No such file"),
        ({"tlsCert": own, "tlsKey": other}, "tlsCert=.*tlsKey=.*mismatch"),
        ({"tlsCert": own, "tlsKey": str(locked)}, "tlsKey=.*locked.key: the key is encrypted"),
    ):
        with pytest.raises(TlsError, match=said):
            read({"tls": "true", "nsqd": "127.0.0.1:1", **given})
        with pytest.raises(TlsError, match=said):
            publish({"tls": "true", "nsqdTcp": "127.0.0.1:1", **given})


@pytest.mark.parametrize("name", ["tlsRootCaFile", "tlsCert", "tlsInsecureSkipVerify"])
def test_options_of_tls_are_refused_without_tls(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name} is given and TLS is not: set tls=true"):
        parse_settings({"nsqd": "a", "subscribe": "t", name: "true"}, streaming=False)
    given = {"nsqd": "https://a", "subscribe": "t", name: "true"}
    assert parse_settings(given, streaming=False).connection.nsqd == ("https://a:4151",)
