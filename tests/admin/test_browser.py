"""Pages about single messages: browsing, cancelling, rescheduling, publishing, seeking and limits."""

from __future__ import annotations

import re

import pytest

from pyqd.admin.messages import hex_dump, shown_as
from tests.admin.conftest import Admin, World
from tests.admin.test_access import Browser
from tests.support.nsq import Client

STRANGER = "10.9.9.9:4151"


@pytest.fixture
def browser(open_admin: Admin) -> Browser:
    return Browser(open_admin)


@pytest.fixture
def queue(browser: Browser, world: World, topic: str) -> dict[str, str]:
    """The form of a channel with three ready messages, which the browser has open: its fields."""
    world.publish(topic, {0: 3}, channel="c")
    browser.get(f"/topics/{topic}/c/messages")
    return {"node": world.addresses()[0], "state": "ready", "change": "cancel", "all": "yes", "confirmed": "yes"}


def depth_of(world: World, topic: str) -> int:
    return int((world.brokers[0].channel(topic, "c") or {})["depth"])


def publish(world: World, topic: str, *bodies: bytes, number: int = 0, **query: str) -> None:
    for body in bodies:
        assert world.brokers[number].http("POST", "/pub", body, topic=topic, **query).status == 200


class TestMessages:
    @pytest.mark.slow
    def test_ready_messages_are_shown_with_their_bodies(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 0}, channel="c")
        publish(world, topic, b'{"a":1}', b"<script>", b"\x00\xff")
        page = browser.get(f"/topics/{topic}/c/messages?body=json")
        assert (page.status, len(browser.ids())) == (200, 3)
        assert "&lt;script&gt;" in browser.page
        assert "<script>alert" not in browser.page
        assert "&#34;a&#34;: 1" in browser.page
        browser.get(f"/topics/{topic}/c/messages?body=hex")
        assert "000000  00 ff" in browser.page

    def test_deferred_messages_are_shown(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 0}, channel="c")
        publish(world, topic, b"later", defer="600000")
        browser.get(f"/topics/{topic}/c/messages?state=deferred")
        assert ("later" in browser.page, len(browser.ids())) == (True, 1)

    def test_pages_follow_each_other_without_gap_or_repetition(
        self, browser: Browser, world: World, topic: str
    ) -> None:
        world.publish(topic, {0: 120}, channel="c")
        seen = browser.ids_of_pages(f"/topics/{topic}/c/messages")
        assert (len(seen), len(set(seen))) == (120, 120)

    def test_a_filter_finds_messages_by_their_text(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 200}, channel="c")
        browser.get(f"/topics/{topic}/c/messages?text=body%20177")
        assert len(browser.ids()) == 1

    def test_chosen_messages_are_cancelled(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 3}, channel="c")
        browser.get(f"/topics/{topic}/c/messages")
        first = browser.ids()[0]
        path = f"/topics/{topic}/c/messages"
        fields = {"node": world.addresses()[0], "state": "ready", "change": "cancel", "id": first}
        answer = browser.post(path, **fields)
        assert (answer.status, b"Cancel 1 message of" in answer.body, first in browser.page) == (200, True, True)
        assert depth_of(world, topic) == 3
        assert browser.post(path, **fields, confirmed="yes").status == 303
        line = f"cancel_messages topic={topic} channel=c node={fields['node']} state=ready&done=1"
        assert line in browser.admin.log.read_text()
        world.brokers[0].wait_for_channel(topic, "c", depth=2)
        browser.get(path)
        assert first not in browser.ids()

    def test_all_matching_messages_are_cancelled_after_a_confirmation(
        self, browser: Browser, world: World, topic: str
    ) -> None:
        world.publish(topic, {0: 30}, channel="c")
        path = f"/topics/{topic}/c/messages"
        browser.get(path)
        fields = {"node": world.addresses()[0], "state": "ready", "change": "cancel", "all": "yes", "text": "body 2"}
        answer = browser.post(path, **fields)
        assert (answer.status, b"Cancel 11 messages" in answer.body) == (200, True)
        assert depth_of(world, topic) == 30
        assert browser.post(path, **fields, confirmed="yes").status == 303
        world.brokers[0].wait_for_channel(topic, "c", depth=19)

    @pytest.mark.slow
    def test_all_matching_messages_are_rescheduled_and_delivered_after_a_confirmation(
        self, browser: Browser, world: World, topic: str
    ) -> None:
        world.publish(topic, {0: 12}, channel="c")
        path = f"/topics/{topic}/c/messages"
        browser.get(path)
        fields = {
            "node": world.addresses()[0],
            "state": "ready",
            "change": "reschedule",
            "all": "yes",
            "text": "body 1",
        }
        answer = browser.post(path, **fields, seconds="600")
        assert (answer.status, b"Reschedule 3 messages" in answer.body, b"in 600 s" in answer.body) == (200, True, True)
        assert browser.post(path, **fields, seconds="600", confirmed="yes").status == 303
        world.brokers[0].wait_for_channel(topic, "c", depth=9, deferred_count=3)
        browser.get(path)
        fields |= {"state": "deferred", "change": "deliver_now"}
        assert b"Deliver 3 messages" in browser.post(path, **fields).body
        assert browser.post(path, **fields, confirmed="yes").status == 303
        world.brokers[0].wait_for_channel(topic, "c", depth=12, deferred_count=0)

    def test_messages_in_flight_are_shown_by_client(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 3}, channel="c")
        with Client(world.brokers[0].tcp_address) as first, Client(world.brokers[0].tcp_address) as second:
            for client, name, count in ((first, "anna", 2), (second, "berta", 1)):
                client.identify(client_id=name, hostname=name)
                client.sub(topic, "c", rdy_count=count)
                client.read_messages(count)
            browser.get(f"/topics/{topic}/c/messages?state=in_flight")
            choices = dict(re.findall(r'<option value="([^"]+:\d+)" >(\w+) ', browser.page))
            assert sorted(choices.values()) == ["anna", "berta"]
            assert browser.page.count('<td class="body">') == 3
            # Those of one client stand together.
            assert re.findall(r"<td[^>]*>(anna|berta) ", browser.page) == ["anna", "anna", "berta"]
            berta = next(address for address, name in choices.items() if name == "berta")
            browser.get(f"/topics/{topic}/c/messages?state=in_flight&client={berta}")
            assert re.findall(r"<td[^>]*>(anna|berta) ", browser.page) == ["berta"]

    @pytest.mark.parametrize("seconds", ["soon", "-1", "1_0", "inf", "nan", "1e3", "\u0661", "1e308", "1" * 30])
    def test_a_wrong_number_of_seconds_is_named(
        self, browser: Browser, queue: dict[str, str], topic: str, seconds: str
    ) -> None:
        answer = browser.post(f"/topics/{topic}/c/messages", **queue | {"change": "reschedule"}, seconds=seconds)
        assert (answer.status, b"is no number of seconds" in answer.body) == (502, True)

    @pytest.mark.parametrize("seconds", ["600", "600.5", ".5"])
    def test_seconds_may_have_a_fraction(
        self, browser: Browser, queue: dict[str, str], topic: str, seconds: str
    ) -> None:
        answer = browser.post(f"/topics/{topic}/c/messages", **queue | {"change": "reschedule"}, seconds=seconds)
        assert answer.status == 303

    @pytest.mark.parametrize("node", [STRANGER, ""])
    def test_a_broker_without_the_topic_is_not_replaced_in_a_change(
        self, browser: Browser, queue: dict[str, str], world: World, topic: str, node: str
    ) -> None:
        answer = browser.post(f"/topics/{topic}/c/messages", **queue | {"node": node})
        assert (answer.status, f"The broker &#39;{node}&#39; of this form" in browser.page) == (502, True)
        assert depth_of(world, topic) == 3

    @pytest.mark.parametrize(
        "wrong",
        [{"change": "drop"}, {"change": ""}, {"state": "lost"}, {"state": ""}],
        ids=["verb", "none", "state", "no state"],
    )
    def test_an_unknown_change_or_state_changes_nothing(
        self, browser: Browser, queue: dict[str, str], world: World, topic: str, wrong: dict[str, str]
    ) -> None:
        assert browser.post(f"/topics/{topic}/c/messages", **queue | wrong).status == 400
        assert depth_of(world, topic) == 3


