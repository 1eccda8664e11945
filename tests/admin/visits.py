"""Visits of the web admin by a browser, which note what must not be there."""

from __future__ import annotations

import os
import re
from typing import Any

from playwright.sync_api import Browser, Page, expect

from pyqd.admin.poller import INTERVAL_MAX_S
from tests.admin.conftest import Admin

WAIT_MS = 40_000
expect.set_options(timeout=WAIT_MS)
# The slower the brokers answer, the rarer they are asked. On a busy machine these are slow.
POLLED_WITHIN_MS = 1000 * INTERVAL_MAX_S + WAIT_MS
# Directory for a picture of each page, in each look; none without it.
PICTURES = os.environ.get("PYQD_PICTURES")
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 800}


def keep_picture(page: Page, look: str) -> None:
    """Save a picture of a page for people, if PYQD_PICTURES names a directory. look: part of its name."""
    if PICTURES:
        path = re.sub(r"\W+", "-", page.url.partition("//")[2].partition("/")[2]).strip("-") or "home"
        page.screenshot(path=f"{PICTURES}/{path}-{look}.png", full_page=True)


class Visit:
    """A page that notes what must not be there: messages on the console, and requests to other hosts."""

    def __init__(self, browser: Browser, admin: Admin, **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESK, "locale": "en-GB", **context})
        self.page = self.context.new_page()
        self.base = f"http://127.0.0.1:{admin.port}"
        self.faults: list[str] = []
        self.expected = ""
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", self._note)

    def expect_missing(self, is_missing: bool) -> None:
        """Expect pages that do not exist, or no such page: the console tells that one has the status 404."""
        self.expected = "404 (Not Found)" if is_missing else ""

    def _note_message(self, message: Any) -> None:
        if not self.expected or self.expected not in message.text:
            self.faults.append(message.text)

    def _note(self, request: Any) -> None:
        if not request.url.startswith(self.base):
            self.faults.append(request.url)

    def open(self, path: str) -> Page:
        self.page.goto(self.base + path, wait_until="domcontentloaded")
        return self.page
