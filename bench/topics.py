"""Cost of many topics: creation over one HTTP connection, memory, mappings, /stats, stop and start.

One message is published to each topic. After the start, a message of every hundredth topic is consumed.
"""

import os
import time
from pathlib import Path

from bench.runner import ping, wait_for
from bench.server import Figures, Server, Target, address_text, post, running
from bench.setting import Setting, read_memory
from bench.study import Study
from pyqd.client import Consumer
from pyqd.primitives.progress import Progress
from pyqd.tools.bench.process import read_cpu_time

# Topics and channels of each.
SIZES = {"3000x3": (3_000, 3), "20000x3": (20_000, 3), "50000x1": (50_000, 1)}
CONSUMED_EVERY = 100
MEGA = 1e6


def create(server: Server, topic_count: int, channel_count: int, prefix: str = "topic") -> None:
    """Create topics with their channels, one request after the other."""
    with server.http() as client, Progress("creation", topic_count, "topics") as progress:
        for number in range(topic_count):
            topic = f"{prefix}{number:05d}"
            post(client, "/topic/create", topic=topic)
            for channel in range(channel_count):
                post(client, "/channel/create", topic=topic, channel=f"channel{channel}")
            progress.advance()


def memory_figures(pid: int, when: str = "") -> Figures:
    memory = read_memory(pid)
    with Path(f"/proc/{pid}/maps").open("rb") as maps:
        mappings = sum(1 for _ in maps)
    return {
        f"memory{when}, MB": memory.rss_bytes / MEGA,
        f"memory outside files{when}, MB": memory.anonymous_bytes / MEGA,
        f"mappings{when}": float(mappings),
    }


def consume_one(server: Server, topic: str) -> None:
    """Take one message of a topic and finish it."""
    address = address_text(server.tcp_address)
    with Consumer(topic, "channel0", nsqd=address, max_in_flight=1) as consumer:
        next(iter(consumer)).finish()


def run(target: Target, topic_count: int, channel_count: int, setting: Setting) -> Figures:
    figures: Figures = {}
    cores = setting.cores.of(target)
    with running(target, cores=cores, data_root=setting.data_root, flags=setting.flags) as server:
        cpu_before, begun_s = read_cpu_time(server.pid), time.monotonic()
        create(server, topic_count, channel_count)
        figures["creation_s"] = time.monotonic() - begun_s
        figures["creation_cpu_s"] = (read_cpu_time(server.pid) - cpu_before).total_s
        with server.http() as client:
            for number in range(topic_count):
                post(client, "/pub", b"one message", topic=f"topic{number:05d}")
            figures |= memory_figures(server.pid)
            begun_s = time.monotonic()
            client.request("GET", "/stats?format=json")
            figures["/stats, s"] = time.monotonic() - begun_s
        begun_s = time.monotonic()
        server.stop()
        figures["stop_s"] = time.monotonic() - begun_s
        begun_s = time.monotonic()
        server.start()
        wait_for(server, lambda: ping(server), "/ping answered")
        figures["start_s"] = time.monotonic() - begun_s
        figures["start_cpu_s"] = read_cpu_time(server.pid).total_s
        figures |= memory_figures(server.pid, " after the start")
        for number in range(0, topic_count, CONSUMED_EVERY):
            consume_one(server, f"topic{number:05d}")
    return figures


def study(setting: Setting, scale: float) -> Study:
    targets = {each.name: each for each in map(Target.parse, filter(None, ("pyqd", os.environ.get("NSQD"))))}

    def measure(row: str, contender: str) -> Figures:
        topics, channels = SIZES[row]
        return run(targets[contender], max(1, round(topics * scale)), channels, setting)

    rows = {name: f"{topics:,} topics with {channels} channels" for name, (topics, channels) in SIZES.items()}
    return Study(rows=rows, contenders=list(targets), run=measure)
