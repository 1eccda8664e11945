"""Discovery: addresses of lookup daemons, their answers, and the schedule of polls."""

import contextlib
import json
import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyqd.client.core import discovery
from pyqd.client.core.discovery import (
    BrokerAddress,
    LookupSchedule,
    TopicUnknownError,
    lookup_url,
    parse_lookup_addresses,
    parse_lookup_answer,
)
from pyqd.client.errors import LookupFailedError, SettingError

PLAIN = {"X-NSQ-Content-Type": "nsq; version=1.0"}


def entry(**fields):
    plain = {
        "remote_address": "10.0.0.9:51234",
        "hostname": "host-1",
        "broadcast_address": "broker-1",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
    }
    return {**plain, **fields}


def answer(*entries):
    return {"channels": ["c"], "producers": list(entries)}


def parse(value, headers=PLAIN, status=200):
    return parse_lookup_answer(status, headers, json.dumps(value).encode())


def json_objects(inner):
    names = st.sampled_from(
        ["producers", "data", "status_code", "broadcast_address", "tcp_port", "remote_address", "x"]
    )
    return st.dictionaries(names, inner | st.integers(-1, 70000))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | json_objects(inner)
)


class TestAddresses:
    @pytest.mark.parametrize(
        ("given", "url"),
        [
            ("127.0.0.1:4161", "http://127.0.0.1:4161/lookup"),
            (" lookup:4161 ", "http://lookup:4161/lookup"),
            ("[::1]:4161", "http://[::1]:4161/lookup"),
            ("http://lookup:4161", "http://lookup:4161/lookup"),
            ("http://lookup:4161/", "http://lookup:4161/lookup"),
            ("https://lookup:4162", "https://lookup:4162/lookup"),
            ("https://[2001:db8::1]:4162/a/lookup", "https://[2001:db8::1]:4162/a/lookup"),
            ("https://proxy:443/nsq/lookup?zone=b", "https://proxy:443/nsq/lookup?zone=b"),
        ],
    )
    def test_an_address_becomes_a_url(self, given, url):
        assert parse_lookup_addresses([given]) == (url,)

    def test_duplicates_count_once_in_whichever_form(self):
        values = ["a:4161", "http://a:4161", "b:4161", "A:4161/lookup", "a:4161"]
        assert parse_lookup_addresses(values) == ("http://a:4161/lookup", "http://b:4161/lookup")

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ("lookup", "missing port"),
            ("https://lookup/lookup", "missing port"),
            ("[::1]", "missing port"),
            ("lookup:", "missing port"),
            ("lookup:0", "port 0"),
            ("lookup:x", "Port could not be cast"),
            ("lookup:65536", "Port out of range"),
            ("", "missing host"),
            (":4161", "missing host"),
            ("a b:4161", "missing host"),
            ("ftp://lookup:4161", "scheme 'ftp'"),
            ("[::1:4161", "Invalid IPv6 URL"),
        ],
    )
    def test_an_address_that_cannot_be_asked_is_refused(self, given, text):
        with pytest.raises(SettingError, match=text):
            parse_lookup_addresses(["ok:4161", given])

    def test_a_password_is_refused_and_not_shown(self):
        with pytest.raises(SettingError) as raised:
            parse_lookup_addresses(["http://me:s3cret@lookup:4161"])
        assert "s3cret" not in str(raised.value)

    def test_a_query_names_the_topic(self):
        assert lookup_url("http://a:4161/lookup", "orders#ephemeral") == "http://a:4161/lookup?topic=orders%23ephemeral"
        assert lookup_url("http://a:4161/lookup?zone=b", "t") == "http://a:4161/lookup?zone=b&topic=t"

    def test_a_query_without_a_topic_is_for_all_brokers(self):
        assert lookup_url("http://a:4161/lookup", None) == "http://a:4161/nodes"
        assert lookup_url("https://proxy:443/nsq/lookup?zone=b", None) == "https://proxy:443/nsq/nodes?zone=b"


