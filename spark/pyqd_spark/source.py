"""format("pyqd"): topics of pyqd as a data source of PySpark, for batches and streams. The manual is docs/spark.md."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyqd_spark.options import OptionError, parse_flag
from pyqd_spark.read_options import SOURCE, ReadSettings, parse_settings
from pyqd_spark.reader import PyqdReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

BODY = "value"
SCHEMA = StructType(
    [
        StructField(BODY, BinaryType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("node", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("timestamp_ns", LongType(), nullable=False),
        StructField("id", StringType(), nullable=False),
        StructField("deferred_until", TimestampType(), nullable=True),
    ]
)


class PyqdDataSource(DataSource):
    """Data source that reads topics by position from all brokers that have them, and publishes."""

    @classmethod
    def name(cls) -> str:
        return "pyqd"

    def schema(self) -> StructType:
        text = next((text for name, text in self.options.items() if name.lower() == "includebody"), "true")
        return schema_with(parse_flag(text)) if text.lower() in ("true", "false") else SCHEMA

    def reader(self, schema: StructType) -> "PyqdReader":
        """Return the reader of a batch. Raises: OptionError."""
        settings = parse_settings(self.options, streaming=False)
        check_schema(schema, settings)
        return PyqdReader(settings)

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":  # noqa: N802
        """Return the reader of a stream. Raises: OptionError."""
        from pyqd_spark.stream import PyqdStreamReader

        settings = parse_settings(self.options, streaming=True)
        check_schema(schema, settings)
        return PyqdStreamReader(settings)

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        """Return the publisher of a batch. Raises: OptionError."""
        from pyqd_spark.writer import PyqdArrowWriter

        return PyqdArrowWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
        """Return the publisher of a stream. Raises: OptionError."""
        from pyqd_spark.writer import PyqdStreamArrowWriter

        return PyqdStreamArrowWriter(self.options, schema, overwrite)


def schema_with(include_body: bool) -> StructType:
    """Return the columns, with or without the body."""
    return SCHEMA if include_body else StructType([column for column in SCHEMA if column.name != BODY])


def check_schema(given: StructType, settings: ReadSettings) -> None:
    """Refuse a schema given by the user. Raises: OptionError."""
    wanted = schema_with(settings.include_body)
    if [(column.name, column.dataType) for column in given] != [(one.name, one.dataType) for one in wanted]:
        raise OptionError(f"{SOURCE}: the columns are {wanted.simpleString()}; leave schema() out")
