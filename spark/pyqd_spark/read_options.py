"""Options of the source: topics and bounds, with names and meanings of Spark's Kafka source.

A node corresponds to a partition of Kafka. Its name is the id in its data directory, never its address.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyqd.primitives.durations import INT64_MAX, MILLISECOND_NS
from pyqd.primitives.timestamps import parse_timestamp
from pyqd_spark.options import (
    CONNECTION,
    BrokerOptions,
    Option,
    OptionError,
    count_from,
    exactly_one,
    parse_flag,
    parse_names,
    parse_options,
)

SOURCE: Final = 'format("pyqd")'
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# Numbers within JSON, as in the Kafka source.
EARLIEST_NUMBER: Final = -2
LATEST_NUMBER: Final = -1

# {"orders": {"1f0c...": 1234}}
Offsets = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Bound:
    """Beginning or end of a read, given by one of the set fields. time_ns wins, then `offsets`, then `at`."""

    at: str = EARLIEST
    offsets: Offsets | None = None
    time_ns: int | None = None


@dataclass(frozen=True)
class ReadSettings:
    """Options of a read, as sent to the executors.

    Of topics, nodes_of and pattern exactly one is set. nodes_of: node ids by topic. start: None for the default, which
    is earliest for a batch and latest for a stream.
    """

    connection: BrokerOptions
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    nodes_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start: Bound | None = None
    end: Bound | None = None
    offsets_per_trigger_max: int | None = None
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    fail_on_data_loss: bool = True
    include_body: bool = True


def parse_pattern(text: str) -> str:
    """Return a regular expression, for whole names. Raises: ValueError."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None
    return text


def parse_json(text: str) -> dict[str, Any]:
    """Return a JSON object. Raises: ValueError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    return found


def parse_assignment(text: str) -> dict[str, tuple[str, ...]]:
    """Return node ids by topic, from `{"orders": ["1f0c..."]}`. Raises: ValueError."""
    found = parse_json(text)
    if not found:
        raise ValueError("expected at least one topic")
    for topic, nodes in found.items():
        if not (isinstance(nodes, list) and nodes and all(isinstance(node, str) for node in nodes)):
            raise ValueError(f"expected a list of node ids for topic {topic}")
    return {topic: tuple(dict.fromkeys(nodes)) for topic, nodes in found.items()}


def parse_bound(text: str) -> Bound:
    """Return the bound that `earliest`, `latest` or `{"orders": {"1f0c...": 1234}}` stands for. Raises: ValueError."""
    if text.lower() in (EARLIEST, LATEST):
        return Bound(at=text.lower())
    try:
        found = parse_json(text)
    except ValueError:
        raise ValueError(f"expected {EARLIEST}, {LATEST} or JSON such as " + '{"orders": {"1f0c": 1234}}') from None
    for topic, offset_of in found.items():
        if not isinstance(offset_of, dict):
            raise ValueError(f"expected offsets by node id for topic {topic}")
        for node, offset in offset_of.items():
            if type(offset) is not int or not LATEST_NUMBER - 1 <= offset <= INT64_MAX:
                raise ValueError(f"no offset: {offset!r} of topic {topic}, node {node}")
    return Bound(offsets=found)


def parse_time(text: str) -> int:
    """Return nanoseconds since 1970, from milliseconds or RFC 3339. Raises: ValueError."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text) * MILLISECOND_NS
    try:
        return parse_timestamp(text, 0)
    except ValueError:
        raise ValueError("expected milliseconds since 1970, or RFC 3339 such as 2026-11-21T04:15:00Z") from None


OPTIONS: Final = (
    *CONNECTION,
    Option("subscribe", parse_names),
    Option("subscribePattern", parse_pattern),
    Option("assign", parse_assignment),
    Option("startingOffsets", parse_bound),
    Option("endingOffsets", parse_bound),
    Option("startingTimestamp", parse_time),
    Option("endingTimestamp", parse_time),
    Option("maxOffsetsPerTrigger", count_from(1)),
    Option("minPartitions", count_from(1, 1_000_000)),
    Option("maxRecordsPerPartition", count_from(1)),
    Option("failOnDataLoss", parse_flag, True),
    Option("includeBody", parse_flag, True),
)


def parse_settings(given: Mapping[str, str | None], *, streaming: bool) -> ReadSettings:
    """Return the settings in the options of a batch or a stream. Raises: OptionError."""
    values = parse_options(SOURCE, given, OPTIONS)
    connection = BrokerOptions.of(SOURCE, values)
    exactly_one(SOURCE, values, ("subscribe", "subscribePattern", "assign"))
    check_bounds(values, streaming)
    start, end = values["startingOffsets"], values["endingOffsets"]
    if values["startingTimestamp"] is not None:
        start = Bound(time_ns=values["startingTimestamp"])
    if values["endingTimestamp"] is not None:
        end = Bound(time_ns=values["endingTimestamp"])
    return ReadSettings(
        connection=connection,
        topics=values["subscribe"] or (),
        pattern=values["subscribePattern"],
        nodes_of=values["assign"] or {},
        start=start,
        end=end,
        offsets_per_trigger_max=values["maxOffsetsPerTrigger"],
        partitions_min=values["minPartitions"],
        records_per_partition_max=values["maxRecordsPerPartition"],
        fail_on_data_loss=values["failOnDataLoss"],
        include_body=values["includeBody"],
    )


def check_bounds(values: Mapping[str, Any], streaming: bool) -> None:
    """Check that the bounds suit a batch or a stream. Raises: OptionError."""
    start, end = values["startingOffsets"], values["endingOffsets"]
    if streaming:
        for name in ("endingOffsets", "endingTimestamp"):
            if values[name] is not None:
                raise OptionError(f"{SOURCE}: option {name} is for batches; a stream has no end")
        return
    if values["maxOffsetsPerTrigger"] is not None:
        raise OptionError(f"{SOURCE}: option maxOffsetsPerTrigger is for streams")
    if start is not None and (start.at == LATEST or has_number(start, LATEST_NUMBER)):
        raise OptionError(f"{SOURCE}: a batch cannot start at {LATEST}: there is nothing behind it")
    if end is not None and ((end.at == EARLIEST and end.offsets is None) or has_number(end, EARLIEST_NUMBER)):
        raise OptionError(f"{SOURCE}: a batch cannot end at {EARLIEST}: there is nothing before it")


def has_number(bound: Bound, number: int) -> bool:
    """Return whether one of the offsets is that number."""
    return any(number in offset_of.values() for offset_of in (bound.offsets or {}).values())
