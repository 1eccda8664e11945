"""`make flame` with a short load."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("bench.loadgen", reason="built only with PYQD_BUILD_BENCH=1")

from bench.server import REPOSITORY

NO_PERMISSION = ("permission denied", "operation not permitted", "eperm")
# Publishing and delivery, from the socket to the log and back.
HOT = (
    "pyqd.hot.ioloop.IoLoop.run_pass",
    "pyqd.hot.topic.TopicCore.publish_batch",
    "pyqd.hot.log.Log.append",
    "pyqd.hot.pump.Pump.deliver",
    "pyqd.hot.channel.ChannelCore.finish",
    "pyqd.hot.outbox.Outbox.flush",
)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_flame_graph_shows_publishing_and_delivery_by_the_names_in_the_source(tmp_path: Path) -> None:
    image = tmp_path / "flame.svg"
    done = subprocess.run(
        [REPOSITORY / "scripts" / "flame.sh", "--scale=0.5", "--unpinned"],
        env={
            **os.environ,
            "FLAME_BIN": os.path.dirname(sys.executable),
            "FLAME_OUTPUT": str(image),
            "FLAME_WORKLOAD": "e2e",
        },
        capture_output=True,
        text=True,
        timeout=150,
    )
    said = done.stdout + done.stderr
    if done.returncode and any(sign in said.lower() for sign in NO_PERMISSION):
        pytest.skip("py-spy may not trace here: it takes root or kernel.yama.ptrace_scope=0")
    assert done.returncode == 0, said
    samples = dict.fromkeys(HOT, 0)
    for name, count in re.findall(r"<title>(\S+) \(([0-9,]+) samples", image.read_text()):
        if name in samples:
            samples[name] += int(count.replace(",", ""))
    assert all(samples.values()), samples
