"""Questions of tools to lookup daemons: answers of several, errors, patterns of topics."""

from __future__ import annotations

import asyncio

import pytest

from pyqd.client.errors import LookupFailedError, ProtocolError
from pyqd.tools.cluster import Http, TopicPattern, known_topics, new_topics
from pyqd.tools.common import Fatal
from tests.support.http_stub import http_stub, json_answer
from tests.support.server import free_port

HTTP = Http(connect_timeout_s=5.0, timeout_s=5.0)


def topics(*names: object):
    return lambda path, query: json_answer({"topics": list(names)})


def test_the_topics_of_all_lookup_daemons_are_joined() -> None:
    with http_stub(topics("b", "a")) as first, http_stub(topics("c", "a")) as second:
        assert asyncio.run(known_topics(HTTP, [first.address, second.address])) == ["a", "b", "c"]


def test_names_that_no_topic_can_have_are_left_out() -> None:
    with http_stub(topics("a", "b c", 5, "")) as stub:
        assert asyncio.run(known_topics(HTTP, [stub.address])) == ["a"]


def test_a_lookup_daemon_that_does_not_answer_is_logged(capsys) -> None:
    silent = f"127.0.0.1:{free_port()}"
    with http_stub(topics("a")) as stub:
        assert asyncio.run(known_topics(HTTP, [silent, stub.address])) == ["a"]
    assert f"WARNING: failed to query nsqlookupd {silent}" in capsys.readouterr().err


def test_it_is_an_error_if_no_lookup_daemon_answers() -> None:
    with pytest.raises(LookupFailedError, match="failed to query any nsqlookupd: "):
        asyncio.run(known_topics(HTTP, [f"127.0.0.1:{free_port()}"]))


def test_an_answer_other_than_200_is_shown_as_by_the_tools_of_nsq() -> None:
    missing = json_answer({"message": "TOPIC_NOT_FOUND"}, 404)
    with http_stub(lambda path, query: missing) as stub, pytest.raises(LookupFailedError) as caught:
        HTTP.get(stub.address, "/lookup", topic="t")
    assert str(caught.value).endswith(r'got response 404 Not Found "{\"message\": \"TOPIC_NOT_FOUND\"}"')


@pytest.mark.parametrize("body", [b"no", b"[1]"])
def test_an_answer_that_is_no_object_is_an_error(body: bytes) -> None:
    with http_stub(lambda path, query: (200, {}, body)) as stub, pytest.raises(ProtocolError):
        HTTP.get(stub.address, "/topics")


def test_the_answer_of_nsqlookupd_before_1_0_is_unwrapped() -> None:
    wrapped = {"status_code": 200, "status_txt": "OK", "data": {"topics": ["a"]}}
    with http_stub(lambda path, query: json_answer(wrapped)) as stub:
        assert asyncio.run(known_topics(HTTP, [stub.address])) == ["a"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a", "ba", "ab#e"]),
        ("^a$", ["a"]),
        ("[ab]+#e", ["ab#e"]),
        ("", ["a", "ba", "ab#e"]),
    ],
)
def test_a_pattern_matches_anywhere_in_a_name(pattern: str, names: list[str]) -> None:
    matcher = TopicPattern(pattern)
    assert [name for name in ("a", "ba", "ab#e") if matcher.matches(name)] == names


@pytest.mark.parametrize("pattern", ["(", "a(?=b)"])
def test_a_pattern_that_go_does_not_know_is_refused(pattern: str) -> None:
    with pytest.raises(Fatal, match="--topic-pattern"):
        TopicPattern(pattern)


def test_a_topic_that_comes_up_later_is_found_by_a_later_query() -> None:
    answers = iter([None, json_answer({"topics": ["new-a"]}), json_answer({"topics": ["new-a", "old", "other"]})])

    async def first_two() -> list[str]:
        patterns = [TopicPattern("new"), TopicPattern("old")]
        with http_stub(lambda path, query: next(answers)) as stub:
            found = new_topics(HTTP, [stub.address], patterns, 0.01)
            return [await anext(found), await anext(found)]

    assert asyncio.run(asyncio.wait_for(first_two(), 20)) == ["new-a", "old"]