class TestAnswers:
    def test_the_object_itself_as_it_is_since_1_0(self):
        assert parse(answer(entry())) == [BrokerAddress("broker-1", 4150, 4151, "host-1", "1.3.0")]

    def test_the_wrapped_object_of_before(self):
        wrapped = {"status_code": 200, "status_txt": "OK", "data": answer(entry())}
        assert [broker.host for broker in parse(wrapped, headers={})] == ["broker-1"]

    def test_names_of_headers_have_any_case_and_may_be_lost(self):
        for headers in ({"x-nsq-content-type": "nsq; version=1.0"}, {"Content-Type": "application/json"}):
            assert len(parse(answer(entry()), headers)) == 1

    def test_an_answer_without_brokers_names_none(self):
        assert parse({"channels": [], "producers": []}) == []
        assert parse({"channels": None, "producers": None}) == []

    def test_a_broker_that_is_named_twice_counts_once_and_the_order_stays(self):
        brokers = parse(answer(entry(version="1"), entry(broadcast_address="b"), entry(version="2"), entry(tcp_port=5)))
        assert [(broker.host, broker.tcp_port) for broker in brokers] == [
            ("broker-1", 4150),
            ("b", 4150),
            ("broker-1", 5),
        ]
        assert brokers[0].version == "1"

    def test_an_ipv6_address_of_a_broker_is_taken(self):
        assert parse(answer(entry(broadcast_address="2001:db8::7")))[0].host == "2001:db8::7"

    @pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", ""])
    def test_a_wildcard_is_replaced_by_the_address_that_the_lookup_daemon_saw(self, wildcard):
        assert parse(answer(entry(broadcast_address=wildcard)))[0].host == "10.0.0.9"
        remote = entry(broadcast_address=wildcard, remote_address="[2001:db8::9]:4444")
        assert parse(answer(remote))[0].host == "2001:db8::9"

    @pytest.mark.parametrize(
        "fields",
        [
            {"tcp_port": 0},
            {"tcp_port": 65536},
            {"tcp_port": -1},
            {"broadcast_address": "", "remote_address": ""},
            {"broadcast_address": "a\0b"},
            {"broadcast_address": "a\nb"},
            {"broadcast_address": "\ud800"},
            {"broadcast_address": "", "remote_address": "a\0b:1"},
        ],
    )
    def test_a_broker_that_nobody_could_connect_to_is_left_out_with_one_warning(self, fields, caplog):
        discovery._warn_of.cache_clear()
        with caplog.at_level(logging.WARNING, "pyqd.client"):
            for _ in range(3):
                brokers = parse(answer(entry(**fields), entry(broadcast_address="b")))
        assert [broker.host for broker in brokers] == ["b"]
        assert caplog.text.count("cannot use a broker") == 1

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ([], "not an object"),
            (None, "not an object"),
            ({}, "no list of producers"),
            ({"producers": {}}, "no list of producers"),
            ({"producers": "broker"}, "no list of producers"),
            (answer("broker"), "not an object: 'broker'"),
            (answer(entry(broadcast_address=7)), "broadcast_address .* not text"),
            (answer(entry(broadcast_address=None)), "broadcast_address .* not text"),
            (answer(entry(tcp_port="4150")), "tcp_port .* no number"),
            (answer(entry(tcp_port=True)), "tcp_port .* no number"),
            (answer(entry(tcp_port=1.5)), "tcp_port .* no number"),
            (answer(entry(http_port=None)), "http_port .* no number"),
        ],
    )
    def test_a_malformed_answer_is_an_error(self, value, text):
        with pytest.raises(LookupFailedError, match=text):
            parse(value)

    @pytest.mark.parametrize(
        "body", [b"", b"OK", b"{", b"<html>busy</html>", b'{"producers":[', b"\xff\xfe", b"[" * 100_000]
    )
    def test_a_body_that_is_not_json_is_an_error_that_quotes_its_beginning(self, body):
        with pytest.raises(LookupFailedError, match="not JSON") as raised:
            parse_lookup_answer(200, PLAIN, body)
        assert len(str(raised.value)) < 300

    @pytest.mark.parametrize("status", [204, 302, 403, 404, 500])
    def test_another_status_is_an_error(self, status):
        with pytest.raises(LookupFailedError, match=f"answered {status}: busy") as raised:
            parse_lookup_answer(status, {}, b"busy")
        assert not isinstance(raised.value, TopicUnknownError)
        # A broker's HTTP port answers so.
        assert ("HTTP address, port 4161 by default?" in str(raised.value)) is (status == 404)

    def test_an_unknown_topic_is_an_error_of_its_own_in_both_formats(self):
        with pytest.raises(TopicUnknownError):
            parse({"message": "TOPIC_NOT_FOUND"}, status=404)
        with pytest.raises(TopicUnknownError):
            parse({"status_code": 404, "status_txt": "TOPIC_NOT_FOUND", "data": None}, headers={})

    @pytest.mark.parametrize(
        "wrapped",
        [{"status_code": 200, "data": None}, {"status_code": 200, "data": []}, {"status_code": 500, "status_txt": "X"}],
    )
    def test_a_wrapper_around_nothing_is_an_error(self, wrapped):
        with pytest.raises(LookupFailedError):
            parse(wrapped, headers={})

    @pytest.mark.slow
    @given(JSON_VALUES)
    def test_any_json_gives_brokers_or_the_one_error(self, value):
        for headers in (PLAIN, {}):
            try:
                brokers = parse(value, headers)
            except LookupFailedError:
                continue
            assert all(broker.host and 0 < broker.tcp_port <= 65535 for broker in brokers)

    @given(st.binary(max_size=200), st.integers(100, 599))
    def test_any_body_gives_brokers_or_the_one_error(self, body, status):
        with contextlib.suppress(LookupFailedError):
            assert isinstance(parse_lookup_answer(status, PLAIN, body), list)


