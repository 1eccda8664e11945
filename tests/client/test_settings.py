"""Settings, addresses and URLs: wrong ones are refused with advice, and TLS is never off by accident."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from pyqd.client import Consumer, Producer, SettingError, Settings
from pyqd.client.settings import make_settings, parse_targets
from tests.support.certificates import Certificate, certify

PASSWORD = "sesame"


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return certify(tmp_path, "client")


@pytest.fixture
def encrypted(certificate: Certificate) -> dict[str, Any]:
    """Options of a client whose key is encrypted."""
    certificate.key_path.write_bytes(
        certificate.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(PASSWORD.encode()),
        )
    )
    return {"tls": True, "tls_cert": str(certificate.path), "tls_key": str(certificate.key_path)}


class TestTls:
    def test_an_encrypted_key_without_its_password_is_refused_without_a_prompt(self, encrypted):
        with pytest.raises(SettingError, match=r"client\.key is encrypted: give tls_key_password="):
            Settings(**encrypted).ssl_context()

    def test_a_wrong_password_is_refused(self, encrypted):
        with pytest.raises(SettingError, match="is tls_key_password right"):
            Settings(**encrypted, tls_key_password="open").ssl_context()

    def test_the_password_decrypts_the_key(self, encrypted):
        assert isinstance(Settings(**encrypted, tls_key_password=PASSWORD).ssl_context(), ssl.SSLContext)

    def test_files_may_be_paths(self, certificate):
        settings = Settings(tls=True, tls_ca=certificate.path, tls_cert=certificate.path, tls_key=certificate.key_path)
        assert isinstance(settings.ssl_context(), ssl.SSLContext)

    @pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_key", "tls_key_password", "tls_server_name"])
    def test_an_option_of_tls_without_tls_is_refused(self, name):
        with pytest.raises(SettingError, match=f"{name} is given, but TLS is off: add tls=True"):
            make_settings({name: "x"})

    @pytest.mark.slow
    def test_files_beside_a_context_are_refused(self):
        with pytest.raises(SettingError, match="load the files into the context"):
            Settings(tls=ssl.create_default_context(), tls_ca="ca.pem")
        Settings(tls=ssl.create_default_context(), tls_server_name="broker")

    @pytest.mark.parametrize("value", ["false", 1, None])
    def test_tls_is_true_false_or_a_context(self, value):
        with pytest.raises(SettingError, match="expected True, False or an ssl"):
            make_settings({"tls": value})


class TestSecrets:
    def test_no_secret_is_shown(self):
        names = ("auth_secret", "lookupd_token", "http_token", "tls_key_password")
        settings = make_settings({"tls": True, **{name: f"hidden {name}" for name in names}})
        assert "hidden" not in repr(settings)

    def test_a_wrong_secret_is_not_shown(self):
        with pytest.raises(SettingError, match="auth_secret: expected text, not bytes") as raised:
            make_settings({"auth_secret": b"hidden"})
        assert "hidden" not in str(raised.value)

    @pytest.mark.parametrize("url", ["nsqd://:hidden@host", "nsq://user:hidden@host/orders", "http://:hid@den@[::1"])
    def test_a_wrong_url_is_shown_without_its_secret(self, url):
        with pytest.raises(SettingError, match=r"//\.\.\.@") as raised:
            parse_targets(url, None)
        assert "hid" not in str(raised.value)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("max_inflight", "; did you mean max_in_flight?"),
            ("heartbeat", "; did you mean heartbeat_interval?"),
            ("nsqd_tcp_addresses", "; did you mean nsqd?"),
            ("lookupd_http_addresses", "; did you mean lookupd?"),
            ("max_tries", "; did you mean retry?"),
            ("quux", ""),
        ],
    )
    def test_an_unknown_option_is_named_with_the_nearest_one(self, name, hint):
        options: dict[str, Any] = {name: 1}
        with pytest.raises(SettingError) as raised:
            Consumer("topic", "channel", **options)
        assert str(raised.value) == f"unknown option {name}{hint}"

    def test_a_parameter_in_a_url_is_no_setting(self):
        with pytest.raises(SettingError, match="max_in_flight: it is a parameter of Consumer"):
            parse_targets("nsq://host?max_in_flight=5", None)

    def test_a_url_has_the_timeout_of_producers_and_serves_consumers_too(self):
        for made in (Producer("nsq://host?timeout=2.5"), Producer("nsq://host?timeout=60", timeout=2.5)):
            assert made.timeout == 2.5
            made.close()
        Consumer("topic", "channel", "nsq://host?timeout=2.5").close()
        options: dict[str, Any] = {"timeout": 2.5}
        with pytest.raises(SettingError, match="timeout: it is a parameter of Producer"):
            Consumer("topic", "channel", "host", **options)
        with pytest.raises(SettingError, match="timeout=0"):
            parse_targets("nsq://host?timeout=0", None)


class TestValues:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("client_id", 5),
            ("compression", "gzip"),
            ("connect_timeout", "5"),
            ("heartbeat_interval", float("nan")),
            ("msg_timeout", "60"),
            ("not_connected_timeout", "1"),
            ("not_connected_timeout", 0),
            ("output_buffer_size", "16384"),
            ("output_buffer_timeout", -0.5),
            ("reconnect_max", None),
            ("reconnect_first", 20.0),
        ],
    )
    def test_a_wrong_value_is_refused_by_the_option_s_name(self, name, value):
        with pytest.raises(SettingError, match=name):
            make_settings({name: value})

    @pytest.mark.parametrize("count", ["3", 0, -1, 1.5, True, None])
    def test_max_in_flight_is_a_number_from_1(self, count):
        with pytest.raises(SettingError, match="max_in_flight="):
            Consumer("topic", "channel", nsqd="127.0.0.1:4150", max_in_flight=count)


class TestAddresses:
    @pytest.mark.parametrize(
        ("address", "text"),
        [
            ("4150", "'4150': expected host:port"),
            (4150, "4150: expected text"),
            (("127.0.0.1", 4150), "4150: expected text"),
            (b"127.0.0.1:4150", "expected text"),
            ("127.0.0.1:41500000", "invalid port, in '127.0.0.1:41500000'"),
            ("host:", "expected host:port"),
            ("two hosts", "expected host:port"),
            ("http://127.0.0.1:4151", "the client uses the broker's TCP port"),
            ("nsqd://host", "expected a URL such as nsq://host:4150"),
            ("nsq://[::1", "Invalid IPv6 URL"),
            ("nsq://host/orders", "a URL with a host has no path"),
            ("nsq://host?tls=maybe", "option tls='maybe': expected true or false"),
        ],
    )
    def test_a_wrong_address_is_refused_with_advice(self, address, text):
        with pytest.raises(SettingError) as raised:
            parse_targets(address, None)
        assert text in str(raised.value)
