"""TLS, compression, AUTH, unix sockets: both faces, producer and consumer, on a real broker."""

from __future__ import annotations

from typing import Any

import pytest

from pyqd.client import AuthenticationError, NotConnectedError, RefusedError, SettingError, TlsError
from pyqd.testing import BrokerProcess
from tests.support.authd import Answer, AuthServer, entry, state
from tests.support.certificates import certify
from tests.support.server import Daemon, pyqd, running

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

WAIT_S = 20.0
# Larger than one record of TLS, one chunk of snappy and one read of a socket.
BODIES = [b"small", bytes(range(256)) * 2000, b"x" * 900_000]


@pytest.fixture(scope="module")
def secured(certificates, tmp_path_factory):
    """A broker that requires TLS."""
    flags = (*certificates.server_flags(), "-https-address=127.0.0.1:0", "-tls-required")
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("tls"), flags)) as daemon:
        yield f"127.0.0.1:{daemon.tcp_port}"


@pytest.fixture(scope="module")
def mutual(certificates, tmp_path_factory):
    """A broker that requires a certificate of the client."""
    flags = (
        *certificates.server_flags(),
        "-https-address=127.0.0.1:0",
        "-tls-required",
        f"-tls-root-ca-file={certificates.authority.path}",
        "-tls-client-auth-policy=require-verify",
    )
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("mutual"), flags)) as daemon:
        yield f"127.0.0.1:{daemon.tcp_port}"


def assert_passes(face, address, topic, **options):
    """Assert that messages go through, in both directions."""
    producer = face.producer(address, **options)
    producer.publish_many(topic, BODIES[:2])
    producer.publish(topic, BODIES[2])
    # Without compiled code the checksums of snappy take long on a busy machine, and a message would come twice.
    consumer = face.consumer(topic, nsqd=address, max_in_flight=10, msg_timeout=30.0, **options)
    got: list[Any] = []
    while len(got) < 3:
        messages = consumer.fetch(3, WAIT_S)
        assert messages
        got += [message.body for message in messages]
        consumer.finish_many(messages)
    assert sorted(got) == sorted(BODIES)
    assert consumer.drain(WAIT_S) is True
    producer.close()


class TestTls:
    def test_messages_pass_over_tls(self, face, secured, certificates, topic):
        assert_passes(face, secured, topic, tls=True, tls_ca=str(certificates.authority.path))

    def test_a_context_may_be_given(self, face, secured, certificates, topic):
        assert_passes(face, secured, topic, tls=certificates.client_context())

    def test_a_url_may_ask_for_it(self, face, secured, certificates, topic):
        producer = face.producer(f"nsq://{secured}?tls=true&tls_ca={certificates.authority.path}")
        producer.publish(topic, b"x")

    @pytest.mark.parametrize("compression", ["snappy", "deflate"])
    def test_messages_pass_with_compression_inside_tls(self, face, secured, certificates, topic, compression):
        options = {"tls": True, "tls_ca": str(certificates.authority.path), "compression": compression}
        assert_passes(face, secured, topic, **options)

    def test_an_unknown_authority_is_an_error_at_once(self, face, secured, topic):
        producer = face.producer(secured, tls=True)
        with pytest.raises(TlsError, match="certificate"):
            producer.publish(topic, b"x")
        with pytest.raises(TlsError, match="certificate"):
            face.consumer(topic, nsqd=secured, tls=True).fetch(1, WAIT_S)

    def test_a_name_that_is_not_the_broker_s(self, face, secured, certificates, topic):
        options = {"tls": True, "tls_ca": str(certificates.authority.path), "tls_server_name": "another"}
        with pytest.raises(TlsError, match=r"another|mismatch"):
            face.producer(secured, **options).publish(topic, b"x")

    def test_without_verification_anything_goes(self, face, secured, topic):
        assert_passes(face, secured, topic, tls=True, tls_verify=False)

    def test_a_broker_without_tls(self, face, daemon, topic):
        with pytest.raises(TlsError, match="no TLS"):
            face.producer(f"127.0.0.1:{daemon.tcp_port}", tls=True).publish(topic, b"x")

    def test_a_broker_that_requires_it_says_so(self, face, secured, topic):
        producer = face.producer(secured, timeout=1.0)
        with pytest.raises((RefusedError, NotConnectedError), match=r"TLS|tls"):
            producer.publish(topic, b"x")

    def test_a_file_that_does_not_exist(self, face, secured, tmp_path):
        with pytest.raises(SettingError, match="tls_ca"):
            face.producer(secured, tls=True, tls_ca=str(tmp_path / "none"))
        with pytest.raises(SettingError, match="tls_ca"):
            face.consumer("t", nsqd=secured, tls=True, tls_ca=str(tmp_path / "none"))

    def test_a_connection_that_ends_in_the_handshake(self, face, scripted):
        scripted.info = {"tls_v1": True}
        scripted.after_identify = b"\x15\x03\x03\x00\x02\x02\x28"
        with pytest.raises(TlsError, match=r"(?i)handshake|alert|tls"):
            face.producer(scripted.address, tls=True).publish("t", b"x")


