"""One Spark session for all tests of a run, and two brokers beside it.

Whatever uses the session is marked `spark` here; so has to be a test that starts a JVM of its own. All tests of this
directory run in one process, see tests/conftest.py, as a session takes 10 s and 1.5 GB to start.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyqd_spark import java
from tests.support.machine import Machine
from tests.support.reader import Reader
from tests.support.server import Daemon, Implementation, daemons_running, pyqd
from tests.support.spark_cluster import Cluster, cluster
from tests.support.spark_home import settings, spark_home
from tests.support.spark_java import fast_java
from tests.support.spark_side import Starter, servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first test in line waits for the JVM as well, on a machine that does other work too.
SPARK_WAIT_S = 600
# Of drivers that are started as a user starts them.
SPARK_DEFAULTS = """\
spark.driver.memory 512m
spark.executor.memory 512m
spark.ui.enabled false
spark.sql.shuffle.partitions 2
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""


def pytest_itemcollected(item: pytest.Item) -> None:
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker("spark")
    if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(SPARK_WAIT_S))


@pytest.fixture(scope="session")
def java_there() -> java.Java:
    """The Java that Spark runs in; tests that use it are skipped if there is none."""
    try:
        return java.find()
    except java.JavaMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def fast_spark_home(java_there: java.Java) -> Iterator[Path]:
    """SPARK_HOME and JAVA_HOME for this process and its children: tests/support/spark_home.py and spark_java.py."""
    home = spark_home()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        if java_home := fast_java(java_there.executable, home):
            patch.setenv("JAVA_HOME", str(java_home))
        yield home


@pytest.fixture(scope="session")
def spark(fast_spark_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session. Tests name their views, tables and queries uniquely, and stop those they start."""
    import pyqd_spark

    session = pyqd_spark.session("tests", config=settings(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def two_workers(fast_spark_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster of two workers, for driver programs of their own; see tests/support/spark_cluster.py."""
    with cluster(tmp_path_factory.mktemp("cluster"), fast_spark_home) as running:
        yield running


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Daemon]]:
    """Two daemons for the session; no test stops or kills them, and each test has topics of its own."""
    directory = tmp_path_factory.mktemp("brokers")
    daemons = (Daemon(pyqd(), directory / "a"), Daemon(pyqd(), directory / "b"))
    with daemons_running() as start:
        for daemon in daemons:
            start(daemon)
        yield daemons


@pytest.fixture
def broker(brokers: tuple[Daemon, Daemon]) -> Iterator[Daemon]:
    """The first of the two; after the test it must still be well."""
    yield brokers[0]
    brokers[0].assert_healthy()


@pytest.fixture(scope="session")
def shared_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Implementation], Daemon]]:
    """Function that returns the one daemon of an implementation, for tests that neither stop nor configure it."""
    with servers(tmp_path_factory.mktemp("daemons")) as start:
        found: dict[str, Daemon] = {}
        yield (
            lambda implementation: (
                found.get(implementation.name) or found.setdefault(implementation.name, start(implementation))
            )
        )


@pytest.fixture
def daemon(shared_daemons: Callable[[Implementation], Daemon], implementation: Implementation) -> Iterator[Daemon]:
    """The shared daemon, without topics."""
    found = shared_daemons(implementation)
    yield found
    for name in found.topics():
        found.http("POST", "/topic/delete", topic=name)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Start a daemon of the test's own, start(implementation, *flags), which it may stop, kill and start again."""
    # Clients of a killed daemon reconnect to the same address, so its ports must last.
    with servers(tmp_path) as starter:
        yield starter


@pytest.fixture
def make_broker(start: Starter) -> Callable[..., Daemon]:
    return functools.partial(start, pyqd())


@pytest.fixture
def make_reader(fast_spark_home: Path, tmp_path: Path) -> Iterator[Callable[[Path], Reader]]:
    """Make the reader of a page, with a Spark that starts fast."""
    readers: list[Reader] = []

    def make(page: Path) -> Reader:
        machine = Machine(tmp_path, names=["spark-master"])
        (tmp_path / "spark-defaults.conf").write_text(SPARK_DEFAULTS)
        machine.environment |= {"SPARK_HOME": str(fast_spark_home), "SPARK_CONF_DIR": str(tmp_path)}
        readers.append(Reader(machine, page))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()
        reader.machine.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A unique name for a topic: the test's own, cut to the length limit."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")
    return f"{name[:48]}-{os.urandom(4).hex()}"
