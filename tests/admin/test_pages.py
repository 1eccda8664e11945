"""Pages of the web admin in a browser, on a cluster under load: content, live updates, actions, accessibility."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from pyqd import __version__
from pyqd.admin.access.roles import UserRole
from pyqd.admin.access.users import add_user
from tests.admin.conftest import Admin, World
from tests.admin.test_stories import ID, fill
from tests.admin.visits import PHONE, POLLED_WITHIN_MS, WAIT_MS, Visit, keep_picture
from tests.support.http_stub import Answer, http_stub, json_answer
from tests.support.nsq import Client
from tests.support.server import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "orders"


@pytest.fixture(scope="module", params=["pyqd", "nsqd"])
def world(request: pytest.FixtureRequest, world: World) -> World:
    """A cluster of pyqd, and one of NSQ's own daemons if their paths are given."""
    found: World = request.getfixturevalue("nsq_world") if request.param == "nsqd" else world
    return found


@pytest.fixture
def pyqd_only(world: World) -> None:
    if world.is_reference:
        pytest.skip("nsqd has nothing like it")


@pytest.fixture(scope="module")
def load(world: World) -> Iterator[None]:
    """A topic on both brokers with two channels, one with a client, and a publisher that goes on."""
    for broker in world.brokers:
        for channel in ("audit", "email"):
            assert broker.http("POST", "/topic/create", topic=TOPIC).status == 200
            assert broker.http("POST", "/channel/create", topic=TOPIC, channel=channel).status == 200
    wait_until(lambda: world.registered(TOPIC) == 2, f"{TOPIC} in the lookup daemon")
    ended = threading.Event()

    def publish() -> None:
        while not ended.wait(0.1):
            for broker in world.brokers:
                broker.http("POST", "/mpub", b"a\nb\nc", topic=TOPIC)

    publisher = threading.Thread(target=publish)
    publisher.start()
    with Client(world.brokers[0].tcp_address) as client:
        client.identify(client_id="reader", hostname="reader", user_agent="tests/1")
        client.sub(TOPIC, "email", rdy_count=1)
        client.read_message()
        yield
        ended.set()
        publisher.join()


@pytest.fixture(scope="module")
def admin(
    world: World, load: None, start_admin: Callable[..., Admin], tmp_path_factory: pytest.TempPathFactory
) -> Admin:
    url = f"sqlite:///{tmp_path_factory.mktemp('trace')}/trace.db"
    fill(url)
    return start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}", f"--trace-database={url}")


@pytest.fixture
def visit(chromium: Browser, admin: Admin) -> Iterator[Callable[..., Visit]]:
    visits: list[Visit] = []

    def make(**context: Any) -> Visit:
        visits.append(Visit(chromium, admin, **context))
        return visits[-1]

    yield make
    faults = [fault for each in visits for fault in each.faults]
    for each in visits:
        each.context.close()
    assert faults == []
    assert "Traceback" not in admin.log.read_text()


def node_of(world: World) -> str:
    return world.addresses()[0]


PAGES = (
    "/",
    "/topics",
    "/connections",
    f"/topics/{TOPIC}",
    f"/topics/{TOPIC}/email",
    f"/topics/{TOPIC}/email/messages",
    f"/topics/{TOPIC}/email/messages?state=in_flight&body=hex",
    f"/topics/{TOPIC}/email/dead-letters",
    f"/topics/{TOPIC}/email/seek?to=earliest",
    f"/topics/{TOPIC}/email/limits",
    f"/topics/{TOPIC}/-/publish",
    f"/topics/{TOPIC}/-/settings",
    f"/topics/{TOPIC}/email/consumers",
    "/nodes",
    "/nodes/{node}",
    "/nodes/{node}?view=clients",
    "/lookup",
    "/counter",
    "/health",
    "/durability",
    "/topics/nowhere/none",
    "/messages?within=10%20min&until=2026-11-20T12:25:00",
    "/messages?topic=held",
    f"/messages/{ID}",
    "/login",
)


# Of pages that need pyqd, an nsqd shows nothing else.
ONLY_WITH_PYQD = ("/email/messages", "/dead-letters", "/limits", "/settings")


LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "phone-dark": {"color_scheme": "dark", "viewport": PHONE},
}


