"""docs/spark.md works: every block of it runs here unchanged, in an empty home directory.

Only the masters of two clusters that do not exist here are replaced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.meta.repository import ROOT
from tests.support.pages import Block, sections_of
from tests.support.reader import Reader
from tests.support.spark_cluster import cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "spark.md"
SECTIONS = sections_of(PAGE)
ON_CLUSTER = "On a cluster"
ORDERS = 1000
# Commands for a master that does not exist here run on this one.
LOCAL_MASTER = "local[2]"


def on_a_master_that_is_there(command: str) -> str:
    """Return a command for a cluster of YARN or Kubernetes, with a master of this machine instead."""
    if "--master yarn" not in command and "--master k8s:" not in command:
        return command
    command = re.sub(r"--master \S+", f"--master {LOCAL_MASTER}", command).replace("--deploy-mode cluster", "")
    return command.replace("local:///opt/", "")


def publish_orders(reader: Reader, block: Block) -> None:
    """Give the reader a broker with the messages that the beginning of the page publishes."""
    (reader.machine.home / "data").mkdir()
    reader.start_broker("pyqd --data-path=data")
    lines = "".join(json.dumps({"order": number, "amount": 100 * number}) + "\n" for number in range(1, ORDERS + 1))
    (reader.machine.home / "orders").write_text(lines)
    reader.run("curl -sf --data-binary @orders 'http://127.0.0.1:4151/mpub?topic=orders'", block)


def test_the_page_can_be_followed_word_by_word(make_reader: Callable[[Path], Reader]) -> None:
    reader = make_reader(PAGE)
    for title, blocks in SECTIONS.items():
        if title != ON_CLUSTER:
            for block in blocks:
                reader.follow(block)


def test_a_cluster_can_be_used_as_the_page_says(
    make_reader: Callable[[Path], Reader], fast_spark_home: Path, tmp_path: Path
) -> None:
    reader = make_reader(PAGE)
    blocks = SECTIONS[ON_CLUSTER]
    publish_orders(reader, blocks[0])
    prefix = reader.machine.prefix
    with cluster(tmp_path / "cluster", fast_spark_home, host="spark-master", port=7077, prefix=prefix) as running:
        reader.machine.environment |= {
            "PYSPARK_PYTHON": str(running.python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        for block in blocks:
            if block.language != "console":
                reader.follow(block)
                continue
            for command in block.commands():
                reader.run(on_a_master_that_is_there(command), block)
                if command.startswith("spark-submit "):
                    assert f"{ORDERS} orders on 1 brokers" in reader.printed
