"""Pages of settings: limits of a channel; retention, quota and trace of a topic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyqd.admin.access.roles import UserRole
from pyqd.admin.access.users import add_user
from pyqd.admin.pages.settings import byte_count
from tests.admin.conftest import Admin, World
from tests.admin.test_access import FORM, Browser, basic

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow


@pytest.fixture
def browser(open_admin: Admin) -> Browser:
    return Browser(open_admin)


def settings_of(world: World, topic: str, name: str) -> list[dict[str, Any]]:
    return [broker.http("GET", f"/topic/{name}", topic=topic).json() for broker in world.brokers]


def test_limits_are_set_on_all_brokers_after_a_confirmation(browser: Browser, world: World, topic: str) -> None:
    world.publish(topic, {0: 0, 1: 0}, channel="c")
    path = f"/topics/{topic}/c/limits"
    browser.get(path)
    fields = {"max_attempts": "5", "dead_letter_topic": f"{topic}_dead", "rate": ""}
    assert browser.post(path, **fields).status == 200
    assert "Change the settings of" in browser.page
    assert browser.post(path, **fields, confirmed="yes").status == 303
    browser.get(path)
    assert browser.page.count(f"{topic}_dead</a>") == 2
    # The form has the present values, and gives them all: a burst without a rate, and a topic without a limit of
    # attempts, would be refused.
    assert f'name="dead_letter_topic" maxlength="64" value="{topic}_dead"' in browser.page
    assert 'max="65535" value="5"' in browser.page
    browser.post(path, **{**fields, "rate": "50", "burst": "60"}, confirmed="yes")
    browser.get(path)
    assert 'step="any" value="60"' in browser.page
    browser.post(path, **{**fields, "rate": "0", "burst": "60", "max_attempts": "0"}, confirmed="yes")
    limits = [broker.http("GET", "/channel/limits", topic=topic, channel="c").json() for broker in world.brokers]
    assert [(found["rate"], found["burst"], found["dead_letter_topic"]) for found in limits] == [(0, 0, None)] * 2
    world.brokers[0].http("POST", "/channel/limits", topic=topic, channel="c", rate="7")
    browser.get(path)
    assert 'name="rate" type="number" min="0" step="any" value=""' in browser.page, "brokers differ"


def test_retention_and_quota_are_set_and_return_to_the_broker(browser: Browser, world: World, topic: str) -> None:
    world.publish(topic, {0: 0, 1: 0}, channel="c")
    path = f"/topics/{topic}/-/settings"
    browser.get(path)
    assert browser.post(path, change="retention", bytes="2 GiB", time="72h", confirmed="yes").status == 303
    found = settings_of(world, topic, "retention")
    assert [(row["own_bytes"], row["own_time"]) for row in found] == [(2 << 30, "72h0m0s")] * 2
    browser.get(path)
    assert ("2.0 GiB" in browser.page, "72h0m0s" in browser.page) == (True, True)
    assert [f'value="{value}"' in browser.page for value in (2 << 30, "72h0m0s", "default")] == [True] * 3
    assert browser.post(path, change="quota", bytes="default", confirmed="yes").status == 303
    assert [row["own_bytes"] for row in settings_of(world, topic, "quota")] == [None, None]
    assert f"set_quota topic={topic} bytes=default by anonymous" in browser.admin.log.read_text()


def test_a_wrong_value_is_named_by_the_broker(browser: Browser, world: World, topic: str) -> None:
    world.publish(topic, {0: 0}, channel="c")
    path = f"/topics/{topic}/-/settings"
    browser.get(path)
    browser.post(path, change="trace", rate="7", confirmed="yes")
    browser.get(path)
    assert "INVALID_RATE" in browser.page
    assert browser.post(path, change="quota", bytes=" ").status == 303
    browser.get(path)
    assert "No value is given." in browser.page


def test_only_an_administrator_changes_settings(
    world: World, topic: str, start_admin: Callable[..., Admin], tmp_path: Path
) -> None:
    world.publish(topic, {0: 0}, channel="c")
    users = tmp_path / "users"
    add_user(users, "otto", "battery staple", UserRole.OPERATE, ("*",))
    admin = start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}", f"--users-file={users}")
    for path in (f"/topics/{topic}/-/settings", f"/topics/{topic}/c/limits"):
        shown = admin.ask("GET", path, headers=basic("otto", "battery staple"))
        assert (shown.status, b"<h2>" in shown.body) == (200, False)
        answer = admin.ask("POST", path, b"change=quota&bytes=1", {**FORM, **basic("otto", "battery staple")})
        assert answer.status == 403
    assert settings_of(world, topic, "quota")[0]["own_bytes"] is None


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", "4096"),
        ("10 GiB", str(10 << 30)),
        ("1.5m", str(3 << 19)),
        ("default", "default"),
        ("2 apples", "2 apples"),
    ],
)
def test_sizes_have_units(text: str, count: str) -> None:
    assert byte_count(text) == count
