"""End of the tools that pass messages on: a signal waits for what is under way, and not for ever."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nsq import Client
from tests.support.publish_broker import publish_brokers
from tests.support.server import Daemon
from tests.support.tools import Running

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

# The tool with a shorter limit, in place of half a minute.
CODE = """
import sys
from pyqd.tools import intake
from pyqd.tools.pyq_to_nsq import main
intake.WORK_S, intake.DRAIN_S = 0.3, 2.3
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def command(address: str, topic: str) -> list[str]:
    """Command line of pyq_to_nsq without its destination."""
    options = (f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}")
    return [sys.executable, "-c", CODE, *options]


def test_messages_of_a_destination_that_hangs_go_back_to_the_broker(
    command: list[str], broker: Daemon, topic: str, tmp_path: Path
) -> None:
    with Client(broker.tcp_address) as client:
        client.pub_each(topic, [b"one", b"two"])
    with publish_brokers(1) as (hanging,):
        hanging.answer = lambda publish: b""
        destination = f"--destination-nsqd-tcp-address={hanging.address}"
        tool = Running([*command, destination], tmp_path, 0, subprocess.DEVNULL)
        hanging.wait(lambda: len(hanging.published) > 0, "a publish")
        result = tool.stop(signal.SIGTERM)
    assert result.code == 0
    # Requeued by the tool: nsqd would leave them in flight.
    broker.wait_for_channel(topic, "c", depth=2, in_flight_count=0, requeue_count=2)
