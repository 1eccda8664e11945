"""The web admin with 1,000 topics on 100 brokers: paging, charts, updates and memory.

Two cores do not carry a hundred brokers. These answer as nsqd does, from one process, with numbers that grow.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from pyqd.admin.pages.views import FINDINGS_MAX
from tests.admin.conftest import Admin
from tests.admin.visits import POLLED_WITHIN_MS, WAIT_MS, Visit
from tests.support.server import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(250)]

NODE_COUNT = 100
TOPIC_COUNT = 1000
CHANNELS = ("archive", "audit", "email", "search")
# Each topic is on as many brokers.
COPIES = 2
MEMORY_MAX_KB = 150_000
PAGE_BYTES_MAX = 150_000


class FarBroker(ThreadingHTTPServer):
    """One broker that answers GET /info and /stats."""

    daemon_threads = True

    def __init__(self, number: int) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.number = number
        self.poll_count = 0
        self.topics = [topic for topic in range(TOPIC_COUNT) if number in homes_of(topic)]
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def answer(self, path: str, query: dict[str, list[str]]) -> Any:
        if path == "/info":
            return {
                "version": "1.3.0",
                "broadcast_address": "127.0.0.1",
                "hostname": f"broker{self.number:03d}",
                "http_port": self.server_port,
                "tcp_port": self.server_port,
            }
        if path == "/stats":
            wanted = query.get("topic", [""])[0]
            self.poll_count += not wanted
            return {"topics": [self.topic(each) for each in self.topics if wanted in ("", name_of(each))]}
        return None

    def topic(self, topic: int) -> dict[str, Any]:
        count = topic * 10 + self.poll_count * (topic % 7)
        channel = {"depth": topic + self.poll_count, "backend_depth": 0, "message_count": count, "clients": []}
        return {
            "topic_name": name_of(topic),
            "depth": 0,
            "backend_depth": 0,
            "message_count": count,
            "channels": [{"channel_name": name, "in_flight_count": 1, **channel} for name in CHANNELS],
        }


class Answers(BaseHTTPRequestHandler):
    """Requests of the web admin."""

    server: FarBroker
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        found = self.server.answer(parts.path, parse_qs(parts.query))
        body = json.dumps({"message": "NOT_FOUND"} if found is None else found).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def homes_of(topic: int) -> list[int]:
    return [(topic * COPIES + copy) % NODE_COUNT for copy in range(COPIES)]


def name_of(topic: int) -> str:
    return f"topic_{topic:04d}"


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[FarBroker]]:
    started = [FarBroker(number) for number in range(NODE_COUNT)]
    yield started
    for each in started:
        each.shutdown()
        each.server_close()


@pytest.fixture(scope="module")
def admin(brokers: list[FarBroker], start_admin: Callable[..., Admin]) -> Admin:
    started = start_admin("pyqadmin", *(f"--nsqd-http-address={each.address}" for each in brokers))
    wait_until(lambda: b"topic_0000" in started.ask("GET", "/topics").body, "the first poll")
    return started


def resident_kb(admin: Admin) -> int:
    assert admin.process is not None
    status = Path(f"/proc/{admin.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


def test_topics_are_paged_sorted_and_charted(chromium: Browser, admin: Admin) -> None:
    visit = Visit(chromium, admin)
    page = visit.open("/topics?sort=-depth")
    expect(page.locator("tbody tr")).to_have_count(50)
    expect(page.locator("tbody th").first).to_have_text("topic_0999")
    expect(page.locator("tbody svg.spark")).to_have_count(50, timeout=WAIT_MS)
    expect(page.get_by_text("Page 1 of 20")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text("Page 2 of 20")).to_be_visible()
    # The numbers grow with each poll: this one changes without a reload.
    depth = page.locator("tbody td").first
    before = depth.text_content() or ""
    expect(depth).not_to_have_text(before, timeout=POLLED_WITHIN_MS)
    expect(page.locator("tbody td:nth-child(6)").first).to_contain_text(re.compile(r"\d"))
    visit.context.close()
    assert visit.faults == []


def test_the_charts_of_a_topic_and_the_nodes_are_shown(chromium: Browser, admin: Admin) -> None:
    visit = Visit(chromium, admin)
    page = visit.open("/topics/topic_0123")
    expect(page.locator("figure.chart")).to_have_count(2)
    expect(page.locator("tbody svg.spark")).to_have_count(len(CHANNELS))
    page.goto(f"{visit.base}/nodes?size=100")
    expect(page.locator("tbody tr")).to_have_count(NODE_COUNT)
    page.locator("#main").get_by_label("With the text").fill("broker042")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_text("1 row of 100")).to_be_visible()
    assert "size=100" in page.url
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    page.goto(f"{visit.base}/health")
    expect(page.locator(".findings li").first).to_contain_text("topic_0999/")
    expect(page.get_by_text(f"{TOPIC_COUNT * len(CHANNELS) - FINDINGS_MAX} more warnings")).to_be_visible()
    page.goto(f"{visit.base}/durability")
    expect(page.locator("tbody tr").filter(has_text="an nsqd does not tell")).to_have_count(NODE_COUNT)
    visit.context.close()
    assert visit.faults == []


def test_a_page_stays_small_and_polls_ask_all_brokers_equally(admin: Admin, brokers: list[FarBroker]) -> None:
    assert len(admin.ask("GET", "/topics?size=50").body) < PAGE_BYTES_MAX
    counts = [each.poll_count for each in brokers]
    pairs = list(zip(brokers, counts, strict=True))
    wait_until(
        lambda: all(each.poll_count > before for each, before in pairs), "a poll of all", POLLED_WITHIN_MS / 1000
    )
    grown = {each.poll_count - before for each, before in pairs}
    assert max(grown) - min(grown) <= 2
    assert resident_kb(admin) < MEMORY_MAX_KB
