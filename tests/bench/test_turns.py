"""Channels of one topic under load: none is served behind the others."""

import json
import threading
import urllib.request
from dataclasses import replace

import pytest

from bench.runner import run_end_to_end
from bench.server import Server, Target, running
from bench.setting import Cores, Setting
from bench.workloads import find

MESSAGES = 100_000
UNCONSUMED = 20_000
# Depths below are those of the start and of the end.
DEEP = 10_000
POLL_S = 0.02


def sample(server: Server, ended: threading.Event, depths: list[list[int]]) -> None:
    """Add the depths of the topic's channels, again and again, until the load has ended."""
    host, port = server.http_address
    while not ended.wait(POLL_S):
        with urllib.request.urlopen(f"http://{host}:{port}/stats?format=json", timeout=10.0) as answer:
            topics = json.load(answer)["topics"]
        depths += [[channel["depth"] for channel in topic["channels"]] for topic in topics]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_sixteen_channels_of_a_topic_under_load_are_served_alike() -> None:
    workload = replace(find("fanout-16"), messages=MESSAGES, unconsumed=UNCONSUMED)
    depths: list[list[int]] = []
    ended = threading.Event()
    with running(Target.parse("pyqd")) as server:
        sampler = threading.Thread(target=sample, args=(server, ended, depths))
        sampler.start()
        try:
            run_end_to_end(workload, server, Setting(cores=Cores()))
        finally:
            ended.set()
            sampler.join()
    deep = [each for each in depths if max(each) > DEEP]
    assert deep, "the load ended between two samples"
    # Without turns two thirds of the channels have next to nothing, and the others all of it. The median, as a sample
    # may come in the middle of a round.
    shares = sorted(min(each) / max(each) for each in deep)
    assert shares[len(shares) // 2] > 0.4