def wait_s(schedule, now):
    return schedule.next_poll_s(now) - now


class TestSchedule:
    def schedule(self, *addresses, interval_s=60.0, jitter=0.0, seed=1):
        return LookupSchedule(addresses, interval_s, jitter, random.Random(seed))

    def ask(self, schedule, now):
        assert wait_s(schedule, now) == 0.0
        return schedule.begin(now)

    def test_the_first_poll_is_due_at_once_and_the_next_ones_every_interval(self):
        schedule = self.schedule("a")
        for now in (100.0, 160.0, 220.0):
            assert self.ask(schedule, now) == "a"
            schedule.succeeded(now + 2.0)
            assert wait_s(schedule, now + 2.0) == 58.0

    def test_polls_go_round_the_addresses(self):
        schedule = self.schedule("a", "b", "c")
        asked = []
        for turn in range(5):
            asked.append(self.ask(schedule, 60.0 * turn))
            schedule.succeeded(60.0 * turn)
        assert asked == ["a", "b", "c", "a", "b"]

    def test_jitter_shifts_all_polls_but_the_first_once(self):
        shifts = set()
        for seed in range(20):
            schedule = self.schedule("a", jitter=0.5, seed=seed)
            self.ask(schedule, 0.0)
            schedule.succeeded(0.0)
            second = wait_s(schedule, 0.0)
            shifts.add(second - 60.0)
            self.ask(schedule, second)
            schedule.succeeded(second)
            assert wait_s(schedule, second) == pytest.approx(60.0)
        assert len(shifts) == 20
        assert min(shifts) >= 0.0
        assert 15.0 < max(shifts) < 30.0

    def test_after_an_error_the_next_address_is_asked_at_once_but_at_most_three(self):
        schedule = self.schedule("a", "b", "c", "d")
        asked = []
        for _ in range(3):
            asked.append(self.ask(schedule, 5.0))
            schedule.failed(5.0)
        assert asked == ["a", "b", "c"]
        assert 0.5 <= wait_s(schedule, 5.0) <= 1.0
        assert self.ask(schedule, 6.0) == "d"

    def test_an_address_is_asked_once_in_a_poll(self):
        schedule = self.schedule("a", "b")
        for address in ("a", "b"):
            assert self.ask(schedule, 0.0) == address
            schedule.failed(0.0)
        assert wait_s(schedule, 0.0) > 0.0

    def test_polls_without_an_answer_are_repeated_ever_later_up_to_the_interval(self):
        schedule = self.schedule("a", interval_s=10.0)
        now, waits = 0.0, []
        for _ in range(8):
            self.ask(schedule, now)
            schedule.failed(now)
            waits.append(wait_s(schedule, now))
            now += waits[-1]
        bounds = [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]
        assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
        self.ask(schedule, now)
        schedule.succeeded(now)
        assert wait_s(schedule, now) == 10.0

    def test_a_lost_connection_causes_one_poll_soon(self):
        schedule = self.schedule("a")
        self.ask(schedule, 0.0)
        schedule.succeeded(0.0)
        schedule.poll_now(20.0)
        schedule.poll_now(20.0)
        self.ask(schedule, 20.0)
        schedule.succeeded(20.0)
        assert wait_s(schedule, 20.0) == 60.0

    def test_a_connection_that_is_lost_during_a_poll_causes_another_one(self):
        schedule = self.schedule("a")
        self.ask(schedule, 0.0)
        schedule.poll_now(3.0)
        schedule.succeeded(5.0)
        self.ask(schedule, 5.0)
        schedule.succeeded(5.0)
        assert wait_s(schedule, 5.0) == 60.0

    def test_connections_that_are_lost_all_the_time_cause_no_more_than_a_poll_a_second(self):
        schedule = self.schedule("a")
        self.ask(schedule, 0.0)
        schedule.succeeded(0.25)
        schedule.poll_now(0.25)
        assert wait_s(schedule, 0.25) == 0.75

    def test_a_request_that_is_never_reported_is_forgotten(self):
        schedule = self.schedule("a", "b")
        self.ask(schedule, 0.0)
        assert self.ask(schedule, 9.0) == "b"
        schedule.succeeded(9.0)
        assert wait_s(schedule, 9.0) == 60.0

    def test_without_addresses_there_are_no_polls(self):
        schedule = self.schedule()
        schedule.poll_now(0.0)
        assert schedule.next_poll_s(0.0) == float("inf")
