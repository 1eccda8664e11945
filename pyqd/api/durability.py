"""GET /durability: syncs, free space, and the state in which the start found the data. Source: docs/http.md."""

from typing import Any

from pyqd.api.rights import STATUS
from pyqd.broker.broker import Broker
from pyqd.hot.diskqueue.log import Log
from pyqd.http.messages import Request, Response, Route, json_response
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.durations import MILLISECOND_NS
from pyqd.primitives.errors import StorageError

TOPICS_PER_SLICE = 256
# Damaged and refusing topics, and files set aside, beyond this number are counted only.
TOPICS_NAMED_MAX = 100


class DurabilityRoutes:
    """Route that reports how safe the data is."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def routes(self) -> list[Route]:
        """Return the route. Its requests are not logged: the web admin sends one every few seconds."""
        return [Route("GET", "/durability", self.durability, logged=False, right=STATUS)]

    def durability(self, _request: Request) -> Response:
        """Return the state of syncs, disk and damage. Switches: yes."""
        broker, options = self.broker, self.broker.options
        message_count, byte_count, damaged = 0, 0, []
        has_damage = broker.damage.found_count > 0
        for index, topic in enumerate(list(broker.topics.values()), 1):
            logs = topic.logs()
            for log in logs:
                if log.directory is not None and log.synced_end < log.end:
                    message_count += log.end - log.synced_end
                    byte_count += unsynced_bytes(log)
            if has_damage and (found := sum_of_damage(logs))["count"]:
                damaged.append({"topic": topic.name, **found})
            if index % TOPICS_PER_SLICE == 0:
                yield_to_loop()
        return json_response(
            {
                "health": broker.health(),
                "sync_every": options.sync_every,
                "sync_timeout_ms": options.sync_timeout_ns // MILLISECOND_NS,
                "unsynced_messages": message_count,
                "unsynced_bytes": byte_count,
                "last_sync": broker.synced_at_ns or None,
                "sync_failures": broker.sync_failure_count,
                "write_failures": broker.write_failure_count,
                "last_stop": broker.last_stop,
                "damage": broker.damage.as_dict(),
                "damaged_topics": damaged[:TOPICS_NAMED_MAX],
                "set_aside": [each._asdict() for each in broker.set_aside[:TOPICS_NAMED_MAX]],
                "refusing_topics": list(broker.short_of_room)[:TOPICS_NAMED_MAX],
                "disk_free_bytes": self.free_bytes(),
                "disk_free_min_bytes": broker.reserve.floor_bytes,
            }
        )

    def free_bytes(self) -> int | None:
        try:
            return self.broker.files.free_bytes(self.broker.root)
        except StorageError:
            return None


def unsynced_bytes(log: Log) -> int:
    """Return the bytes that the next sync of a log writes; it writes whole pages."""
    ranges, _ = log.dirty_ranges()
    return sum(length for _, _, length in ranges)


def sum_of_damage(logs: list[Log]) -> dict[str, Any]:
    """Return the damage found in logs, with the keys of /stats."""
    total = {"count": 0, "records_lost": 0, "bytes": 0}
    for log in logs:
        for key, value in log.damage.as_dict().items():
            total[key] += value
    return total
