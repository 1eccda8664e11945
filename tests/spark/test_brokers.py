"""Tests of pyqd_spark.brokers, pyqd_spark.discovery and pyqd_spark.bounds against stub servers."""

import pickle

import pytest

from pyqd_spark.bounds import resolve, within
from pyqd_spark.brokers import (
    BrokerClient,
    BrokerError,
    OtherNodeError,
    PositionBeyondEndError,
    PositionGoneError,
    TopicNotFoundError,
    UnreachableError,
    find_brokers,
    topics_known,
)
from pyqd_spark.discovery import DataLossError, Discovery, check_topics
from pyqd_spark.options import BrokerOptions, OptionError
from pyqd_spark.read_options import Bound, ReadSettings
from tests.support.http_stub import http_stub, json_answer, lookup_answers
from tests.support.server import free_port

NODE = "1f0c"


@pytest.fixture(autouse=True)
def _connections_are_closed(monkeypatch):
    made = []
    init = BrokerClient.__init__

    def noted_init(client, *arguments):
        made.append(client)
        init(client, *arguments)

    monkeypatch.setattr(BrokerClient, "__init__", noted_init)
    yield
    for client in made:
        client.close()


def positions_answer(topic="orders", node=NODE, earliest=0, following=10, at=None):
    shown = {
        "topic": topic, "node": node, "created": 5, "format": 2, "earliest": earliest, "next": following,
        "segments": [{"first": earliest, "records": following - earliest, "bytes": 100}], "channels": [],
    }  # fmt: skip
    return json_answer(shown if at is None else {**shown, "at": at})


def log_answer(data=b"", node=NODE, first=0, following=0, end=10):
    headers = {"Format": "2", "Node": node, "Created": "5", "From": str(first), "Next": str(following), "Count": "0"}
    return 200, {f"X-Pyqd-{name}": value for name, value in {**headers, "End": str(end)}.items()}, data


def connection(*addresses, retry_s=0.0, **more):
    return BrokerOptions(nsqd=addresses, retry_timeout_s=retry_s, request_timeout_s=5, **more)


def settings(*addresses, lose=False, **more):
    return ReadSettings(connection(*addresses), fail_on_data_loss=not lose, **more)


def nobody():
    return f"127.0.0.1:{free_port()}"


def test_positions_are_read():
    with http_stub(lambda *_: positions_answer(at=7)) as stub:
        found = BrokerClient(stub.address, connection()).positions("orders", 1500)
    assert stub.requests == [("/topic/positions", {"topic": "orders", "time": "1500ns"})]
    assert (found.node, found.created, found.earliest, found.next, found.at) == (NODE, 5, 0, 10, 7)
    assert found.segments == ((0, 10, 100),)


def test_a_broker_that_does_not_answer_is_named():
    address = nobody()
    said = rf"{address}: GET /topic/positions: Connection refused, tried for 0\.1 s"
    with pytest.raises(UnreachableError, match=said):
        BrokerClient(address, connection(retry_s=0.1)).positions("orders")


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (json_answer({"message": "TOPIC_NOT_FOUND"}, 404), TopicNotFoundError, "topic orders does not exist"),
        (json_answer({"message": "NOT_FOUND"}, 404), BrokerError, "needs pyqd's own daemon"),
        (json_answer({"message": "UNAUTHORIZED"}, 401), BrokerError, "option token"),
        (json_answer({"message": "FORBIDDEN"}, 403), BrokerError, "option token"),
        (json_answer({"message": "INVALID_TOPIC"}, 400), BrokerError, "400 INVALID_TOPIC"),
        ((200, {}, b"<html>"), BrokerError, "no JSON"),
        (json_answer({"format": 3}), BrokerError, "records have format 3, this connector reads 2"),
    ],
)
def test_a_refusal_of_a_broker_is_an_error_at_once(answer, error, said):
    with http_stub(lambda *_: answer) as stub, pytest.raises(error, match=said):
        BrokerClient(stub.address, connection(retry_s=1000)).positions("orders")
    assert len(stub.requests) == 1


