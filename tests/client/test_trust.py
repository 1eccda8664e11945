"""Brokers that may get a token, and the token's way over HTTP."""

from __future__ import annotations

import pytest

from pyqd.client.errors import SettingError
from pyqd.client.http import HttpClient
from pyqd.client.trust import TrustedBrokers
from tests.support.http_stub import Answer, http_stub, json_answer


@pytest.mark.parametrize(
    ("entry", "known", "unknown"),
    [
        ("broker-1", "broker-1:4151", "broker-10:4151"),
        ("Broker-1", "broker-1.:4151", "broker-1.evil.org:4151"),
        ("broker-1:4151", "http://broker-1:4151", "broker-1:80"),
        ("*.brokers.org", "https://a.brokers.org:1", "brokers.org.evil.org:4151"),
        ("10.0.0.0/8", "10.1.2.3:4151", "11.0.0.1:4151"),
        ("10.0.0.5", "10.0.0.5:9", "10.0.0.50:9"),
        ("10.0.0.0/8", "10.1.2.3:4151", "10.1.2.3.evil.org:4151"),
        ("[fd00::1]:4151", "[fd00::1]:4151", "[fd00::2]:4151"),
        ("fd00::/16", "[fd00::1]:4151", "[fe00::1]:4151"),
        ("https://broker-1:4152", "https://broker-1:4152", "broker-1:4151"),
    ],
)
def test_only_named_brokers_are_trusted(entry: str, known: str, unknown: str) -> None:
    trusted = TrustedBrokers([entry])
    assert (trusted.has(known), trusted.has(unknown)) == (True, False)
    assert not TrustedBrokers().has(known)


@pytest.mark.parametrize("entry", ["", "10.0.0.0/33", "http://a/b", "a b/c", "ftp://a"])
def test_what_names_no_broker_is_refused_with_the_forms_that_do(entry: str) -> None:
    with pytest.raises(SettingError, match=r"expected host, host:port, \*\.domain or a network"):
        TrustedBrokers([entry])


def test_a_daemon_that_takes_https_only_never_gets_the_token_in_clear() -> None:
    def refuse(_path: str, _query: dict[str, str]) -> Answer:
        return json_answer({"message": "TLS_REQUIRED", "https_port": 4152}, 403)

    with http_stub(refuse) as stub, HttpClient(stub.address, token="secret") as client:
        for _ in range(2):
            assert client.request("GET", "/stats").status == 403
        assert stub.tokens == [None, None]


def test_a_daemon_that_takes_http_gets_the_token_also_if_it_closes_after_each_answer() -> None:
    def answer(_path: str, _query: dict[str, str]) -> Answer:
        status, headers, body = json_answer({}) or (0, {}, b"")
        return status, {**headers, "Connection": "close"}, body

    with http_stub(answer) as stub, HttpClient(stub.address, token="secret") as client:
        for _ in range(2):
            assert client.request("GET", "/stats", retry=False).status == 200
        assert stub.tokens == [None, "Bearer secret"] * 2
        assert [path for path, _query in stub.requests] == ["/ping", "/stats"] * 2
