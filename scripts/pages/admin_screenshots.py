"""Pictures of the web admin for docs/admin.md: a small cluster under load, seen in Chromium."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import sync_playwright

from pyqd.client import Consumer, Producer

TOPICS: Final = {"orders": ("email", "warehouse"), "payments": ("ledger",), "page_views": ("analytics", "archive")}
WARM_S: Final = 150.0
DESK: Final = {"width": 1280, "height": 760}
STORY: Final = {"width": 1120, "height": 440}
PHONE: Final = {"width": 390, "height": 760}


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_up(port: int) -> None:
    """Wait until the web admin, which starts last, answers."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)


def publish(address: str, ended: threading.Event) -> None:
    """Publish to all topics at rates that change."""
    dice = random.Random(1)
    with Producer(address) as producer:
        while not ended.wait(0.1):
            wave = 1 + (time.monotonic() // 15) % 3
            for number, topic in enumerate(TOPICS):
                bodies = [
                    b'{"id": %d, "total": %.2f}' % (dice.randrange(10**6), dice.random() * 99)
                    for _ in range(int(wave) + 2 * number)
                ]
                producer.publish_many(topic, bodies)
            if dice.random() < 0.1:
                producer.publish("orders", b'{"id": 7, "reminder": true}', delay=600)


def consume(address: str, topic: str, channel: str, pause_s: float, ended: threading.Event) -> None:
    """Consume slowly, and requeue now and then."""
    dice = random.Random(channel)
    with Consumer(topic, channel, nsqd=address, max_in_flight=5) as consumer:
        while not ended.is_set():
            for message in consumer.fetch(5, timeout=0.5):
                time.sleep(pause_s)
                if dice.random() < 0.02:
                    message.requeue(5)
                else:
                    message.finish()


def tell(address: str) -> None:
    """Publish one message, requeue it once, and finish it: the story in the README."""
    with Consumer("refunds", "bank", nsqd=address, max_in_flight=1) as consumer, Producer(address) as producer:
        # The channel is there first.
        consumer.fetch(1, timeout=2)
        producer.publish("refunds", b'{"id": 7, "total": 19.90}')
        for attempt in (1, 2):
            for message in consumer.fetch(1, timeout=10):
                time.sleep(0.02)
                if attempt == 1:
                    message.requeue(1)
                else:
                    message.finish()


def take(directory: Path, base: str, node: str) -> None:
    """Save the pictures. node: HTTP address of the broker."""
    pages: dict[str, tuple[str, dict[str, Any]]] = {
        "admin-overview": ("/", {"color_scheme": "light"}),
        "admin-streams": ("/topics", {"color_scheme": "light"}),
        "admin-channel": ("/topics/orders/email", {"color_scheme": "light"}),
        "admin-topic-dark": ("/topics/orders", {"color_scheme": "dark"}),
        "admin-messages": ("/topics/orders/email/messages?state=deferred&body=json", {"color_scheme": "light"}),
        "admin-node": ("/nodes/{node}", {"color_scheme": "light"}),
        "admin-health": ("/health", {"color_scheme": "dark"}),
        "admin-consumers": ("/topics/orders/email/consumers", {"color_scheme": "light"}),
        "admin-durability": ("/durability", {"color_scheme": "dark"}),
        "admin-story": ("/messages?topic=refunds", {"color_scheme": "light", "viewport": STORY}),
        "admin-phone": ("/topics/payments", {"color_scheme": "light", "viewport": PHONE}),
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell") or shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, (path, options) in pages.items():
            context = browser.new_context(**{"viewport": DESK, "locale": "en-GB", **options})
            page = context.new_page()
            page.goto(base + path.format(node=node))
            if name == "admin-story":
                page.locator("tbody th a").first.click()
                page.wait_for_selector(".timeline")
            page.screenshot(path=str(directory / f"{name}.png"))
            context.close()
        browser.close()


def take_all(directory: Path) -> None:
    """Run the cluster, and save the pictures."""
    ports = free_ports(5)
    names = ("tcp-port", "http-port", "lookupd-tcp-port", "lookupd-http-port", "admin-port")
    flags = [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
    with tempfile.TemporaryDirectory() as data:
        group = subprocess.Popen([sys.executable, "-m", "pyqd.apps.cli", "up", f"--data-path={data}", *flags])
        ended = threading.Event()
        address = f"127.0.0.1:{ports[0]}"
        work: list[Callable[[], None]] = [lambda: publish(address, ended)]
        work += [
            lambda topic=topic, channel=channel, pause_s=pause_s: consume(address, topic, channel, pause_s, ended)  # type: ignore[misc]
            for topic, channel, pause_s in (
                ("orders", "email", 0.06),
                ("orders", "email", 0.06),
                ("orders", "email", 0.4),
                ("orders", "warehouse", 0.06),
                ("payments", "ledger", 0.01),
                ("page_views", "analytics", 0.005),
            )
        ]
        try:
            wait_up(ports[-1])
            for topic, channels in TOPICS.items():
                for channel in channels:
                    Consumer(topic, channel, nsqd=address).close()
            threads = [threading.Thread(target=each) for each in work]
            for thread in threads:
                thread.start()
            tell(address)
            time.sleep(WARM_S)
            take(directory, f"http://127.0.0.1:{ports[-1]}", f"127.0.0.1:{ports[1]}")
        finally:
            ended.set()
            group.terminate()
            group.wait(60)
