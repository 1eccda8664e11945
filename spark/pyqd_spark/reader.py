"""Batches of format("pyqd"): ranges fixed when the batch is planned, read by tasks."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyqd_spark.bounds import resolve, within
from pyqd_spark.discovery import Discovery, check_topics
from pyqd_spark.options import OptionError
from pyqd_spark.plan import LogRange, partitions_of
from pyqd_spark.read_options import EARLIEST, LATEST, SOURCE, Bound, ReadSettings

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """Range of one task."""

    def __init__(self, value: LogRange) -> None:
        super().__init__(value)


class PyqdReader(DataSourceReader):
    """Reader of ranges that are fixed when the batch is planned."""

    def __init__(self, settings: ReadSettings) -> None:
        self.settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the batch. Raises: OptionError, BrokerError, DataLossError."""
        return [RangePartition(one) for one in batch_ranges(self.settings)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return read_partition(self.settings, partition)


def read_partition(settings: ReadSettings, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
    """Yield the messages of a range. If there are no ranges, Spark runs one task without a partition."""
    one: Any = getattr(partition, "value", None)
    if one is None:
        return iter(())
    # Imported here, so that planning in the driver works without Arrow.
    from pyqd_spark.decode import read_range

    return read_range(settings, one)


def batch_ranges(settings: ReadSettings) -> list[LogRange]:
    """Return the ranges of a batch: the present records within its bounds."""
    discovery = Discovery(settings)
    try:
        found = discovery.find()
        check_topics(settings, found)
        starts = resolve(settings.start or Bound(EARLIEST), found, discovery, "startingOffsets")
        stops = resolve(settings.end or Bound(LATEST), found, discovery, "endingOffsets")
    finally:
        discovery.close()
    starts = within(settings, starts, found, "start")
    stops = within(settings, stops, found, "end")
    index_of = node_indexes(found)
    ranges = []
    for key, one in sorted(found.items()):
        if starts[key] > stops[key]:
            raise OptionError(f"{SOURCE}: topic {key[0]} at node {key[1]}: start {starts[key]} is behind {stops[key]}")
        ranges.append(LogRange(one.topic, one.node, index_of[key], one.address, one.created, starts[key], stops[key]))
    return partitions_of(ranges, found, settings.partitions_min, settings.records_per_partition_max)


def node_indexes(keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return by topic and node the index of the node among the topic's nodes, sorted by name."""
    found: dict[tuple[str, str], int] = {}
    count_of: dict[str, int] = {}
    for topic, node in sorted(keys):
        found[topic, node] = count_of.get(topic, 0)
        count_of[topic] = found[topic, node] + 1
    return found
