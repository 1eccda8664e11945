"""Registration of pyqd's formats in a Spark session."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

_LOGGER = "org.apache.spark.sql.execution.datasources.DataSourceManager"

# Module and class of each format.
FORMATS = (
    ("pyqd_spark.source", "PyqdDataSource"),
    ("pyqd_spark.channel", "PyqdChannelDataSource"),
)


def formats() -> list[type[DataSource]]:
    """Return the data sources of pyqd, one class for each format."""
    return [getattr(importlib.import_module(module), name) for module, name in FORMATS]


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
