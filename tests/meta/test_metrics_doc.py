"""docs/metrics.md names the metrics, statsd keys and types that the code has: all of them, and no others."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from pyqd.metrics import statsd
from pyqd.metrics.prometheus import Metrics
from pyqd.metrics.prometheus_text import CHANNEL_FAMILIES, LATENCY, LATENCY_HELP, TOPIC_FAMILIES
from tests.meta.repository import ROOT

DOCUMENT = ROOT / "docs" / "metrics.md"
HEAD = "| {} | type | |\n| --- | --- | --- |\n"
LIBRARY = ("process_", "python_")

NUMBER_OF = {"topic": "t", "channel": "c"}


def table(first: str, rows: list[tuple[str, str, str]]) -> str:
    return HEAD.format(first) + "".join(f"| `{name}` | {kind} | {text} |\n" for name, kind, text in rows)


def topics_table(_path: Path) -> str:
    return table("metric", [(family.name, family.kind, family.help) for family in TOPIC_FAMILIES])


def channels_table(_path: Path) -> str:
    return table("metric", [(family.name, family.kind, family.help) for family in CHANNEL_FAMILIES])


def latency_table(_path: Path) -> str:
    return table("metric", [(LATENCY, "summary", LATENCY_HELP)])


def daemon_table(path: Path) -> str:
    broker = Broker(parse_args([f"--data-path={path}"]))
    broker.load()
    rows = []
    for family in Metrics(broker).registry.collect():
        if not family.name.startswith(LIBRARY):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            rows.append((name, family.type, family.documentation))
    broker.close()
    return table("metric", rows)


def statsd_table(_path: Path) -> str:
    rows = [(f"topic.<t>.{key}", key) for key in statsd.TOPIC_KEYS]
    rows += [(f"topic.<t>.{statsd.LATENCY_KEY}<p>", "")]
    rows += [(f"topic.<t>.channel.<c>.{key}", key) for key, _ in statsd.CHANNEL_KEYS]
    rows += [(f"topic.<t>.channel.<c>.{statsd.LATENCY_KEY}<p>", "")]
    rows += [(f"mem.{key}", key) for key, _ in statsd.MEMORY_KEYS]
    lines = [f"| `{key}` | {'c' if statsd.is_counter(key) else 'g'} |\n" for key, _ in rows]
    return "| key | type |\n| --- | --- |\n" + "".join(lines)


TABLES: dict[str, Callable[[Path], str]] = {
    "topics": topics_table,
    "channels": channels_table,
    "latency": latency_table,
    "daemon": daemon_table,
    "statsd": statsd_table,
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_reference_matches_the_code(name: str, tmp_path: Path) -> None:
    found = re.search(rf"<!-- {name} -->\n\n(.*?)\n(?:\n|$)", DOCUMENT.read_text() + "\n", re.DOTALL)
    assert found is not None
    assert found[1] + "\n" == TABLES[name](tmp_path)


def test_the_reference_says_how_many_series_a_topic_and_a_channel_have() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    assert f"A topic has {len(TOPIC_FAMILIES)}, a channel {len(CHANNEL_FAMILIES)} and" in text
