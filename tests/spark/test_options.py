"""Tests of pyqd_spark.options and pyqd_spark.read_options."""

import pytest

from pyqd_spark.options import CONNECTION, BrokerOptions, Option, OptionError, count_from, parse_address, parse_options
from pyqd_spark.read_options import Bound, parse_settings

KNOWN = (Option("startingOffsets", str, "latest"), Option("minPartitions", count_from(1)), Option("nsqd", str))
BASE = {"nsqd": "127.0.0.1:4151", "subscribe": "orders"}


def settings(streaming=False, **given):
    return parse_settings({**BASE, **given}, streaming=streaming)


def test_the_case_of_a_name_does_not_count():
    values = parse_options("x", {"STARTINGOFFSETS": "earliest", "minpartitions": " 3 "}, KNOWN)
    assert values == {"startingOffsets": "earliest", "minPartitions": 3, "nsqd": None}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("startingOffset", 'did you mean "startingOffsets"?'),
        ("min_partitions", 'did you mean "minPartitions"?'),
        ("kafka.bootstrap.servers", "there are minPartitions, nsqd, startingOffsets"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name, said):
    with pytest.raises(OptionError) as caught:
        parse_options('format("pyqd")', {name: "1"}, KNOWN)
    assert str(caught.value).startswith(f'format("pyqd"): no option "{name}"; {said}')


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "x", "9" * 30, "1_000"])
def test_a_value_that_makes_no_sense_is_refused_with_its_option(text):
    with pytest.raises(OptionError, match=r"option minPartitions=.*expected a whole number from 1 on"):
        parse_options("x", {"minPartitions": text}, KNOWN)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host", "host:4151"),
        ("host:1", "host:1"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("[::1]:80", "[::1]:80"),
        ("https://host", "https://host:4151"),
        ("http://host:80/", "http://host:80"),
    ],
)
def test_addresses_get_the_default_port(text, address):
    assert parse_address(text, 4151) == address


@pytest.mark.parametrize("text", ["", "ftp://host", "host:port", "host:99999", "host/path", "user@host", "http://"])
def test_an_invalid_address_is_refused(text):
    with pytest.raises(ValueError, match=r"expected|no address"):
        parse_address(text, 4151)


def connection(**given):
    return BrokerOptions.of("x", parse_options("x", given, CONNECTION))


def test_brokers_are_given_or_looked_up():
    assert connection(nsqd="a, b:1,a").nsqd == ("a:4151", "b:1")
    assert connection(lookupd="a").lookupd == ("a:4161",)
    with pytest.raises(OptionError, match="exactly one of nsqd, lookupd is needed; none is given"):
        connection()
    with pytest.raises(OptionError, match="nsqd and lookupd are given"):
        connection(nsqd="a", lookupd="b")
    with pytest.raises(OptionError, match="tlsKey needs tlsCert"):
        connection(nsqd="a", tlsKey="k")


def test_times_are_kept_in_seconds():
    found = connection(nsqd="a", requestTimeoutMs="1500", retryTimeoutMs="0", tls="TRUE", token="secret")
    assert (found.request_timeout_s, found.retry_timeout_s, found.tls, found.token) == (1.5, 0, True, "secret")


def test_exactly_one_way_to_name_topics_is_needed():
    assert settings().topics == ("orders",)
    pattern = parse_settings({"nsqd": "a", "subscribePattern": "or.*"}, streaming=False)
    assert (pattern.pattern, pattern.topics) == ("or.*", ())
    assigned = parse_settings({"nsqd": "a", "assign": '{"orders": ["n1", "n2", "n1"]}'}, streaming=False)
    assert assigned.nodes_of == {"orders": ("n1", "n2")}
    with pytest.raises(OptionError, match="exactly one of subscribe, subscribePattern, assign is needed; none"):
        parse_settings({"nsqd": "a"}, streaming=False)
    with pytest.raises(OptionError, match="subscribe and subscribePattern are given"):
        settings(subscribePattern="x")


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"orders": []}', '{"orders": "n"}', '{"orders": [1]}'])
def test_an_assignment_that_is_none_is_refused(text):
    with pytest.raises(OptionError, match="option assign="):
        parse_settings({"nsqd": "a", "assign": text}, streaming=False)


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(OptionError, match="no regular expression"):
        parse_settings({"nsqd": "a", "subscribePattern": "("}, streaming=False)


def test_bounds_are_a_word_or_offsets_or_a_time_which_wins():
    assert settings().start is None
    assert settings(startingOffsets="Earliest").start == Bound("earliest")
    offsets = {"orders": {"n": 7, "m": -2}}
    assert settings(startingOffsets='{"orders": {"n": 7, "m": -2}}').start == Bound(offsets=offsets)
    found = settings(
        startingOffsets="earliest", startingTimestamp="1795177302123", endingTimestamp="1970-01-01T00:00:01Z"
    )
    assert (found.start, found.end) == (Bound(time_ns=1795177302123000000), Bound(time_ns=10**9))


@pytest.mark.parametrize(
    "text", ["soon", "7", "[]", '{"orders": 7}', '{"orders": {"n": -3}}', '{"o": {"n": true}}', '{"o": {"n": 1e3}}']
)
def test_offsets_that_are_none_are_refused(text):
    with pytest.raises(OptionError, match="option startingOffsets="):
        settings(startingOffsets=text)


@pytest.mark.parametrize("text", ["now", "", "12.5", "2026-11-21", "9" * 16])
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(OptionError, match="milliseconds since 1970"):
        settings(startingTimestamp=text)


@pytest.mark.parametrize(
    ("streaming", "given", "said"),
    [
        (True, {"endingOffsets": "latest"}, "endingOffsets is for batches"),
        (True, {"endingTimestamp": "1"}, "endingTimestamp is for batches"),
        (False, {"maxOffsetsPerTrigger": "1"}, "maxOffsetsPerTrigger is for streams"),
        (False, {"startingOffsets": "latest"}, "cannot start at latest"),
        (False, {"startingOffsets": '{"o": {"n": -1}}'}, "cannot start at latest"),
        (False, {"endingOffsets": "earliest"}, "cannot end at earliest"),
        (False, {"endingOffsets": '{"o": {"n": -2}}'}, "cannot end at earliest"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(streaming, given, said):
    with pytest.raises(OptionError, match=said):
        settings(streaming, **given)


def test_the_limits_and_switches_are_read():
    found = settings(minPartitions="4", maxRecordsPerPartition="10", failOnDataLoss="false", includeBody="false")
    assert (found.partitions_min, found.records_per_partition_max) == (4, 10)
    assert (found.fail_on_data_loss, found.include_body) == (False, False)
    assert settings(streaming=True, maxOffsetsPerTrigger="5").offsets_per_trigger_max == 5
