"""A real cluster, a master and two workers, whose executors share nothing with the driver and have no pyqd.

Only a table lies at a path that all of them reach. Slow steps are done once: a driver program that runs the commands of
`pyq_spark` one after the other in one session and examines the executors, and one more command by spark-submit.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pyqd_spark
from pyqd_spark import cli
from tests.spark.drained import files, numbers, publish
from tests.support.server import Daemon
from tests.support.spark_cluster import DRIVER_WAIT_S, Cluster
from tests.support.spark_side import http_address

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(700)]

TOPIC = "cluster-orders"
AGAIN = "cluster-orders-again"
COUNT = 3000
LATER = 100

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
}
CONF = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]

DRIVER = """
import contextlib, io, json, sys
import pyqd_spark
from pyqd_spark import cli
from pyspark.sql import SparkSession

master, addresses, topic = sys.argv[1:4]
conf, first, *others = json.loads(sys.argv[4])

# A session for each command would be a start of the executors for each.
SparkSession.__exit__ = lambda *_: None

def pyq_spark(command, *words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([command, "--master", master, *conf, *words])
    return [code, out.getvalue(), err.getvalue()]

ended = [pyq_spark(*first)]
spark = pyqd_spark.session("executors", master=master)

def look(_):
    import os, pyqd_spark, sys, time
    from pyqd.primitives import names
    try:
        from pyqd.hot.primitives import crc32c
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

orders = spark.read.format("pyqd").option("nsqd", addresses).option("subscribe", topic).load()
rows = orders.select("node", "value").rdd.mapPartitions(with_place).collect()
ended += [pyq_spark(*words) for words in others]
spark.stop()
print(json.dumps({"executors": executors, "rows": rows, "ended": ended}))
"""


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Seen(NamedTuple):
    """Findings of the driver program about the executors, about a topic spread over two brokers, and about
    ended jobs.
    """

    executors: list[list[Any]]
    rows: list[list[Any]]
    jobs: dict[str, Ended]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that driver and executors share."""
    return tmp_path_factory.mktemp("shared")


def drain_words(place: Path, brokers: tuple[Daemon, Daemon]) -> list[str]:
    nsqd = [word for broker in brokers for word in ("--nsqd", http_address(broker))]
    return ["drain", *nsqd, "--path", str(place / "table"), "--topic", TOPIC]


@pytest.fixture(scope="module")
def seen(
    two_workers: Cluster, brokers: tuple[Daemon, Daemon], place: Path, tmp_path_factory: pytest.TempPathFactory
) -> Seen:
    for number, broker in enumerate(brokers):
        publish(broker, TOPIC, range(number, COUNT, len(brokers)))
    addresses = ",".join(http_address(broker) for broker in brokers)
    table = ["--path", str(place / "table")]
    commands = {
        "drain": drain_words(place, brokers),
        "replay": ["replay", "--nsqd", addresses, *table, "--to", AGAIN],
        "profile": ["profile", *table, "--output", str(place / "profile")],
        "refused replay": ["replay", "--nsqd", addresses, *table, "--to", "no/topic"],
        "compact": ["compact", *table],
    }
    found = two_workers.run_driver(
        DRIVER, tmp_path_factory.mktemp("driver"), addresses, TOPIC, json.dumps([CONF, *commands.values()])
    )
    jobs = dict(zip(commands, (Ended(*each) for each in found["ended"]), strict=True))
    return Seen(found["executors"], found["rows"], jobs)


@pytest.fixture(scope="module")
def submitted(
    seen: Seen,
    two_workers: Cluster,
    brokers: tuple[Daemon, Daemon],
    place: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Ended:
    """The next drain of the table, by spark-submit, with a driver that also has only the zip and the program."""
    for number, broker in enumerate(brokers):
        publish(broker, TOPIC, range(COUNT + number, COUNT + LATER, len(brokers)))
    directory = tmp_path_factory.mktemp("submit")
    program = directory / "cli.py"
    program.write_bytes(Path(cli.__file__).read_bytes())
    archive = pyqd_spark.build_zip(directory / "pyqd-spark.zip")
    submit = [str(two_workers.spark_home / "bin" / "spark-submit"), "--master", two_workers.master, *CONF]
    result = subprocess.run(
        [*submit, "--py-files", str(archive), str(program), *drain_words(place, brokers)],
        cwd=directory,
        env=two_workers.environment() | {"PYTHONPATH": "", "PYSPARK_DRIVER_PYTHON": str(two_workers.python)},
        capture_output=True,
        text=True,
        timeout=DRIVER_WAIT_S,
        check=False,
    )
    return Ended(result.returncode, result.stdout, result.stderr)


def test_executors_without_pyqd_run_the_code_that_the_session_sends(two_workers: Cluster, seen: Seen) -> None:
    assert len({directory for directory, *_ in seen.executors}) == len(two_workers.work)
    for directory, package, module, python, compiled in seen.executors:
        # Both lie in the zip that Spark has put into the working directory of the executor.
        assert ".zip/" in package
        assert ".zip/" in module
        assert Path(directory, package).is_relative_to(directory)
        assert Path(directory, module).is_relative_to(directory)
        assert python == str(two_workers.python)
        assert not compiled


def test_executors_read_every_message_of_all_brokers_once(two_workers: Cluster, seen: Seen) -> None:
    assert sorted(body for _, body, _ in seen.rows) == list(range(COUNT))
    bodies_of: dict[str, list[int]] = {}
    for node, body, place in seen.rows:
        bodies_of.setdefault(node, []).append(body)
        assert any(Path(place).is_relative_to(work) for work in two_workers.work)
    assert sorted(bodies_of.values()) == [list(range(0, COUNT, 2)), list(range(1, COUNT, 2))]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("drain", f"run 1: {COUNT:,} rows"),
        ("replay", f"{COUNT:,} messages with"),
        ("profile", f"{COUNT:,} messages, "),
        ("compact", f"{COUNT:,} rows"),
    ],
)
def test_a_job_has_the_same_result_on_a_cluster(seen: Seen, job: str, said: str) -> None:
    ended = seen.jobs[job]
    assert ended.code == cli.DONE, ended.err
    assert said in ended.out


def test_a_replay_on_a_cluster_publishes_each_message_once(seen: Seen, brokers: tuple[Daemon, Daemon]) -> None:
    assert seen.jobs["replay"].code == cli.DONE
    assert sum((broker.topic(AGAIN) or {"message_count": 0})["message_count"] for broker in brokers) == COUNT


def test_the_failure_of_a_task_of_a_job_is_reported_in_one_sentence(seen: Seen) -> None:
    ended = seen.jobs["refused replay"]
    assert ended.code == cli.FAILED
    assert "pyq_spark: publishing failed, earlier messages stay published: 127.0.0.1:" in ended.err
    assert 'E_BAD_TOPIC MPUB topic name "no/topic" is not valid' in ended.err
    assert "Traceback" not in ended.err


def test_a_drain_by_spark_submit_continues_a_table_with_only_the_zip(submitted: Ended, place: Path) -> None:
    assert submitted.code == cli.DONE, submitted.err
    assert f"run 2: {LATER:,} rows" in submitted.out
    assert numbers(place / "table") == list(range(COUNT + LATER))
    assert any(file.name.startswith("merged-") for file in files(place / "table"))