class TestMutualTls:
    def test_messages_pass_with_a_certificate_of_the_client(self, face, mutual, certificates, topic):
        files = {"tls_cert": str(certificates.client.path), "tls_key": str(certificates.client.key_path)}
        assert_passes(face, mutual, topic, tls=True, tls_ca=str(certificates.authority.path), **files)

    def test_a_client_without_a_certificate_is_refused(self, face, mutual, certificates, topic):
        producer = face.producer(mutual, tls=True, tls_ca=str(certificates.authority.path), timeout=2.0)
        with pytest.raises((TlsError, NotConnectedError), match=r"(?i)certificate|alert|reset|closed"):
            producer.publish(topic, b"x")

    def test_a_certificate_of_another_authority_is_refused(self, face, mutual, certificates, tmp_path, topic):
        stranger = certify(tmp_path, "other")
        context = certificates.client_context(stranger)
        producer = face.producer(mutual, tls=context, timeout=2.0)
        with pytest.raises((TlsError, NotConnectedError), match=r"(?i)certificate|alert|unknown|reset|closed"):
            producer.publish(topic, b"x")

    def test_a_key_without_a_certificate(self, face, mutual):
        with pytest.raises(SettingError, match="together"):
            face.producer(mutual, tls=True, tls_key="key.pem")


class TestCompression:
    @pytest.mark.parametrize("options", [{"compression": "snappy"}, {"compression": "deflate", "deflate_level": 1}])
    def test_messages_pass_with_each_compression(self, face, address, topic, options):
        assert_passes(face, address, topic, **options)

    def test_a_broker_that_does_not_offer_it(self, face, scripted):
        with pytest.raises(RefusedError, match="offers no snappy"):
            face.producer(scripted.address, compression="snappy").publish("t", b"x")

    def test_an_unknown_compression_is_an_error_of_the_settings(self, face, address):
        with pytest.raises(SettingError, match="compression"):
            face.producer(address, compression="gzip")


class TestUnixSocket:
    @pytest.fixture
    def path(self, tmp_path):
        """Path of the socket of a broker."""
        path = tmp_path / "pyqd.sock"
        with BrokerProcess(tmp_path, (f"--tcp-address={path}",)):
            yield str(path)

    @pytest.mark.slow
    def test_messages_pass_through_a_unix_socket(self, face, path, topic):
        assert_passes(face, path, topic)

    @pytest.mark.slow
    def test_a_url_may_name_it(self, face, path, topic):
        face.producer(f"nsq://{path}").publish(topic, b"x")


class TestAuth:
    @pytest.fixture
    def broker_with_auth(self, tmp_path):
        def answer(query):
            rights = {"all": entry(), "reader": entry(permissions="subscribe"), "one": entry(topic="^allowed$")}
            return state(rights[query.secret]) if query.secret in rights else Answer(403, b"")

        server = AuthServer(answer)
        try:
            with running(Daemon(pyqd(), tmp_path, (f"-auth-http-address={server.address}",))) as daemon:
                yield f"127.0.0.1:{daemon.tcp_port}"
        finally:
            server.stop()

    def test_messages_pass_with_the_right_secret(self, face, broker_with_auth, topic):
        assert_passes(face, broker_with_auth, topic, auth_secret="all")

    def test_a_url_may_hold_the_secret(self, face, broker_with_auth, topic):
        face.producer(f"nsq://:all@{broker_with_auth}").publish(topic, b"x")

    @pytest.mark.parametrize("options", [{}, {"auth_secret": "wrong"}])
    def test_a_wrong_secret_is_an_error_at_once(self, face, broker_with_auth, topic, options):
        with pytest.raises(AuthenticationError):
            face.producer(broker_with_auth, **options).publish(topic, b"x")
        with pytest.raises(AuthenticationError):
            face.consumer(topic, nsqd=broker_with_auth, **options).fetch(1, WAIT_S)

    def test_rights_that_do_not_suffice(self, face, broker_with_auth, topic):
        with pytest.raises(AuthenticationError, match="E_UNAUTHORIZED"):
            face.producer(broker_with_auth, auth_secret="reader").publish(topic, b"x")
        producer = face.producer(broker_with_auth, auth_secret="one")
        producer.publish("allowed", b"x")
        with pytest.raises(AuthenticationError, match="E_UNAUTHORIZED"):
            producer.publish("other", b"x")
        producer.publish("allowed", b"y")
        with pytest.raises(AuthenticationError, match="E_UNAUTHORIZED"):
            face.consumer("other", nsqd=broker_with_auth, auth_secret="one").fetch(1, WAIT_S)


class TestLocalAddress:
    @pytest.mark.parametrize("local", ["127.0.0.2", "127.0.0.2:0"])
    def test_connections_come_from_it(self, face, daemon, topic, local):
        consumer = face.consumer(topic, nsqd=f"127.0.0.1:{daemon.tcp_port}", local_address=local)
        consumer.connect()
        daemon.wait_for_channel(topic, "c", client_count=1)
        (client,) = daemon.channel(topic, "c")["clients"]
        assert client["remote_address"].startswith("127.0.0.2:")

    def test_one_of_another_machine_is_an_error(self, face, daemon):
        with pytest.raises(NotConnectedError, match="Cannot assign requested address"):
            face.producer(f"127.0.0.1:{daemon.tcp_port}", local_address="192.0.2.1").connect()

    @pytest.mark.parametrize("local", ["localhost:0", "nonsense", "127.0.0.1:x", ":80"])
    def test_anything_else_is_refused(self, face, local):
        with pytest.raises(SettingError, match="local_address"):
            face.producer("127.0.0.1:4150", local_address=local)