@pytest.fixture(scope="module")
def looks(chromium: Browser, admin: Admin) -> Iterator[dict[str, Visit]]:
    """One visit for each look, whose page goes from test to test: to open a window takes longer than to load a page.

    Between two tests it rests on a page that has nothing live. Another site would have another process.
    """
    visits = {look: Visit(chromium, admin, **context) for look, context in LOOKS.items()}
    yield visits
    for each in visits.values():
        each.context.close()


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_accessible_in_light_and_dark_and_on_a_phone(
    looks: dict[str, Visit], admin: Admin, world: World, path: str
) -> None:
    for look, each in looks.items():
        each.faults.clear()
        each.expect_missing("nowhere" in path)
        page = each.open(path.format(node=node_of(world)))
        expect(page.locator("h1")).to_have_count(1)
        is_absent = world.is_reference and path.partition("?")[0].endswith(ONLY_WITH_PYQD)
        assert (page.locator("h1").text_content() == "Only with pyqd") is is_absent
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        width = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert width <= 0, "the page scrolls sideways"
        if look == "phone-dark":
            hidden = page.eval_on_selector_all(".scroll", "(all) => all.map((e) => e.scrollWidth - e.clientWidth)")
            assert max(hidden, default=0) <= 0, "a table is cut"
        keep_picture(page, look)
        assert each.faults == []
        each.open("/login")
    assert "Traceback" not in admin.log.read_text()


def test_numbers_change_without_a_reload(visit: Callable[..., Visit]) -> None:
    page = visit().open("/counter")
    counter = page.locator(".counter")
    expect(counter).not_to_have_text("0", timeout=WAIT_MS)
    before = counter.text_content() or ""
    page.evaluate("() => { window.isSame = true }")
    expect(counter).not_to_have_text(before, timeout=WAIT_MS)
    assert page.evaluate("() => window.isSame")


MARK = "() => { document.querySelector('#live h1').id = 'old' }"


def test_a_table_keeps_its_place_and_its_focus_while_numbers_change(visit: Callable[..., Visit]) -> None:
    # Narrower than the table, and wider than the screens that have cards.
    page = visit(viewport={"width": 660, "height": 740}).open(f"/topics/{TOPIC}")
    table = page.locator(".scroll").first
    table.locator("tbody td").first.click()
    # In one step, as the next update may replace the table.
    page.evaluate(f"() => {{ document.querySelector('.scroll').scrollLeft = 40; ({MARK})() }}")
    expect(page.locator("#old")).to_have_count(0)
    expect(table).to_be_focused()
    assert page.evaluate("() => document.querySelector('.scroll').scrollLeft") == 40


def test_a_page_that_is_not_seen_keeps_no_connection(visit: Callable[..., Visit]) -> None:
    page = visit().open("/counter")
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s})"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate("() => { window.first = events }")
    page.evaluate(f"() => {{ {hide % 'true'}; {tell} }}")
    assert page.evaluate("() => [first.readyState === EventSource.CLOSED, events === null]") == [True, True]
    page.evaluate(f"() => {{ {hide % 'false'}; {tell} }}")
    page.evaluate(MARK)
    expect(page.locator("#old")).to_have_count(0)


def test_a_page_is_live_again_after_a_proxy_answered_for_pyqadmin(visit: Callable[..., Visit]) -> None:
    at = visit()
    at.expected = "502"
    at.context.route("**/live", lambda route: route.fulfill(status=502, body="down"))
    page = at.open("/counter")
    expect(page.locator("#age")).to_have_text("no connection to pyqadmin")
    at.context.unroute("**/live")
    # Another connection follows after 5 s.
    page.evaluate(MARK)
    expect(page.locator("#age")).to_have_text("")
    expect(page.locator("#old")).to_have_count(0)


def test_brokers_that_stop_answering_are_told_without_a_reload(
    chromium: Browser, start_admin: Callable[..., Admin]
) -> None:
    is_silent = threading.Event()
    address = ""

    def answer(path: str, _query: dict[str, str]) -> Answer:
        port = int(address.rpartition(":")[2])
        if is_silent.is_set():
            return json_answer({"message": "INTERNAL_ERROR"}, 500)
        if path == "/info":
            return json_answer({"broadcast_address": "127.0.0.1", "http_port": port, "tcp_port": 1})
        if path == "/stats":
            return json_answer({"topics": [{"topic_name": "t", "message_count": 1, "channels": []}]})
        return json_answer({"message": "NOT_FOUND"}, 404)

    with http_stub(answer) as stub:
        address = stub.address
        visit = Visit(chromium, start_admin("pyqadmin", f"--nsqd-http-address={address}"))
        expect(visit.open("/health").locator(".note.good")).to_have_count(1, timeout=POLLED_WITHIN_MS)
        expect(visit.page.locator("#findings")).to_be_hidden()
        page = visit.open("/topics/t")
        expect(page.locator("h1")).to_have_text("t")
        is_silent.set()
        expect(page.locator("h1")).to_have_text("No answer", timeout=POLLED_WITHIN_MS)
        expect(page.locator("#findings")).to_have_text("1", timeout=POLLED_WITHIN_MS)
        is_silent.clear()
        expect(page.locator("h1")).to_have_text("t", timeout=POLLED_WITHIN_MS)
        expect(page.locator("#findings")).to_be_hidden(timeout=POLLED_WITHIN_MS)
        visit.context.close()


