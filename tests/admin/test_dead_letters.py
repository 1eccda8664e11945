"""Page of dead letters: pages of them, filters, and their way back to their topic."""

from __future__ import annotations

import pytest

from tests.admin.conftest import Admin, World
from tests.admin.test_access import Browser
from tests.support.nsq import Client
from tests.support.server import wait_until

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

LONG = b"long " * 2000


@pytest.fixture
def browser(open_admin: Admin) -> Browser:
    return Browser(open_admin)


def kill(world: World, topic: str, *bodies: bytes) -> None:
    """Make messages of a channel `c` dead letters after one attempt."""
    broker = world.brokers[0]
    world.publish(topic, {0: 0}, channel="c")
    limit(world, topic, "c", f"{topic}.dead")
    with Client(broker.tcp_address) as client:
        client.mpub(topic, bodies)
        client.sub(topic, "c", rdy_count=len(bodies))
        for message in client.read_messages(len(bodies)):
            client.req(message, 0)
        wait_until(lambda: dead_count(world, topic) == len(bodies), "the dead letters are published")


def limit(world: World, topic: str, channel: str, dead_letter_topic: str) -> None:
    """Make messages dead letters after one attempt."""
    answer = world.brokers[0].http(
        "POST", "/channel/limits", topic=topic, channel=channel, max_attempts="1", dead_letter_topic=dead_letter_topic
    )
    assert answer.status == 200


def dead_count(world: World, topic: str) -> int:
    answer = world.brokers[0].http("GET", "/channel/limits", topic=topic, channel="c")
    return int(answer.json()["dead_letter_count"])


def depth(world: World, topic: str, channel: str) -> int:
    return int((world.brokers[0].channel(topic, channel) or {})["depth"])


def test_dead_letters_are_shown_and_one_returns_whole(browser: Browser, world: World, topic: str) -> None:
    kill(world, topic, b"<one>", LONG, b"three")
    path = f"/topics/{topic}/c/dead-letters"
    answer = browser.get(f"/topics/{topic}/c/messages?state=dead_letter&text=long")
    assert (answer.status, answer.headers["location"].partition("&text")[0]) == (303, f"{path}?text=long")
    browser.get(f"{path}?text=long")
    assert len(browser.ids()) == 1
    fields = {"node": world.addresses()[0], "holder": ""}
    assert browser.post(path, **fields, id=browser.ids()[0]).status == 303
    place = f"topic={topic} channel=c node={fields['node']}"
    line = f"return_dead_letters {place} target={topic}.dead&holder=&returned=1"
    assert line in browser.admin.log.read_text()
    world.brokers[0].wait_for_channel(topic, "c", depth=1)
    with Client(world.brokers[0].tcp_address) as client:
        client.sub(topic, "c", rdy_count=1)
        message = client.read_message()
        assert message.body == LONG
        client.fin(message)
    browser.get(path)
    assert (len(browser.ids()), "&lt;one&gt;" in browser.page, "returned: 1" in browser.page) == (2, True, True)
    # Nobody reads the others: the topic holds them, and has no channel that Health would name.
    assert (world.brokers[0].topic(f"{topic}.dead") or {})["channels"] == []
    assert browser.post(path, **fields, all="yes", confirmed="yes").status == 303
    world.brokers[0].wait_for_channel(topic, "c", depth=2)
    found = world.brokers[0].topic(f"{topic}.dead") or {}
    assert (found["channels"], found["depth"], found["paused"]) == ([], 0, False)


def test_all_that_match_return_after_a_confirmation(browser: Browser, world: World, topic: str) -> None:
    kill(world, topic, *(b"letter %d" % number for number in range(120)))
    broker = world.brokers[0]
    for name in ("inspect", "archive"):
        assert broker.http("POST", "/channel/create", topic=f"{topic}.dead", channel=name).status == 200
    broker.wait_for_channel(f"{topic}.dead", "inspect", depth=120)
    path = f"/topics/{topic}/c/dead-letters?holder=inspect"
    seen = browser.ids_of_pages(path)
    assert (len(seen), len(set(seen))) == (120, 120)
    fields = {"node": world.addresses()[0], "holder": "inspect", "text": "letter 11", "all": "yes"}
    answer = browser.post(path, **fields)
    assert (answer.status, b"Publish 11 dead letters" in answer.body) == (200, True)
    assert depth(world, topic, "c") == 0
    assert browser.post(path, **fields, confirmed="yes").status == 303
    broker.wait_for_channel(topic, "c", depth=11)
    assert depth(world, f"{topic}.dead", "inspect") == 109


def test_a_channel_without_a_dead_letter_topic_says_so(browser: Browser, world: World, topic: str) -> None:
    world.publish(topic, {0: 0}, channel="c")
    answer = browser.get(f"/topics/{topic}/c/dead-letters")
    assert (answer.status, b"has no dead-letter topic" in answer.body) == (200, True)
    path = f"/topics/{topic}/c/dead-letters"
    assert browser.post(path, node=world.addresses()[0], id="0" * 16).status == 502
    assert "has no dead-letter topic any more" in browser.page


def test_a_broker_without_the_topic_is_not_replaced_in_a_return(browser: Browser, world: World, topic: str) -> None:
    kill(world, topic, b"one")
    path = f"/topics/{topic}/c/dead-letters"
    browser.get(path)
    answer = browser.post(path, node="10.9.9.9:4151", holder="", all="yes", confirmed="yes")
    assert (answer.status, "10.9.9.9:4151" in browser.page) == (502, True)
    assert dead_count(world, topic) == 1
    assert depth(world, topic, "c") == 0


def test_other_channels_with_the_same_dead_letter_topic_are_named(browser: Browser, world: World, topic: str) -> None:
    kill(world, topic, b"one")
    world.publish(f"{topic}.2", {0: 0}, channel="audit")
    limit(world, f"{topic}.2", "audit", f"{topic}.dead")
    browser.get(f"/topics/{topic}/c/dead-letters")
    browser.post(f"/topics/{topic}/c/dead-letters", node=world.addresses()[0], holder="", all="yes")
    assert f"{topic}.2/audit too" in browser.page
