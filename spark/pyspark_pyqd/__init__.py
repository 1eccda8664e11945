"""Spark imports every top-level module named pyspark_* and registers its DefaultSource: so format("pyqd") is there.

A module of such a name that raises on import takes away the automatic sources of every other package as well, so this
one does not raise, whatever is missing.
"""

import logging

try:
    from pyqd_spark.source import PyqdDataSource as DefaultSource
except Exception as error:
    logging.getLogger(__name__).warning('format("pyqd") is not available: %s: %s', type(error).__name__, error)
else:
    __all__ = ["DefaultSource"]
