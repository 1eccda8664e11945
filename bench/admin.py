"""The web admin with many topics, beside nsqadmin: time until topics stand in the browser, memory, cost of polls.

    .venv/bin/python -m bench.admin --nsqadmin=PATH

Each round opens the list of topics in both, in turn, in a fresh browser context, and waits for the first topic. Figures
are medians. The cost of polls is the CPU time of the brokers while a page is open, as a part of one core.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode

from playwright.sync_api import Browser, sync_playwright
from tqdm import tqdm

from bench.procfs import read_memory
from bench.server import Server, Target, free_addresses, running, stop
from pyqd.primitives.command_line import CommandParser
from pyqd.tools.bench.process import read_cpu_time

START_WAIT_S: Final = 30.0
POLLS_S: Final = 30.0
MIB: Final = 1 << 20
# Text by which each page shows a topic.
SELECTOR: Final = "a[href*='topics/topic_']"


def create(server: Server, topic_count: int, channel_count: int) -> None:
    """Create topics with channels over one HTTP connection."""
    connection = http.client.HTTPConnection(*server.http_address, timeout=START_WAIT_S)
    with contextlib.closing(connection):
        for number in range(topic_count):
            topic = f"topic_{number:04d}"
            calls = [("/topic/create", {"topic": topic})]
            calls += [
                ("/channel/create", {"topic": topic, "channel": f"channel_{each}"}) for each in range(channel_count)
            ]
            for path, query in calls:
                connection.request("POST", f"{path}?{urlencode(query)}")
                answer = connection.getresponse()
                answer.read()
                if answer.status != http.client.OK:
                    raise SystemExit(f"POST {path}: {answer.status}")


@contextlib.contextmanager
def admin(command: list[str], servers: list[Server]) -> Iterator[tuple[int, str]]:
    """Run a web admin over brokers. Yields: process id and URL."""
    host, port = free_addresses(1)[0]
    flags = [f"--nsqd-http-address={server.http_address[0]}:{server.http_address[1]}" for server in servers]
    process = subprocess.Popen(
        [*command, f"--http-address={host}:{port}", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline_s = time.monotonic() + START_WAIT_S
        while not answers(host, port):
            if time.monotonic() > deadline_s or process.poll() is not None:
                raise SystemExit(f"{command[0]} does not answer")
            time.sleep(0.05)
        yield process.pid, f"http://{host}:{port}/"
    finally:
        stop(process)


def answers(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=START_WAIT_S)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/ping")
        return connection.getresponse().status == http.client.OK
    return False


def time_of(browser: Browser, url: str) -> float:
    """Return the seconds from opening a page until its first topic stands there."""
    context = browser.new_context()
    page = context.new_page()
    started_s = time.monotonic()
    page.goto(url, wait_until="commit")
    page.wait_for_selector(SELECTOR, state="attached", timeout=START_WAIT_S * 1000)
    took_s = time.monotonic() - started_s
    context.close()
    return took_s


def poll_share(browser: Browser, url: str, servers: list[Server]) -> float:
    """Return the part of a core that the costliest broker spends while a page is open."""
    context = browser.new_context()
    context.new_page().goto(url)
    before = [read_cpu_time(server.pid) for server in servers]
    time.sleep(POLLS_S)
    shares = [
        (read_cpu_time(server.pid) - earlier).total_s / POLLS_S for server, earlier in zip(servers, before, strict=True)
    ]
    context.close()
    return max(shares)


def main() -> int:
    """Measure and print. Returns: the exit code."""
    parser = CommandParser(
        prog="python -m bench.admin", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nsqadmin", help="path of an nsqadmin to compare with")
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--channels", type=int, default=4)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    commands = {"pyqadmin": [sys.executable, "-m", "pyqd.apps.admin", "--log-level=error"]}
    if given.nsqadmin:
        commands["nsqadmin"] = [given.nsqadmin]
    with contextlib.ExitStack() as stack:
        target = Target.parse("pyqd")
        servers = [
            stack.enter_context(running(target, flags=("-broadcast-address=127.0.0.1", "--log-level=error")))
            for _ in range(given.brokers)
        ]
        for server in tqdm(servers, desc="creating topics", leave=False):
            create(server, given.topics, given.channels)
        admins = {name: stack.enter_context(admin(command, servers)) for name, command in commands.items()}
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _pid, url in admins.values():
            time_of(browser, url)
        times: dict[str, list[float]] = {name: [] for name in admins}
        for _ in tqdm(range(given.rounds), desc="opening pages", leave=False):
            for name, (_pid, url) in admins.items():
                times[name].append(time_of(browser, url))
        for name, each in times.items():
            memory = read_memory(admins[name][0]).rss_bytes / MIB
            print(f"{name:<10} topics in the browser after {statistics.median(each) * 1000:6.0f} ms, {memory:5.0f} MiB")
        if "nsqadmin" in times:
            ratio = statistics.median(times["pyqadmin"]) / statistics.median(times["nsqadmin"])
            print(f"pyqadmin / nsqadmin: {ratio:.2f}")
        print(f"polls of pyqadmin: {poll_share(browser, admins['pyqadmin'][1], servers):.2%} of a core of a broker")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
