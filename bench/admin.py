"""Web admins with many topics: time until topics are shown in the browser, memory, cost of polls.

Each round opens the list of topics in a fresh browser context and waits for the first topic. The cost of polls is the
CPU time of the costliest broker while a page is open, as a part of one core.
"""

import atexit
import os
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import sync_playwright

from bench.server import Figures, Server, Target, address_text, running
from bench.setting import Setting, read_memory
from bench.study import Study
from bench.topics import create
from pyqd.tools.bench.connections import Address
from pyqd.tools.bench.process import read_cpu_time

BROKERS, TOPICS, CHANNELS = 3, 1000, 4
POLLS_S = 30.0
# Link by which each page shows a topic.
SELECTOR = "a[href*='topics/topic_']"


def study(_setting: Setting, scale: float) -> Study:
    stack = ExitStack()
    atexit.register(stack.close)
    flags = ("-broadcast-address=127.0.0.1", "--log-level=error")
    brokers = [stack.enter_context(running(Target.parse("pyqd"), flags=flags)) for _ in range(BROKERS)]
    for each in brokers:
        create(each, max(1, round(TOPICS * scale)), CHANNELS, "topic_")

    def options(listening: Address, _http: Address, _data_path: Path) -> list[str]:
        sources = [f"--nsqd-http-address={address_text(each.http_address)}" for each in brokers]
        return [f"--http-address={address_text(listening)}", *sources]

    commands: dict[str, tuple[str, ...]] = {"pyqadmin": (sys.executable, "-m", "pyqd.apps.admin", "--log-level=error")}
    if given := os.environ.get("NSQADMIN"):
        commands["nsqadmin"] = (given,)
    admins = {
        name: stack.enter_context(running(Target(name, command, program="admin", slowness=3.0, options=options)))
        for name, command in commands.items()
    }
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        raise ValueError("no chromium here: apt-get install chromium")
    browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=program, args=["--no-sandbox"])
    stack.callback(browser.close)

    def run(_row: str, name: str) -> Figures:
        server: Server = admins[name]
        context = browser.new_context()
        page = context.new_page()
        begun_s = time.monotonic()
        page.goto(f"http://{address_text(server.tcp_address)}/", wait_until="commit")
        page.wait_for_selector(SELECTOR, state="attached", timeout=30_000)
        took_s = time.monotonic() - begun_s
        before = [read_cpu_time(each.pid).total_s for each in brokers]
        time.sleep(POLLS_S * scale)
        spent = [read_cpu_time(each.pid).total_s - cpu_s for each, cpu_s in zip(brokers, before, strict=True)]
        context.close()
        memory_mb = read_memory(server.pid).rss_bytes / 1e6
        return {"took_s": took_s, "memory_mb": memory_mb, "cpu_percent": 100 * max(spent) / (POLLS_S * scale)}

    return Study(rows={"topics": f"{TOPICS} topics of {CHANNELS} channels"}, contenders=list(admins), run=run)
