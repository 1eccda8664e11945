"""Spark session in which pyqd's formats work at once: Java found, one Python everywhere, the formats registered."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyqd_spark import java
from pyqd_spark.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

PACKAGES = ("pyqd", "pyqd_spark", "pyspark_pyqd")
LOOPBACK = "127.0.0.1"

_LOGGER = "org.apache.spark.sql.execution.datasources.DataSourceManager"


def session(
    app_name: str = "pyqd", *, master: str | None = None, config: Mapping[str, object] | None = None
) -> SparkSession:
    """Return a Spark session with pyqd's formats, or the running one with the formats registered in it.

    master: as in Spark, such as "local[4]" or "spark://host:7077". By default it is the one of spark-submit or
    `config`, else "local[*]". For a master that is not local, pyqd's Python code is sent to the executors. config:
    settings of Spark by name; they win over those made here. Settings that count only at the start of a JVM, such as
    spark.driver.memory, have no effect on a running session. Raises: JavaMissingError.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    given = {name: _text(value) for name, value in (config or {}).items()}
    # Within spark-submit the JVM runs already, and SparkConf has the settings of the command line.
    submitted = dict(SparkConf().getAll()) if "PYSPARK_GATEWAY_PORT" in os.environ else {}
    chosen = master or given.get("spark.master") or submitted.get("spark.master") or "local[*]"
    if SparkContext._gateway is None:  # A JVM once started serves every later session of the process.
        prepare_environment(chosen)
    builder = SparkSession.builder.appName(app_name).master(chosen)
    for name, value in (defaults(chosen) | submitted | given).items():
        if name not in ("spark.master", "spark.app.name"):
            builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    if not is_local(chosen):
        ship(spark)
    register(spark)
    return spark


def formats() -> list[type[DataSource]]:
    from pyqd_spark.channel import PyqdChannelDataSource
    from pyqd_spark.source import PyqdDataSource

    return [PyqdDataSource, PyqdChannelDataSource]


def register(spark: SparkSession) -> None:
    """Register every format of pyqd in a session. Calling it again changes nothing.

    If pyqd is installed, Spark finds the format "pyqd" by itself; the other formats, and a checkout, need this call.
    """
    _be_quiet_about_replacing(spark)
    for source in formats():
        spark.dataSource.register(source)


def _be_quiet_about_replacing(spark: SparkSession) -> None:
    # Spark warns about registering a format that it has found by itself. The two are different: a format that Spark
    # found runs in the driver's interpreter on every machine, a registered one in that of PYSPARK_PYTHON.
    with contextlib.suppress(AttributeError):  # A session of Spark Connect has no JVM to talk to.
        log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        log4j.core.config.Configurator.setLevel(_LOGGER, log4j.Level.ERROR)


def is_local(master: str) -> bool:
    """Return whether a master runs its tasks in the driver's own process and on its disk."""
    return master == "local" or master.startswith("local[")


def defaults(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": _text(sys.stderr.isatty()),
        "spark.log.level": "WARN",
    }
    if is_local(master):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return settings


def prepare_environment(master: str = "local[*]") -> None:
    """Set the environment of the JVM and of the Python processes that it starts. Raises: JavaMissingError.

    Without PYSPARK_PYTHON Spark would start the first `python3` on the PATH.
    """
    found = java.find()
    if found.home is not None:
        os.environ["JAVA_HOME"] = str(found.home)
    if is_local(master):
        # This machine's name may not resolve to an address that it listens on.
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    present = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    missing = [entry for entry in uninstalled_directories() if entry not in present]
    if missing:
        os.environ["PYTHONPATH"] = os.pathsep.join([*missing, *present])


def uninstalled_directories() -> list[str]:
    """Return the directories that hold our packages outside of site-packages, as in a checkout.

    Spark looks for sources in the modules that a listing of sys.path shows, which omits those of an editable install.
    """
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    found: list[str] = []
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or ()) if spec is not None else ():
            directory = str(Path(location).parent)
            if directory not in installed and directory not in found:
                found.append(directory)
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