def test_a_channel_is_paused_and_emptied_by_its_buttons(visit: Callable[..., Visit], world: World) -> None:
    world.publish("full", {0: 5, 1: 5}, channel="audit")
    page = visit().open("/topics/full/audit")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Pause").click()
    with page.expect_navigation():
        dialog.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_have_text("Done.")
    assert [(broker.channel("full", "audit") or {})["paused"] for broker in world.brokers] == [True, True]
    page.get_by_role("button", name="Unpause").click()
    with page.expect_navigation():
        dialog.get_by_role("button", name="Do it").click()
    expect(page.locator("h1 .tag")).to_have_count(0)
    assert [(broker.channel("full", "audit") or {})["paused"] for broker in world.brokers] == [False, False]
    page.get_by_role("button", name="Empty").click()
    expect(dialog).to_contain_text("Empty channel audit?")
    expect(dialog).to_contain_text("Its 10 messages are lost.")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Empty").click()
    with page.expect_navigation():
        dialog.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_have_text("Done.")
    assert [(broker.channel("full", "audit") or {})["depth"] for broker in world.brokers] == [0, 0]


def test_a_topic_is_created_and_deleted(visit: Callable[..., Visit], world: World) -> None:
    page = visit().open("/lookup")
    page.get_by_label("Topic", exact=True).fill("short_lived")
    page.get_by_role("button", name="Create").click()
    with page.expect_navigation():
        page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    assert "short_lived" in world.lookup("GET", "/topics").json["topics"]
    # It shows the topic, and would ask for it once more when it is gone.
    page.close()
    page = visit().open("/lookup")
    row = page.get_by_role("row").filter(has_text="short_lived")
    row.get_by_role("button", name="Delete").click()
    with page.expect_navigation():
        page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    assert "short_lived" not in world.lookup("GET", "/topics").json["topics"]


def test_a_channel_that_only_lookup_daemons_know_is_deleted(visit: Callable[..., Visit], world: World) -> None:
    for target in ("/topic/create?topic=planned", "/channel/create?topic=planned&channel=early"):
        assert world.lookup("POST", target).status == 200
    page = visit().open("/lookup")
    page.get_by_role("row").filter(has_text="early").get_by_role("button", name="Delete").click()
    with page.expect_navigation():
        page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    expect(page.locator("h1")).to_have_text("Lookup")
    expect(page.get_by_role("status")).to_have_text("Done.")
    assert world.lookup("GET", "/channels?topic=planned").json["channels"] == []
    page.get_by_role("link", name="planned").click()
    expect(page.get_by_text("only lookup daemons know it")).to_be_visible()
    world.lookup("POST", "/topic/delete?topic=planned")


def test_topics_are_filtered_by_url(visit: Callable[..., Visit], world: World) -> None:
    names = [f"sieved_{number:02d}" for number in range(30)]
    for name in names:
        world.brokers[0].http("POST", "/topic/create", topic=name)
    world.brokers[0].http("POST", "/topic/pause", topic=names[7])
    page = visit().open("/topics?q=sieved_&size=25")
    expect(page.locator("tbody tr")).to_have_count(25, timeout=WAIT_MS)
    page.get_by_role("link", name="Paused 1").click()
    page.wait_for_url("**show=paused**")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody th")).to_contain_text(names[7])
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    page.goto(page.url.replace("show=paused", "show=homeless"))
    expect(page.locator("tbody tr")).to_have_count(0)
    page.get_by_role("link", name="Show all").click()
    expect(page.locator("tbody tr")).to_have_count(25)
    for name in names:
        world.brokers[0].http("POST", "/topic/delete", topic=name)


