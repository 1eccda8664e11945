"""Python clients in turns against one pyqd: pyqd.client, pyqd.client.aio, pynsq, gnsq and ansq.

Each run is a fresh process of one client on the generator's core, with a topic of its own. Every run is checked against
the broker's own counts.
"""

import atexit
import itertools
import json
import subprocess
import sys
from contextlib import ExitStack

from bench import accounts
from bench.client_loads import BODY, CHANNEL, LOADS, ROUND, ROWS
from bench.server import REPOSITORY, Figures, RunError, Server, Target, address_text, running
from bench.setting import Setting, settle
from bench.study import Study
from pyqd.client import Producer

WHAT = {
    "publish": "publish 100 B, awaited one by one",
    "pipelined": f"publish 100 B, {ROUND:,} pipelined",
    "consume": "consume 100 B with max_in_flight 1,000, FIN in a handler",
}
SECONDS = 2.0
# A first run of the consuming row finds the number of messages that take about the wanted time.
PROBE_COUNT = 5000
BATCH = 1000
DEADLINE_S = 60.0


def load(server: Server, setting: Setting, client: str, row: str, count: float, topic: str) -> Figures:
    """Run one load in a process. count: seconds to publish, or messages to consume. Raises: RunError."""
    address = address_text(server.tcp_address)
    command = [sys.executable, "-m", "bench.client_loads", client, row, address, topic, str(count)]
    if setting.cores.generator is not None:
        command += ["--core", str(setting.cores.generator)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise RunError(f"status {done.returncode}\n{done.stderr[-2000:]}")
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    if row == "consume":
        accounts.require_consumed(server, topic, int(count))
    else:
        accounts.require_published(server, topic, int(found["published"]))
    server.post("/topic/delete", topic=topic)
    messages = found["messages"]
    return {"rate_per_s": messages / found["seconds"], "client_cpu_us": found["cpu_s"] * 1e6 / messages}


def fill(server: Server, topic: str, count: int) -> None:
    server.post("/channel/create", topic=topic, channel=CHANNEL)
    with Producer(address_text(server.tcp_address)) as producer:
        for start in range(0, count, BATCH):
            producer.publish_many(topic, [BODY] * min(BATCH, count - start))
    settle(server)


def study(setting: Setting, scale: float) -> Study:
    stack = ExitStack()
    atexit.register(stack.close)
    target = Target.parse("pyqd")
    server = stack.enter_context(running(target, cores=setting.cores.of(target), data_root=setting.data_root))
    numbers = itertools.count()
    counts: dict[str, int] = {}

    def consume(client: str, count: int) -> Figures:
        topic = f"client-{next(numbers)}"
        server.post("/topic/create", topic=topic)
        fill(server, topic, count)
        return load(server, setting, client, "consume", count, topic)

    def run(row: str, client: str) -> Figures:
        if row != "consume":
            return load(server, setting, client, row, SECONDS * scale, f"client-{next(numbers)}")
        if client not in counts:
            rate = consume(client, PROBE_COUNT)["rate_per_s"]
            counts[client] = max(BATCH, round(rate * SECONDS * scale / BATCH) * BATCH)
        return consume(client, counts[client])

    def can(row: str, client: str) -> bool:
        return ROWS.index(row) < len(LOADS[client])

    return Study(rows=WHAT, contenders=list(LOADS), run=run, can=can)
