"""Bounds of a read resolved to positions: `earliest`, `latest`, offsets or a time at each node."""

from collections.abc import Mapping

from pyqd_spark.discovery import Discovery, Found, lose
from pyqd_spark.options import OptionError
from pyqd_spark.read_options import EARLIEST, EARLIEST_NUMBER, LATEST_NUMBER, SOURCE, Bound, ReadSettings

# Positions by topic and node id.
Places = dict[tuple[str, str], int]


def resolve(bound: Bound, found: Found, discovery: Discovery, option: str) -> Places:
    """Return the positions that a bound stands for.

    A time after the newest message is the end. Raises: OptionError if offsets do not name exactly the found nodes;
    BrokerError, DataLossError.
    """
    if bound.time_ns is not None:
        return at_time(bound.time_ns, found, discovery)
    if bound.offsets is not None:
        return named(bound.offsets, found, option)
    return {key: one.earliest if bound.at == EARLIEST else one.next for key, one in found.items()}


def at_time(time_ns: int, found: Found, discovery: Discovery) -> Places:
    """Return the positions at a time."""
    places: dict[str, list[str]] = {}
    for (topic, _), one in found.items():
        places.setdefault(topic, []).append(one.address)
    timed = discovery.find(places, time_ns)
    at = {key: timed[key].at if key in timed else None for key in found}
    return {key: one.next if (place := at[key]) is None else min(place, one.next) for key, one in found.items()}


def named(offsets: Mapping[str, Mapping[str, int]], found: Found, option: str) -> Places:
    """Return positions from offsets by topic and node, which must name exactly the found nodes."""
    given = {(topic, node): offset for topic, by_node in offsets.items() for node, offset in by_node.items()}
    for what, keys in (("is missing", set(found) - set(given)), ("was not found", set(given) - set(found))):
        if keys:
            shown = ", ".join(f"node {node} of topic {topic}" for topic, node in sorted(keys))
            raise OptionError(f"{SOURCE}: option {option}: {shown} {what}; it has to name each node of each topic")
    special = {EARLIEST_NUMBER: "earliest", LATEST_NUMBER: "next"}
    return {key: getattr(found[key], special[offset]) if offset in special else offset for key, offset in given.items()}


def within(settings: ReadSettings, places: Places, found: Found, what: str) -> Places:
    """Return the positions, moved to the nearest kept record if they lie outside. Raises: DataLossError."""
    kept: Places = {}
    for (topic, node), place in places.items():
        one = found[topic, node]
        where = f"topic {topic} at node {node} ({one.address})"
        if place < one.earliest:
            lose(settings, f"{where}: the {what} {place} is not kept any more, the oldest message has {one.earliest}")
        elif place > one.next:
            lose(settings, f"{where}: the {what} {place} is behind the end, the next message gets {one.next}")
        kept[topic, node] = min(max(place, one.earliest), one.next)
    return kept