def test_the_overview_has_the_cluster_at_a_glance(visit: Callable[..., Visit], world: World) -> None:
    names = [f"glance_{number}" for number in range(2)]
    for name in names:
        world.publish(name, {0: 3, 1: 4}, channel="c")
    world.brokers[0].http("POST", "/channel/pause", topic=names[0], channel="c")
    at = visit()
    expect(at.open("/health").locator(".findings")).to_contain_text(f"{names[0]}/c is paused", timeout=POLLED_WITHIN_MS)
    page = at.open("/")
    # Rates need a second poll.
    expect(page.locator(".tiles dd").first).not_to_have_text("0", timeout=POLLED_WITHIN_MS)
    titles, values = (page.locator(f".tiles {each}").all_text_contents() for each in ("dt", "dd"))
    tiles = dict(zip(titles, values, strict=True))
    depth = sum(
        topic["depth"] + sum(channel["depth"] for channel in topic["channels"])
        for broker in world.brokers
        for topic in broker.topics().values()
    )
    assert 0 < int(tiles["Depth"].replace(",", "")) <= depth
    # Of the disk nsqd says nothing.
    assert (tiles["Brokers"], page.locator(".chart").count()) == ("2", 5 if world.is_reference else 6)
    # As the page of health has it, and marked in the list of topics.
    warnings = int(page.locator("#findings").text_content() or "0")
    assert warnings >= 2
    assert tiles["Health"].startswith(f"{warnings} warning")
    page.goto(page.url + "topics?q=glance_")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody th").first).to_contain_text("c paused")
    expect(page.locator("tfoot td").first).to_have_text("14")
    for name in names:
        for broker in world.brokers:
            broker.http("POST", "/topic/delete", topic=name)


@pytest.mark.usefixtures("pyqd_only")
def test_connections_of_all_brokers_and_their_versions_are_listed(visit: Callable[..., Visit], world: World) -> None:
    # The client of the load answers no heartbeats: it may be gone by now.
    with Client(world.brokers[0].tcp_address) as consumer, Client(world.brokers[1].tcp_address) as publisher:
        consumer.identify(client_id="listener", hostname="listener", user_agent="tests/3")
        consumer.sub(TOPIC, "email")
        publisher.identify(client_id="writer", hostname="writer", user_agent="tests/2")
        publisher.pub(TOPIC, b"x")
        page = visit().open("/connections")
        rows = page.locator("tbody tr")
        expect(rows.filter(has_text="listener")).to_contain_text(f"{TOPIC}/email")
        expect(rows.filter(has_text="writer")).to_contain_text(TOPIC)
        expect(rows.filter(has_text="writer")).to_contain_text("tests/2")
        page.goto(page.url + "?show=consumers")
        expect(rows.filter(has_text="writer")).to_have_count(0)
    page = visit().open("/nodes")
    expect(page.locator("tbody tr").first).to_contain_text(f"pyqd {__version__} (NSQ 1.3.0)", timeout=POLLED_WITHIN_MS)


def test_theme_and_language_are_kept(visit: Callable[..., Visit]) -> None:
    page = visit(color_scheme="light").open("/nodes")
    page.get_by_role("button", name="Dark or light").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    expect(page.locator("h1")).to_contain_text("节点")


def test_the_browser_asks_for_chinese(visit: Callable[..., Visit]) -> None:
    page = visit(locale="zh-CN").open("/health")
    expect(page.locator("html")).to_have_attribute("lang", "zh")


