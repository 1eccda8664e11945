"""Entry point for Spark, which imports every top-level module named pyspark_* and registers its DefaultSource.

A module of such a name that raises on import also removes the automatic sources of every other package, so this one
never raises, whatever is missing.
"""

import logging

try:
    from pyqd_spark.source import PyqdDataSource as DefaultSource
except Exception as error:
    logging.getLogger(__name__).warning('format("pyqd") is not available: %s: %s', type(error).__name__, error)
else:
    __all__ = ["DefaultSource"]