def test_positions_that_do_not_exist_are_errors_with_the_existing_range():
    gone = json_answer({"message": "POSITION_GONE", "earliest": 900}, 410)
    beyond = json_answer({"message": "POSITION_BEYOND_END", "next": 12}, 400)
    with http_stub(lambda path, query: gone if query["from"] == "1" else beyond) as stub:
        client = BrokerClient(stub.address, connection())
        with pytest.raises(PositionGoneError) as caught:
            client.page("orders", 1, 5)
        assert caught.value.earliest == 900
        with pytest.raises(PositionBeyondEndError) as beyond_caught:
            client.page("orders", 20, 25)
        assert beyond_caught.value.next == 12


def test_each_page_starts_at_the_end_of_the_previous_one():
    with http_stub(lambda path, query: log_answer(following=min(int(query["from"]) + 3, 7))) as stub:
        pages = list(BrokerClient(stub.address, connection()).pages("orders", NODE, 0, 7))
    assert [page.next for page in pages] == [3, 6, 7]
    assert [query["from"] for _, query in stub.requests] == ["0", "3", "6"]


def test_a_page_without_anything_is_the_last():
    with http_stub(lambda path, query: log_answer(following=3)) as stub:
        assert [page.next for page in BrokerClient(stub.address, connection()).pages("orders", NODE, 0, 7)] == [3, 3]


def test_pages_of_another_node_are_refused():
    with http_stub(lambda path, query: log_answer(node="other", following=3)) as stub, pytest.raises(OtherNodeError):
        list(BrokerClient(stub.address, connection()).pages("orders", NODE, 0, 7))


def test_brokers_are_looked_up_at_all_lookup_daemons():
    with (
        http_stub(lookup_answers({"orders": ["127.0.0.1:1", "127.0.0.1:2"]})) as first,
        http_stub(lookup_answers({"orders": ["127.0.0.1:2"], "bills": ["127.0.0.1:3"]})) as second,
    ):
        both = BrokerOptions(lookupd=(first.address, second.address), retry_timeout_s=0)
        assert find_brokers(both, "orders") == (["127.0.0.1:1", "127.0.0.1:2"], [])
        assert find_brokers(both, "bills").addresses == ["127.0.0.1:3"]
        assert find_brokers(both, "nothing").addresses == []
        assert find_brokers(both).addresses == ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]
        assert topics_known(both) == ({"orders", "bills"}, [])


def test_lookup_daemons_that_do_not_answer_are_reported():
    gone = nobody()
    with http_stub(lookup_answers({"orders": ["127.0.0.1:1"]})) as stub:
        found = find_brokers(BrokerOptions(lookupd=(gone, stub.address), retry_timeout_s=0), "orders")
    assert found.addresses == ["127.0.0.1:1"]
    assert len(found.failures) == 1
    assert gone in str(found.failures[0])
    with pytest.raises(UnreachableError, match=f"no lookup daemon answers: {gone}"):
        find_brokers(BrokerOptions(lookupd=(gone,), retry_timeout_s=0), "orders")


def test_an_address_without_a_lookup_daemon_is_reported():
    with http_stub(lambda *_: json_answer([1])) as stub, pytest.raises(UnreachableError, match="not the answer of a"):
        find_brokers(BrokerOptions(lookupd=(stub.address,), retry_timeout_s=0))


def test_an_unreachable_lookup_daemon_fails_the_plan_or_is_left_out():
    gone = nobody()
    with (
        http_stub(lambda *_: positions_answer()) as broker,
        http_stub(lookup_answers({"orders": [broker.address]})) as lookup,
    ):
        looked_up = BrokerOptions(lookupd=(lookup.address, gone), retry_timeout_s=0)
        with pytest.raises(DataLossError, match=rf"not known for sure: {gone}.*failOnDataLoss=false"):
            Discovery(ReadSettings(looked_up, topics=("orders",))).find()
        found = Discovery(ReadSettings(looked_up, topics=("orders",), fail_on_data_loss=False)).find()
    assert list(found) == [("orders", NODE)]


