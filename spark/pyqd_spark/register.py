"""Which formats there are, and how a session comes to know them."""

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
    """Make every format of pyqd known to a session. Doing it again changes nothing.

    Where pyqd is installed Spark finds the format "pyqd" by itself; the others, and a checkout, need this.
    """
    _be_quiet_about_replacing(spark)
    for source in formats():
        spark.dataSource.register(source)


def _be_quiet_about_replacing(spark: SparkSession) -> None:
    # Registering what Spark has found by itself deserves no warning, and is not the same: what Spark found runs in the
    # driver's interpreter on every machine, what is registered in that of PYSPARK_PYTHON.
    with contextlib.suppress(AttributeError):  # A session of Spark Connect has no JVM to talk to.
        log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        log4j.core.config.Configurator.setLevel(_LOGGER, log4j.Level.ERROR)