class TestPublish:
    @pytest.mark.slow
    def test_messages_are_published_one_or_one_per_line(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {1: 0}, channel="c")
        path = f"/topics/{topic}/-/publish"
        browser.get(path)
        assert browser.post(path, node=world.addresses()[1], body="a\r\nb", lines="yes").status == 303
        browser.get(path)
        assert browser.post(path, node=world.addresses()[1], body="c\r\nd", delay="600").status == 303
        world.brokers[1].wait_for_channel(topic, "c", depth=2, deferred_count=1)

    def test_the_id_of_a_published_message_is_told(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 0}, channel="c")
        path = f"/topics/{topic}/-/publish"
        browser.get(path)
        location = browser.post(path, node=world.addresses()[0], body="hello").headers["location"]
        browser.get(location)
        (told,) = re.findall("<code>([0-9a-f]{16})</code>", browser.page)
        browser.get(f"/topics/{topic}/c/messages")
        assert browser.ids() == [told]
        assert "<code>" not in browser.get(f"{path}?id=<b>").body.decode()

    def test_a_body_is_as_large_as_the_broker_takes(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 0}, channel="c")
        path = f"/topics/{topic}/-/publish"
        browser.get(path)
        assert browser.post(path, node=world.addresses()[0], body="x" * 900_000).status == 303
        with Client(world.brokers[0].tcp_address) as client:
            client.sub(topic, "c", rdy_count=1)
            assert len(client.read_message().body) == 900_000

    def test_a_broker_without_the_topic_is_not_replaced_in_publishing(
        self, browser: Browser, queue: dict[str, str], world: World, topic: str
    ) -> None:
        answer = browser.post(f"/topics/{topic}/-/publish", node=STRANGER, body="x")
        assert (answer.status, STRANGER in browser.page) == (502, True)
        assert depth_of(world, topic) == 3


