"""Text for the log after an unclean stop: the state of the data directory, and how much the start has recovered."""

from typing import Final

from pyqd.broker.broker import Broker
from pyqd.primitives.quantities import format_span

STOPS: Final = {
    "kill": "the last run was killed",
    "power_failure": "the last run ended with the machine: a power failure or a reset",
}


def recovery_text(broker: Broker, took_ns: int) -> str | None:
    """Return one line about the recovery of a broker that has just loaded; None after a clean stop, or for new data.

    took_ns: duration of the load.
    """
    stop = STOPS.get(broker.last_stop)
    if stop is None:
        return None
    topics = list(broker.topics.values())
    channels = [channel for topic in topics for channel in topic.channels_by_name.values()]
    waiting = sum(topic.depth for topic in topics) + sum(channel.depth for channel in channels)
    deferred = sum(channel.deferred_count for channel in channels)
    found = (
        f"{counted(len(topics), 'topic')}, {counted(len(channels), 'channel')}, "
        f"{counted(waiting, 'message')} to deliver and {deferred} deferred"
    )
    if broker.power_failed and broker.journal.has_former:
        found += "; the journal of --sync-every=1 was applied"
    return f"{stop}; recovered {found}; {damage_text(broker)}; in {format_span(took_ns)}"


def damage_text(broker: Broker) -> str:
    damage, aside = broker.damage, len(broker.set_aside)
    if not damage.found_count and not aside:
        return "no damage found"
    text = f"damage in {counted(damage.found_count, 'place')}, {counted(damage.lost_count, 'message')} lost"
    if aside:
        text += f", {counted(aside, 'file')} set aside"
    return f"{text}: see the errors above and GET /durability"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
