"""Loads of bench.tools for tools that consume: the broker has the messages, and the tool passes them on.

The rate is that between the moments at which a twentieth of the messages is finished, and all but a twentieth: neither
the start of the process nor the wait for the last sync is a part of it. At the end the other side has every message.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from bench.tool_run import Run

CHANNEL = "bench"
POLL_S = 0.005
EDGE = 0.05
# Requests of HTTP cost much more than messages of the other tools.
FEWER = 10


def drained(run: Run, *arguments: str, check: Callable[[], int]) -> float:
    """Have a tool consume the messages; return the time for all at its rate. check: counts those that arrived."""
    run.publish(CHANNEL)
    base = (f"--topic={run.topic}", f"--channel={CHANNEL}", f"--nsqd-tcp-address={run.address}")
    with run.running(*base, *arguments):
        samples = watched(run)
    found = check()
    if found != run.messages:
        run.fail(f"{found} of {run.messages} messages have arrived")
    run.delete(run.topic)
    first, last = samples[0], samples[-1]
    inner = [sample for sample in samples if EDGE <= sample[1] / run.messages <= 1 - EDGE]
    if inner and inner[0][1] < inner[-1][1]:
        first, last = inner[0], inner[-1]
    return (last[0] - first[0]) / (last[1] - first[1]) * run.messages


def watched(run: Run) -> list[tuple[float, int]]:
    """Wait until all messages are finished; return times and numbers of finished messages, from the start on."""
    samples = [(time.monotonic(), 0)]
    while samples[-1][1] < run.messages:
        time.sleep(POLL_S)
        samples.append((time.monotonic(), run.messages - run.unfinished_count(CHANNEL)))
    return samples


def to_files(run: Run) -> float:
    """Write files. Returns: the time in s."""
    directory = run.directory / run.topic
    directory.mkdir()

    def count() -> int:
        return len({int(line) for path in directory.iterdir() for line in path.read_bytes().splitlines()})

    # The original ends the wait for a batch that is not full by the interval alone.
    return drained(run, f"--output-dir={directory}", "--sync-interval=1s", check=count)


def to_broker(run: Run) -> float:
    """Publish to another topic. Returns: the time in s."""
    topic = f"{run.topic}-copy"
    try:
        return drained(
            run,
            f"--destination-nsqd-tcp-address={run.address}",
            f"--destination-topic={topic}",
            "--status-every=0",
            check=lambda: run.message_count(topic),
        )
    finally:
        run.delete(topic)


def to_http(run: Run) -> float:
    """Post to the HTTP API of the broker. Returns: the time in s."""
    topic = f"{run.topic}-copy"
    few = replace(run, messages=max(100, run.messages // FEWER))
    url = f"http://{run.http_address}/pub?topic={topic}"
    try:
        time_s = drained(few, f"--post={url}", "--status-every=0", check=lambda: run.message_count(topic))
    finally:
        run.delete(topic)
    return time_s / few.messages * run.messages
