"""Options of NSQ's Go client, by name, become settings of pyqd.client."""

from __future__ import annotations

import ssl

import pytest

from pyqd.client.aio import Consumer, Producer
from pyqd.client.errors import SettingError
from pyqd.client.settings import make_settings
from pyqd.tools.client_options import BOOL, DURATION, OPTIONS, ClientOptions, parse_client_option

AGENT = "tool/1"


def options(*texts: str) -> ClientOptions:
    return ClientOptions.of([parse_client_option(text) for text in texts], AGENT)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("bogus,1", "invalid option bogus"),
        ("max_atempts,3", "invalid option max_atempts; did you mean max_attempts?"),
        ("dial_timeout,5x", 'failed to coerce option dial_timeout (5x) - time: unknown unit "x" in duration "5x"'),
        ("dial_timeout", 'failed to coerce option dial_timeout (true) - time: invalid duration "true"'),
        ("tls_v1,maybe", "failed to coerce option tls_v1 (maybe) - parse error"),
        ("sample_rate,100", "invalid sample_rate ! 100 > 99"),
        ("sample_rate,-1", "invalid sample_rate ! -1 < 0"),
        ("read_timeout,1ms", "invalid read_timeout ! 1ms < 100ms"),
        ("low_rdy_idle_timeout,1ms", "invalid low_rdy_idle_timeout ! 1ms < 1s"),
        ("deflate_level,0", "invalid deflate_level ! 0 < 1"),
        ("lookupd_poll_jitter,2", "invalid lookupd_poll_jitter ! 2 > 1"),
        ("lookupd_poll_jitter,nan", "invalid lookupd_poll_jitter ! nan < 0"),
        ("max_attempts,70000", "invalid max_attempts ! 70000 > 65535"),
        ("local_addr,x", "failed to coerce option local_addr (x) - address x: missing port in address"),
        (
            "backoff_strategy,linear",
            "failed to coerce option backoff_strategy (linear) - expected exponential or full_jitter",
        ),
        (
            "tls_root_ca_file,/nope",
            "failed to coerce option tls_root_ca_file (/nope) - cannot read /nope: No such file or directory",
        ),
    ],
)
def test_a_wrong_option_is_refused_with_the_words_of_the_go_client(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=r"invalid|failed") as caught:
        parse_client_option(text)
    assert str(caught.value) == error


def test_durations_are_go_texts_or_milliseconds() -> None:
    keywords = options("dial_timeout,1500ms", "heartbeat-interval,2000", "msg_timeout,1m").consumer_keywords()
    assert (keywords["connect_timeout"], keywords["heartbeat_interval"], keywords["msg_timeout"]) == (1.5, 2.0, 60.0)


@pytest.mark.parametrize(("text", "on_the_wire"), [("-1ms", -1), ("-1000000ns", -1), ("0", None), ("30ms", 30)])
def test_the_broker_s_buffer_may_have_no_timeout(text: str, on_the_wire: int | None) -> None:
    keywords = options(f"output_buffer_timeout,{text}").producer_keywords()
    assert make_settings(keywords).identity().get("output_buffer_timeout") == on_the_wire


def test_an_option_without_a_value_is_true() -> None:
    assert options("tls_v1").producer_keywords()["tls"] is True


def test_the_last_value_of_an_option_wins() -> None:
    assert options("client_id,a", "client_id,b,c").producer_keywords()["client_id"] == "b,c"


def test_the_tool_sets_its_own_user_agent_and_number_of_messages_in_flight() -> None:
    keywords = options("user_agent,other", "max_in_flight,7").consumer_keywords()
    assert keywords["user_agent"] == AGENT
    assert "max_in_flight" not in keywords


def test_back_off_and_requeues_are_those_of_the_go_client() -> None:
    default = options().consumer_keywords()
    assert (default["backoff"], default["backoff_jitter"]) == (120.0, False)
    assert (default["retry"].delay, default["retry"].max_delay) == (90.0, 900.0)
    given = options("backoff_strategy,full_jitter", "max_backoff_duration,0", "default_requeue_delay,1s")
    keywords = given.consumer_keywords()
    assert (keywords["backoff"], keywords["backoff_jitter"], keywords["retry"].delay) == (0.0, True, 1.0)


def test_the_secret_goes_to_lookup_daemons_unless_that_is_off() -> None:
    assert options("auth_secret,s").consumer_keywords()["lookupd_token"] == "s"
    assert "lookupd_token" not in options("auth_secret,s", "skip_lookupd_authorization,false").consumer_keywords()


def test_a_minimum_version_of_tls_is_that_of_the_context() -> None:
    context = options("tls_v1", "tls_min_version,tls1.2", "tls_insecure_skip_verify").producer_keywords()["tls"]
    assert (context.minimum_version, context.verify_mode) == (ssl.TLSVersion.TLSv1_2, ssl.CERT_NONE)


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (("heartbeat_interval,90s",), "HeartbeatInterval must be less than ReadTimeout"),
        (("deflate", "snappy"), "cannot enable both deflate and snappy compression"),
    ],
)
def test_options_that_contradict_each_other_are_refused(texts: tuple[str, ...], error: str) -> None:
    with pytest.raises(SettingError, match=error):
        options(*texts)


VALUES = {
    "backoff_strategy": "full_jitter",
    "tls_min_version": "tls1.2",
    "local_addr": "127.0.0.1:0",
    "lookupd_poll_jitter": "0.5",
    "read_timeout": "1m",
}
VALUES_OF_TYPES = {DURATION: "5s", BOOL: "true"}
FILES = {"tls_root_ca_file", "tls_cert", "tls_key"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - FILES))
def test_each_option_makes_a_valid_producer_and_consumer(name: str) -> None:
    value = VALUES.get(name) or VALUES_OF_TYPES.get(OPTIONS[name].type, "5")
    given = options(f"{name},{value}")
    producer = Producer("127.0.0.1:4150", **given.producer_keywords())
    consumer = Consumer("t", "c", nsqd="127.0.0.1:4150", **given.consumer_keywords())
    assert producer.settings.user_agent == consumer.settings.user_agent == AGENT
    for made in (producer, consumer):
        made._at_exit()
