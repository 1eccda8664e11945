"""Streams of format("pyqd"): offsets, limits, and ranges that stay the same if a batch is planned again.

Offsets are positions by topic and node, of the next message:

    {"orders": {"1f0c...": 1234}, "$created": {"orders": {"1f0c...": 1795177301998000000}}, "$start": {...}}

`$created` distinguishes a topic from one that was deleted and created again under the same name. `$start` has the
beginning of the batch at nodes that the previous offset does not have.

Spark does not store a first offset: after a kill in the first batch it asks again. If "latest" were another position by
then, messages would be skipped silently. So the first offset is empty, whatever the options say. The options are
resolved when the first batch is made, and stored with its end, as `$start`, in the checkpoint. The same holds for a
node that appears later: its beginning is stored with the end of the first batch that has it.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyqd_spark.bounds import Places, resolve, within
from pyqd_spark.brokers import Positions
from pyqd_spark.discovery import Discovery, Found, lose
from pyqd_spark.plan import LogRange, count_between, partitions_of, position_after, shares
from pyqd_spark.read_options import LATEST, Bound, ReadSettings
from pyqd_spark.reader import RangePartition, node_indexes, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

CREATED: Final = "$created"
START: Final = "$start"

# If a node may be left out, the stream does not wait for it: the next batch is soon.
RETRY_LONGEST_S: Final = 5.0
# An idle Spark asks for the newest offset every 12 ms.
POSITIONS_KEPT_S: Final = 0.1
# The brokers of a topic change seldom.
PLACES_KEPT_S: Final = 5.0

logger = logging.getLogger(__name__)


class PyqdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of new messages from all nodes with the topics. Lives in the driver as long as the query runs."""

    def __init__(self, settings: ReadSettings) -> None:
        self.settings = settings
        self.discovery = Discovery(settings if settings.fail_on_data_loss else impatient(settings))
        self.target: Found | None = None
        self._found: Found = {}
        self._found_s = -POSITIONS_KEPT_S
        self._places: dict[str, list[str]] = {}
        self._places_s = -PLACES_KEPT_S
        self._told_missing: set[str] = set()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the empty first offset; the options are resolved with the first batch."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.settings.offsets_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the present end, at which the query stops."""
        self.target = self.find(fresh=True)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or `start` itself if nothing is new.

        Raises: BrokerError, DataLossError.
        """
        found = self.target if self.target is not None else self.find()
        begins, fresh = self.begins(start, found)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = limited(begins, found, most)
        if start and not fresh and all(ends[key] == begins[key] for key in ends):
            return start
        return self.offset(start, begins, ends, fresh, found)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the newest known offset, for the progress of the query."""
        if not self._found:
            return None
        return by_topic({key: one.next for key, one in self._found.items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch: the same ranges for the same offsets on every call."""
        begins = places_in(start) | places_in(end.get(START, {}))
        ends = places_in(end)
        wanted = {key: (begins[key], stop) for key, stop in ends.items() if begins[key] < stop}
        if not wanted:
            return []
        found = self._found
        if any(key not in found or found[key].next < stop for key, (_, stop) in wanted.items()):
            found = self.find(fresh=True)
        created = places_in(end.get(CREATED, {}))
        index_of = node_indexes(ends)
        ranges = []
        for key, (first, stop) in sorted(wanted.items()):
            one = found.get(key)
            if one is None:
                lose(self.settings, f"{named(key)} cannot be read from {first} to {stop}: no broker has it now")
                continue
            ranges.append(LogRange(*key, index_of[key], one.address, created.get(key, 0), first, stop))
        cut = partitions_of(ranges, found, self.settings.partitions_min, self.settings.records_per_partition_max)
        return [RangePartition(one) for one in cut]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return read_partition(self.settings, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: reading removes no message."""

    def stop(self) -> None:
        self.discovery.close()

    def find(self, fresh: bool = False) -> Found:
        """Return the readable positions; cached ones unless fresh is set. Raises: BrokerError, DataLossError."""
        now_s = time.monotonic()
        if fresh or now_s - self._places_s >= PLACES_KEPT_S:
            self._places = self.discovery.places()
            self._places_s = time.monotonic()
        elif now_s - self._found_s < POSITIONS_KEPT_S:
            return self._found
        self._found = self.discovery.find(self._places)
        self._found_s = time.monotonic()
        self._tell_missing()
        return self._found

    def _tell_missing(self) -> None:
        missing = set(self.settings.topics) - {topic for topic, _ in self._found}
        for topic in sorted(missing - self._told_missing):
            logger.warning("no broker has topic %s yet; it is read from its beginning once there is one", topic)
        self._told_missing = missing

    def begins(self, start: Mapping[str, Any], found: Found) -> tuple[Places, set[tuple[str, str]]]:
        """Return the beginning of the next batch, and the nodes at which it differs from `start`.

        Raises: DataLossError if messages after `start` are gone and failOnDataLoss is true.
        """
        if not start:
            bound = self.settings.start or Bound(LATEST)
            places = within(self.settings, resolve(bound, found, self.discovery, "startingOffsets"), found, "start")
            return places, set(places)
        known = places_in(start)
        created = places_in(start.get(CREATED, {}))
        for key in sorted(set(known) - set(found)):
            # The node stays in the offsets: when the node is back, reading resumes at the same position.
            lose(self.settings, f"{named(key)} is not there any more, read so far: to {known[key]}")
        places = dict(known)
        for key, one in found.items():
            if key not in known:
                places[key] = one.earliest
            elif (reason := why_lost(one, known[key], created.get(key, 0))) is not None:
                lose(self.settings, f"{named(key)} ({one.address}): {reason}")
                again = created.get(key, 0) not in (0, one.created)
                places[key] = one.earliest if again else min(max(known[key], one.earliest), one.next)
        return places, {key for key, place in places.items() if known.get(key) != place}

    def offset(
        self, start: Mapping[str, Any], begins: Places, ends: Places, fresh: set[tuple[str, str]], found: Found
    ) -> dict[str, Any]:
        """Return the offset at the end of a batch."""
        created = places_in(start.get(CREATED, {})) | {key: one.created for key, one in found.items()}
        # Not empty even without nodes: so it differs from the first one, and later nodes are read from their start.
        offset = {**by_topic(ends), CREATED: by_topic(created)}
        return {**offset, START: by_topic({key: begins[key] for key in fresh})} if fresh else offset


def impatient(settings: ReadSettings) -> ReadSettings:
    """Return settings with a short retry time for nodes that do not answer."""
    retry_s = min(settings.connection.retry_timeout_s, RETRY_LONGEST_S)
    return replace(settings, connection=replace(settings.connection, retry_timeout_s=retry_s))


def limited(begins: Places, found: Found, most: int | None) -> Places:
    """Return the end of a batch with about `most` messages, shared in proportion."""
    keys = sorted(set(begins) & set(found))
    counts = [count_between(begins[key], found[key].next, found[key]) for key in keys]
    allowed = counts if most is None else shares(counts, most)
    ends = {
        key: position_after(begins[key], count, found[key].next, found[key])
        for key, count in zip(keys, allowed, strict=True)
    }
    return {**begins, **ends}


def why_lost(one: Positions, known: int, created: int) -> str | None:
    """Return why reading cannot resume at an offset; None if it can."""
    if 0 not in (created, one.created) and created != one.created:
        return f"the topic was deleted and re-created, and offset {known} was of the former topic"
    if known < one.earliest:
        return f"offset {known} is not kept any more, the oldest message has {one.earliest}"
    if known > one.next:
        return f"offset {known} is behind the end, the next message gets {one.next}"
    return None


def places_in(offset: Mapping[str, Any]) -> Places:
    """Return the positions in an offset, by topic and node. The other keys are not valid topic names."""
    return {
        (topic, node): position
        for topic, by_node in offset.items()
        if topic not in (CREATED, START)
        for node, position in by_node.items()
    }


def by_topic(places: Places) -> dict[str, dict[str, int]]:
    """Return numbers by topic and node for JSON, sorted because Spark compares offsets as text."""
    found: dict[str, dict[str, int]] = {}
    for (topic, node), position in sorted(places.items()):
        found.setdefault(topic, {})[node] = position
    return found


def named(key: tuple[str, str]) -> str:
    return f"topic {key[0]} at node {key[1]}"