def test_the_keyboard_reaches_the_content_and_the_search(visit: Callable[..., Visit]) -> None:
    page = visit().open("/")
    page.keyboard.press("Tab")
    expect(page.get_by_text("To the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()


def test_a_message_is_found_and_cancelled(visit: Callable[..., Visit], world: World, pyqd_only: None) -> None:
    world.publish("browsed", {0: 20}, channel="c")
    page = visit().open("/topics/browsed/c/messages")
    page.get_by_label("With the text").fill("body 13")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**text=body**")
    page.locator("tbody input[type=checkbox]").check()
    page.get_by_role("button", name="Cancel messages").click()
    with page.expect_navigation():
        page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_have_text("done: 1")
    world.brokers[0].wait_for_channel("browsed", "c", depth=19)


def test_all_messages_of_a_page_are_chosen_by_one_box(
    visit: Callable[..., Visit], world: World, pyqd_only: None
) -> None:
    world.publish("chosen", {0: 5}, channel="c")
    page = visit().open("/topics/chosen/c/messages")
    page.get_by_label("Choose all of this page").check()
    expect(page.locator("tbody input:checked")).to_have_count(5)
    page.get_by_role("button", name="Reschedule").click()
    expect(page.get_by_role("status")).to_have_text("done: 5")
    world.brokers[0].wait_for_channel("chosen", "c", deferred_count=5)


def test_the_trace_of_a_topic_is_switched_on_after_a_confirmation(
    visit: Callable[..., Visit], world: World, pyqd_only: None
) -> None:
    page = visit().open(f"/topics/{TOPIC}")
    page.get_by_role("link", name="Retention, quota, trace").click()
    page.get_by_label("Rate").fill("0.5")
    page.locator("form").filter(has=page.get_by_label("Rate")).get_by_role("button").click()
    expect(page.locator("h1")).to_have_text("Confirm")
    assert not world.brokers[0].http("GET", "/topic/trace", topic=TOPIC).json()["traced"]
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_role("status")).to_have_text("Done.")
    traces = [broker.http("GET", "/topic/trace", topic=TOPIC).json() for broker in world.brokers]
    assert [trace["rate"] for trace in traces] == [pytest.approx(0.5), pytest.approx(0.5)]
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody")).to_contain_text("50 % of the topic")


def test_features_of_pyqd_are_offered_only_where_they_are(visit: Callable[..., Visit], world: World) -> None:
    page = visit().open("/durability")
    expect(page.locator("tbody tr").first).to_be_visible()
    expect(page.get_by_text("an nsqd does not tell")).to_have_count(2 if world.is_reference else 0)
    page = visit().open(f"/topics/{TOPIC}/email")
    expect(page.get_by_role("link", name="Dead letters")).to_have_count(0 if world.is_reference else 1)
    expect(page.get_by_role("link", name="Compare consumers")).to_have_count(1)
    page = visit().open(f"/topics/{TOPIC}/email/seek?to=earliest")
    expect(page.get_by_text("does not have this call")).to_have_count(2 if world.is_reference else 0)


def test_a_viewer_logs_in_and_gets_no_buttons(
    chromium: Browser, world: World, load: None, start_admin: Callable[..., Admin], tmp_path: Path
) -> None:
    path = tmp_path / "users"
    add_user(path, "vera", "only looking", UserRole.VIEW, ("*",))
    admin = start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}", f"--users-file={path}")
    visit = Visit(chromium, admin)
    page = visit.open(f"/topics/{TOPIC}")
    page.get_by_label("Name").fill("vera")
    page.get_by_label("Password").fill("only looking")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_contain_text(TOPIC)
    expect(page.get_by_role("button", name="Empty")).to_have_count(0)
    assert Axe().run(page).violations_count == 0
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("h1")).to_have_text("Log in")
    assert visit.faults == []
    visit.context.close()


def test_a_channel_is_deleted_and_a_topic_hidden_by_buttons(visit: Callable[..., Visit], world: World) -> None:
    world.publish("retired", {0: 3, 1: 3}, channel="c")
    page = visit().open("/topics/retired/c")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Delete").click()
    expect(dialog).to_contain_text("Delete channel c")
    with page.expect_navigation():
        dialog.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_have_text("Done.")
    assert [broker.channel("retired", "c") for broker in world.brokers] == [None, None]
    row = page.get_by_role("row").filter(has_text=world.addresses()[1])
    row.get_by_role("button", name="Tombstone").click()
    with page.expect_navigation():
        dialog.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_have_text("Done.")
    assert (world.brokers[0].topic("retired") is None, world.brokers[1].topic("retired")) == (False, None)


def test_a_form_of_a_foreign_page_changes_nothing(chromium: Browser, admin: Admin, world: World) -> None:
    world.publish("guarded", {0: 1}, channel="c")
    target = f"http://127.0.0.1:{admin.port}/do/empty"
    form = f"<form method=post action={target}><input name=topic value=guarded><input name=confirmed value=yes></form>"
    with http_stub(lambda *_: (200, {"Content-Type": "text/html"}, form.encode())) as foreign:
        page = chromium.new_context().new_page()
        page.goto(f"http://{foreign.address}/")
        with page.expect_response("**/do/empty") as found:
            page.evaluate("() => document.forms[0].submit()")
        assert found.value.status == 403
        page.context.close()
    assert (world.brokers[0].channel("guarded", "c") or {})["depth"] == 1


def test_charts_follow_the_polls_without_a_reload(visit: Callable[..., Visit]) -> None:
    page = visit().open(f"/topics/{TOPIC}")
    chart = page.locator("figure.chart").first
    before = chart.get_attribute("data-end") or ""
    page.evaluate("() => { window.isSame = true }")
    expect(chart).not_to_have_attribute("data-end", before)
    assert page.evaluate("() => window.isSame")
    # Values of this hour, the newest at the end.
    expect(chart.locator("polyline").first).to_be_attached(timeout=WAIT_MS)
    chart.locator("svg").hover(position={"x": 0, "y": 40})
    page.mouse.move(*right_edge_of(chart))
    expect(chart.locator("output")).to_contain_text(":")


def right_edge_of(chart: Any) -> tuple[float, float]:
    box = chart.locator("svg").bounding_box()
    return box["x"] + box["width"] - 2, box["y"] + box["height"] / 2
