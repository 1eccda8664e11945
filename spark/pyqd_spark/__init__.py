"""pyqd and Apache Spark: topics read, written and drained as data sources of PySpark. The manual is docs/spark.md.

Executors import this package too, so it imports PySpark and Arrow only on use.
"""

from pyqd_spark.java import JavaMissingError
from pyqd_spark.session import register, session
from pyqd_spark.shipping import build_zip, ship

__all__ = ["JavaMissingError", "build_zip", "register", "session", "ship"]
