"""Token and secret of the connector: they go to the brokers that its options name."""

from __future__ import annotations

import pytest

from pyqd_spark.brokers import BrokerClient, find_brokers
from pyqd_spark.options import CONNECTION, BrokerOptions, OptionError, parse_options
from tests.support.http_stub import http_stub, json_answer, lookup_answers


def connection(**given: str) -> BrokerOptions:
    return BrokerOptions.of("pyqd", parse_options("pyqd", given, CONNECTION))


def test_a_broker_of_a_lookup_daemon_gets_the_token_only_if_it_is_named() -> None:
    with http_stub(lambda *_: json_answer({})) as broker, http_stub(lookup_answers({"t": [broker.address]})) as lookupd:
        for trusted, has_token in (("10.0.0.0/8", False), (f"a, {broker.address}", True), ("127.0.0.0/8", True)):
            made = connection(lookupd=lookupd.address, token="secret", trustedBrokers=trusted)
            made = BrokerOptions.of("pyqd", parse_options("pyqd", made.given(), CONNECTION))
            broker.tokens.clear()
            (address,) = find_brokers(made, "t").addresses
            with BrokerClient(address, made) as client:
                client.json("/info")
            assert ("Bearer secret" in broker.tokens) is has_token
            assert made.may_have_secrets(address) is has_token
        assert "Bearer secret" in lookupd.tokens


def test_a_text_that_names_no_broker_is_refused() -> None:
    with pytest.raises(OptionError, match=r"option trustedBrokers='10.0.0.0/99'.*expected host, host:port"):
        connection(lookupd="a:1", trustedBrokers="10.0.0.0/99")
