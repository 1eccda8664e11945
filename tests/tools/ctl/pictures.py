"""Pictures of pyqctl's tables for docs/tools/, from made-up counters.

`make pages` writes them, and `make lint` compares their texts with those shown now.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pyqd import __version__
from pyqd.client.compared_consumers import Looks
from pyqd.primitives.durations import SECOND_NS
from pyqd.tools.ctl import checks
from pyqd.tools.ctl.consumers import consumer_row, consumers_table
from pyqd.tools.ctl.counters import NodeStats, Reading, channel_rows, channels_table, topic_rows, topics_table
from pyqd.tools.ctl.doctor import findings_table
from pyqd.tools.ctl.facts import Facts, FileSystem, Offset
from pyqd.tools.ctl.listing import nodes_table
from pyqd.tools.ctl.messages import messages_table
from pyqd.tools.ctl.settings import seeks_table
from pyqd.tools.ctl.table import cell
from pyqd.tools.ctl.watch import reading_table, watch_rows
from tests.support.server import REPOSITORY

if TYPE_CHECKING:
    from rich.console import RenderableType

DIRECTORY = REPOSITORY / "docs" / "tools" / "pyqctl"
WIDTH_CHARS = 132
NOW_S = 1795472464
# rich's own format loads fonts from a server.
FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def channel(name: str, received: int, depth: int, in_flight: int = 0, deferred: int = 0, **more: Any) -> dict[str, Any]:
    """Return counters of a channel, in the form of GET /stats."""
    return {
        "channel_name": name,
        "depth": depth,
        "in_flight_count": in_flight,
        "deferred_count": deferred,
        "message_count": received,
        "requeue_count": received // 900,
        "timeout_count": received // 40_000,
        "client_count": 2,
        "paused": False,
        **more,
    }


def topic(name: str, received: int, *channels: dict[str, Any], depth: int = 0, paused: bool = False) -> dict[str, Any]:
    """Return counters of a topic, in the form of GET /stats."""
    return {
        "topic_name": name,
        "depth": depth,
        "message_count": received,
        "message_bytes": received * 812,
        "paused": paused,
        "channels": list(channels),
    }


LIMITS = {
    "rate": 250,
    "burst": 250,
    "max_attempts": 5,
    "dead_letter_topic": "orders_dead",
    "dead_letter_count": 17,
    "dead_letters_waiting": 0,
}


def broker(name: str, share: int, later: int = 0) -> NodeStats:
    """Return counters of a broker with a share of the messages; later: messages that have come since."""
    count = 1000 * share + later
    topics = [
        topic(
            "clicks", 40 * count, channel("archive", 40 * count, 12 * share), channel("live#ephemeral", 4 * count, 0)
        ),
        topic("invoices", 3 * share, channel("print", 3 * share, 0, deferred=3 * share, paused=True)),
        topic(
            "orders",
            7 * count,
            channel("billing", 7 * count, 30 * share, in_flight=40, deferred=25 * share),
            channel("email", 7 * count, 9 * share - later // 4, in_flight=8, deferred=80, limits=LIMITS),
        ),
        topic("orders_dead", 17, depth=17),
    ]
    return NodeStats(name, topics, {})


BROKERS = ("nsq-1:4151", "nsq-2:4151")
STATS = [broker(name, share) for name, share in zip(BROKERS, (120, 95), strict=True)]


def node(name: str, state: str = "ok", **more: Any) -> dict[str, Any]:
    """Return facts of a broker, as `pyqctl nodes` has them."""
    stats = STATS[0]
    counted = [each for entry in stats.topics for each in entry["channels"]]
    return {
        "node": name,
        "state": state,
        "kind": "pyqd",
        "nsq_version": "1.3.0",
        "pyqd_version": __version__,
        "hostname": name.partition(":")[0],
        "start_time": NOW_S - 3 * 86400 - 4 * 3600,
        "topic_count": len(stats.topics),
        "channel_count": len(counted),
        "client_count": sum(each["client_count"] for each in counted),
        "depth": sum(each["depth"] for each in counted),
        "in_flight_count": sum(each["in_flight_count"] for each in counted),
        "deferred_count": sum(each["deferred_count"] for each in counted),
        "lookup_daemons": [{"connected": True}, {"connected": True}],
        **more,
    }


def nodes() -> RenderableType:
    rows = [
        node(BROKERS[0]),
        node(BROKERS[1], "draining", start_time=NOW_S - 90 * 60),
        node("old-1:4151", kind="nsqd", lookup_daemons=None),
        {"node": "nsq-3:4151", "state": "no answer"},
    ]
    return nodes_table(rows, NOW_S)


def watch() -> RenderableType:
    later = [broker(name, share, 250) for name, share in zip(BROKERS, (120, 95), strict=True)]
    rows = watch_rows(Reading(0.0, STATS), Reading(2.0, later))
    return reading_table({"time_ns": NOW_S * 10**9, "rows": rows, "errors": []}, "every 2s")


def peek() -> RenderableType:
    rows = [
        {
            "id": f"18a60f857da6900{number}",
            "timestamp": (NOW_S - 120 + number) * 10**9 + 417_000_000,
            "attempts": 1,
            "size": len(body),
            "due": (NOW_S + 600 * number) * 10**9 + 417_000_000,
            "body": body,
        }
        for number, body in enumerate(
            ('{"order":8122,"customer":"c-17"}', '{"order":8123,"customer":"c-4"}', '{"order":8126,"customer":"c-17"}'),
            1,
        )
    ]
    return messages_table(rows, "deferred", False)


def seek() -> RenderableType:
    row = {"from": 841_201, "redeliver": 12_045, "finished": 11_960, "skip": 0, "in_flight": 8, "deferred": 77}
    rows = [{"node": BROKERS[0], **row, "to": 829_156, "depth": 12_122, "dry_run": True}]
    return seeks_table(rows)


def consumers() -> RenderableType:
    def client(name: str, port: int, finished: int, in_flight: int, **more: int) -> dict[str, Any]:
        counts = {
            "finish_count": finished,
            "requeue_count": 12,
            "in_flight_count": in_flight,
            "ready_count": 25,
            **more,
        }
        return {
            "node": BROKERS[port % 2],
            "client_id": name,
            "remote_address": f"10.0.3.{port}:41{port}",
            "user_agent": f"pyqd-client/{__version__}",
            "connected": 600 * SECOND_NS,
            "message_count": finished + counts["requeue_count"] + in_flight,
            **counts,
        }

    clients = [
        client("mailer-1", 11, 150_000, 25),
        client("mailer-2", 12, 147_000, 25),
        client("mailer-3", 13, 30_000, 25),
        client("mailer-4", 14, 141_000, 20, requeue_count=21_000),
    ]
    found = sorted(Looks().compare(("orders", "email"), clients, 0.0), key=lambda each: -each.rate)
    return consumers_table([consumer_row(each) for each in found])


def doctor() -> RenderableType:
    sound = Facts(
        BROKERS[0],
        answer_s=0.004,
        offset=Offset(-0.5, 0.5),
        health="OK",
        is_pyqd=True,
        info={"version": "1.3.0", "pyqd_version": __version__},
        stats={"lookup_daemons": [{"address": "lookup-1:4160", "connected": True}]},
        metrics={
            "process_max_fds": 524_288.0,
            "process_open_fds": 212.0,
            "pyqd_files": 61.0,
            "pyqd_mapped_files_max": 30_399.0,
            "pyqd_disk_free_bytes": 381e9,
            "pyqd_disk_free_min_bytes": float(64 << 20),
        },
        file_system=FileSystem("/var/lib/pyqd", "/var/lib", "xfs", 500 << 30),
    )
    lost = (
        "cannot connect: connection refused; check that the lookup daemon runs, and that"
        " --lookupd-tcp-address names its TCP port"
    )
    troubled = replace(
        sound,
        address=BROKERS[1],
        offset=Offset(3.2, 4.2),
        stats={"lookup_daemons": [{"address": "lookup-1:4160", "connected": False, "last_error": lost}]},
        metrics={**sound.metrics, "process_max_fds": 1024.0, "pyqd_disk_free_bytes": 200e6},
        file_system=FileSystem("/data", "/", "overlay", 500 << 30),
    )
    found = [each for facts in (sound, troubled) for each in checks.broker_findings(facts, (sound, troubled), ())]
    rows = [each._asdict() for each in found if each.node == BROKERS[0] or each.state != checks.OK]
    states = [each.state for each in found]
    return findings_table(rows, {"failures": states.count(checks.FAILURE), "warnings": states.count(checks.WARNING)})


PICTURES: dict[str, tuple[str, Callable[[], RenderableType]]] = {
    "topics": ("pyqctl topics", lambda: topics_table(topic_rows(STATS))),
    "channels": ("pyqctl channels", lambda: channels_table(channel_rows(STATS))),
    "nodes": ("pyqctl nodes", nodes),
    "watch": ("pyqctl watch", watch),
    "consumers": ("pyqctl consumers orders email", consumers),
    "peek": ("pyqctl peek orders email --state=deferred", peek),
    "seek": ("pyqctl seek orders email --dry-run -- -10m", seek),
    "doctor": ("pyqctl doctor", doctor),
}


def picture(name: str) -> str:
    """Return the SVG of a table under its command line."""
    line, view = PICTURES[name]
    console = Console(
        record=True,
        width=WIDTH_CHARS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        legacy_windows=False,
        _environ={},
    )
    console.print(cell(f"$ {line}", "bold"))
    console.print(view())
    return console.export_svg(title="pyqctl", code_format=FORMAT, unique_id=f"pyqctl-{name}")


def shown_text(svg: str) -> list[str]:
    """Return the lines of text in a picture, without spaces and lengths of rules, which depend on rich's version."""
    lines: dict[float, list[tuple[float, str]]] = defaultdict(list)
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        lines[float(element.get("y", 0))].append((float(element.get("x", 0)), element.text or ""))
    texts = ("".join(text for _, text in sorted(lines[y])) for y in sorted(lines))
    return [re.sub("─+", "─", "".join(text.split())) for text in texts]


def path_of(name: str) -> Path:
    return DIRECTORY / f"{name}.svg"