class TestSeek:
    @pytest.mark.slow
    def test_a_seek_is_previewed_and_done(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 5}, channel="c")
        with Client(world.brokers[0].tcp_address) as client:
            client.sub(topic, "c", rdy_count=10)
            for _ in range(5):
                client.fin(client.read_message())
            world.brokers[0].wait_for_channel(topic, "c", depth=0, in_flight_count=0)
        path = f"/topics/{topic}/c/seek"
        browser.get(f"{path}?to=earliest")
        assert ' class="number">5</td>' in browser.page
        assert depth_of(world, topic) == 0
        assert browser.post(path, to="earliest", node=world.addresses()[0]).status == 303
        world.brokers[0].wait_for_channel(topic, "c", depth=5)

    def test_a_broker_without_the_topic_is_not_replaced_in_a_seek(
        self, browser: Browser, queue: dict[str, str], world: World, topic: str
    ) -> None:
        assert browser.post(f"/topics/{topic}/c/seek", to="latest", node=STRANGER).status == 303
        browser.get(f"/topics/{topic}/c")
        assert STRANGER in browser.page
        assert depth_of(world, topic) == 3

    def test_a_wrong_place_is_named(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 0}, channel="c")
        assert b"INVALID_TO" in browser.get(f"/topics/{topic}/c/seek?to=somewhere").body


class TestForms:
    @pytest.mark.parametrize(
        ("form", "shown"),
        [("text", '{"b":1}'), ("json", '{\n  "b": 1\n}'), ("hex", "000000  7b 22 62 22 3a 31 7d")],
    )
    def test_a_body_is_shown_in_a_form(self, form: str, shown: str) -> None:
        assert shown_as(b'{"b":1}', form).startswith(shown)

    def test_a_body_that_is_nested_too_deeply_is_shown_as_text(self) -> None:
        assert shown_as(b"[" * 100_000, "json") == "[" * 100_000

    def test_rows_of_hex_have_sixteen_bytes(self) -> None:
        rows = hex_dump(bytes(range(65, 65 + 20))).splitlines()
        assert [row[:8] for row in rows] == ["000000  ", "000010  "]
        assert rows[1].endswith("QRST")
