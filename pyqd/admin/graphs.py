"""Links from charts to the same numbers in Graphite and in Prometheus, which keep them for longer than an hour.

Keys of Graphite are those of statsd, as nsqadmin makes them; names in Prometheus are those of pyqd's /metrics.

Source: docs/nsq/admin-and-tools.md; docs/metrics.md.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlencode, urlsplit

from pyqd.admin.history import Key
from pyqd.admin.options import AdminOptions
from pyqd.primitives.durations import SECOND_NS

SPAN_H: Final = 24
# Removed by statsd from names.
UNSAFE: Final = re.compile(r"[^a-zA-Z0-9\-_.]")
COUNTERS: Final = ("message_count",)
# Sums over all channels, which the two have no short expression for.
UNLINKED: Final = ("taken", "deferred")

Link = tuple[str, str]


class Graphs:
    """Links of the charts of one web admin; none if neither URL is given."""

    def __init__(self, options: AdminOptions) -> None:
        self._options = options
        parts = urlsplit(options.graphite_url)
        # Browsers get no password; pyqadmin sends it itself.
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        base = "" if options.base_path == "/" else options.base_path
        self._graphite = base if options.proxy_graphite else url
        self._has_graphite = bool(options.graphite_url)
        self._prometheus = options.prometheus_url.rstrip("/")

    def links(self, name: str, key: Key) -> list[Link]:
        """Return name and URL of each link. name: of the series, as in the history. key: as there."""
        found: list[Link] = []
        if name in UNLINKED or (name == "in_flight" and not key):
            return found
        if self._has_graphite:
            query = {"target": self.target(name, key), "from": f"-{SPAN_H}hours", "width": 800, "height": 450}
            found.append(("Graphite", f"{self._graphite}/render?{urlencode(query)}"))
        # A broker's address need not be the one that Prometheus scrapes.
        if self._prometheus and not name.startswith("node_"):
            query = {"g0.expr": expression(name, key), "g0.tab": 0, "g0.range_input": f"{SPAN_H}h"}
            found.append(("Prometheus", f"{self._prometheus}/graph?{urlencode(query)}"))
        return found

    def target(self, name: str, key: Key) -> str:
        """Return the expression of Graphite, summed over all brokers; of one broker for a series of nodes."""
        if name.startswith("node_"):
            return self._target_of_node(name, key[0])
        topic = UNSAFE.sub("", key[0]) if key else "*"
        place = f"topic.{topic}"
        if len(key) > 1:
            place += f".channel.{UNSAFE.sub('', key[1])}"
        if name == "rate":
            return self._per_second(f"sumSeries({self.name(f'{place}.message_count')})")
        if name == "depth" and len(key) < 2:
            return f"sumSeries({self.name(f'{place}.depth')},{self.name(f'{place}.channel.*.depth')})"
        return f"sumSeries({self.name(f'{place}.{name}' if name == 'depth' else f'{place}.in_flight_count')})"

    def _target_of_node(self, name: str, node: str) -> str:
        host = node.replace(".", "_").replace(":", "_")
        if name == "node_memory":
            return self.name("mem.*_bytes", host)
        if name == "node_rate":
            return self._per_second(f"sumSeries({self.name('topic.*.message_count', host)})")
        return f"sumSeries({self.name('topic.*.depth', host)},{self.name('topic.*.channel.*.depth', host)})"

    def _per_second(self, target: str) -> str:
        return f"scale({target},{SECOND_NS / self._options.statsd_interval_ns:.9g})"

    def name(self, key: str, host: str = "*") -> str:
        """Return the name of a series of all brokers, or of one."""
        options = self._options
        form = options.statsd_counter_format if key.endswith(COUNTERS) else options.statsd_gauge_format
        whole = f"{options.statsd_prefix.replace('%s', host)}.{key}"
        return form.replace("%s", whole) if form else whole


def expression(name: str, key: Key) -> str:
    """Return the expression of Prometheus, summed over all brokers."""
    labels = ",".join(f'{label}="{value}"' for label, value in zip(("topic", "channel"), key, strict=False))
    place = f"{{{labels}}}" if labels else ""
    if len(key) > 1:
        return {
            "depth": f"sum(pyqd_channel_depth{place})",
            "in_flight": f"sum(pyqd_channel_in_flight{place})",
            # All messages that came, without those that have gathered.
            "rate": f"sum(rate(pyqd_channel_messages_total{place}[5m])) - sum(deriv(pyqd_channel_depth{place}[5m]))",
        }[name]
    if name == "rate":
        return f"sum(rate(pyqd_topic_messages_total{place}[5m]))"
    both = ",".join(['__name__=~"pyqd_(topic|channel)_depth"', *([labels] if labels else [])])
    return f"sum({{{both}}})"