def test_an_unreachable_broker_fails_the_plan_or_is_left_out():
    gone = nobody()
    with http_stub(lambda *_: positions_answer()) as broker:
        with pytest.raises(DataLossError, match=f"topic orders cannot be read where it may be: {gone}"):
            Discovery(settings(gone, broker.address, topics=("orders",))).find()
        found = Discovery(settings(gone, broker.address, topics=("orders",), lose=True)).find()
    assert list(found) == [("orders", NODE)]


def test_a_node_with_two_addresses_is_one():
    with http_stub(lambda *_: positions_answer()) as first, http_stub(lambda *_: positions_answer()) as second:
        found = Discovery(settings(first.address, second.address, topics=("orders",))).find()
    assert [one.address for one in found.values()] == [first.address]


def test_a_topic_that_no_broker_has_is_named():
    missing = json_answer({"message": "TOPIC_NOT_FOUND"}, 404)
    with http_stub(lambda path, query: missing if query["topic"] == "bills" else positions_answer()) as stub:
        asked = settings(stub.address, topics=("orders", "bills"))
        found = Discovery(asked).find()
    with pytest.raises(BrokerError, match=f"no broker has topic bills .asked: {stub.address}"):
        check_topics(asked, found)


def test_a_pattern_must_match_the_whole_name_of_a_topic():
    topics = ["orders", "orders_old", "bills"]
    stats = json_answer({"topics": [{"topic_name": name} for name in topics]})
    with http_stub(lambda path, query: stats if path == "/stats" else positions_answer(query["topic"])) as stub:
        found = Discovery(settings(stub.address, pattern="orders|b.*")).find()
    assert [topic for topic, _ in found] == ["bills", "orders"]


def test_an_assignment_takes_the_nodes_it_names():
    with http_stub(lambda *_: positions_answer()) as first, http_stub(lambda *_: positions_answer(node="b")) as second:
        addresses = (first.address, second.address)
        assert list(Discovery(settings(*addresses, nodes_of={"orders": ("b",)})).find()) == [("orders", "b")]
        with pytest.raises(DataLossError, match="topic orders is not there at node c, which the option assign names"):
            Discovery(settings(*addresses, nodes_of={"orders": ("b", "c")})).find()


def test_a_discovery_can_be_pickled():
    with http_stub(lambda *_: positions_answer()) as stub:
        discovery = Discovery(settings(stub.address, topics=("orders",)))
        discovery.find()
        assert list(pickle.loads(pickle.dumps(discovery)).find()) == [("orders", NODE)]


@pytest.fixture
def found():
    with http_stub(lambda *_: positions_answer(earliest=3, at=8)) as stub:
        discovery = Discovery(settings(stub.address, topics=("orders",)))
        yield discovery.find(), discovery


@pytest.mark.parametrize(
    ("bound", "place"),
    [
        (Bound("earliest"), 3),
        (Bound("latest"), 10),
        (Bound(offsets={"orders": {NODE: 7}}), 7),
        (Bound(offsets={"orders": {NODE: -2}}), 3),
        (Bound(offsets={"orders": {NODE: -1}}), 10),
        (Bound(time_ns=5), 8),
    ],
)
def test_bounds_become_positions(found, bound, place):
    assert resolve(bound, found[0], found[1], "startingOffsets") == {("orders", NODE): place}


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ({}, f"option startingOffsets: node {NODE} of topic orders is missing"),
        ({"orders": {NODE: 1, "x": 1}}, "node x of topic orders was not found"),
    ],
)
def test_offsets_have_to_name_just_the_nodes_there_are(found, offsets, said):
    with pytest.raises(OptionError, match=said):
        resolve(Bound(offsets=offsets), found[0], found[1], "startingOffsets")


@pytest.mark.parametrize(("place", "said", "kept"), [(2, "is not kept any more", 3), (11, "is behind the end", 10)])
def test_positions_outside_the_kept_range_fail_or_are_moved(found, place, said, kept):
    places = {("orders", NODE): place}
    with pytest.raises(DataLossError, match=f"the start {place} {said}"):
        within(settings(), places, found[0], "start")
    assert within(settings(lose=True), places, found[0], "start") == {("orders", NODE): kept}
