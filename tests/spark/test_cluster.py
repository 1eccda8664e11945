"""A real cluster, a master and two workers, whose executors share nothing with the driver and have no pyqd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Daemon
from tests.support.spark_cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]

TOPIC = "cluster-orders"
COUNT = 3000

DRIVER = """
import json, sys
import pyqd_spark

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
spark = pyqd_spark.session("executors", master=sys.argv[1], config={
    "spark.driver.host": "127.0.0.1", "spark.driver.memory": "512m", "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": OPTIONS, "spark.executor.extraJavaOptions": OPTIONS,
    "spark.sql.shuffle.partitions": 2,
})

def look(_):
    import os, pyqd_spark, sys, time
    from pyqd.primitives import names
    try:
        from pyqd.hot import crc32c
    except ImportError:
        compiled = False
    else:
        compiled = True
    # Long enough for the other executor to take its share.
    time.sleep(1)
    yield [os.getcwd(), pyqd_spark.__file__, names.__file__, sys.executable, compiled]

executors = spark.sparkContext.parallelize(range(4), 4).mapPartitions(look).collect()

def with_place(rows):
    import os
    for row in rows:
        yield [row.node, int(row.value), os.getcwd()]

orders = spark.read.format("pyqd").option("nsqd", sys.argv[2]).option("subscribe", sys.argv[3]).load()
rows = orders.select("node", "value").rdd.mapPartitions(with_place).collect()
spark.stop()
print(json.dumps({"executors": executors, "rows": rows}))
"""


@pytest.fixture(scope="module")
def seen(
    two_workers: Cluster, brokers: tuple[Daemon, Daemon], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What one driver program saw: of the executors, and of a topic that two brokers have a part of."""
    for number, broker in enumerate(brokers):
        bodies = "\n".join(str(body) for body in range(number, COUNT, len(brokers)))
        assert broker.http("POST", "/mpub", bodies.encode(), topic=TOPIC).status == 200
    addresses = ",".join("{}:{}".format(*broker.http_address) for broker in brokers)
    found: dict[str, Any] = two_workers.run_driver(DRIVER, tmp_path_factory.mktemp("driver"), addresses, TOPIC)
    return found


def test_executors_without_pyqd_run_the_code_that_the_session_sends(two_workers: Cluster, seen: dict[str, Any]) -> None:
    assert len({directory for directory, *_ in seen["executors"]}) == len(two_workers.work)
    for directory, package, module, python, compiled in seen["executors"]:
        # Both lie in the zip that Spark has put into the working directory of the executor.
        assert ".zip/" in package
        assert ".zip/" in module
        assert Path(directory, package).is_relative_to(directory)
        assert Path(directory, module).is_relative_to(directory)
        assert python == str(two_workers.python)
        assert not compiled


def test_executors_read_every_message_of_all_brokers_once(two_workers: Cluster, seen: dict[str, Any]) -> None:
    assert sorted(body for _, body, _ in seen["rows"]) == list(range(COUNT))
    bodies_of: dict[str, list[int]] = {}
    for node, body, place in seen["rows"]:
        bodies_of.setdefault(node, []).append(body)
        assert any(Path(place).is_relative_to(work) for work in two_workers.work)
    assert sorted(bodies_of.values()) == [list(range(0, COUNT, 2)), list(range(1, COUNT, 2))]
