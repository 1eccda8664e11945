"""Tables of docs/metrics.md, from the metrics, statsd keys and types that the code has."""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from pyqd.metrics import statsd
from pyqd.metrics.prometheus import Metrics
from pyqd.metrics.prometheus_text import CHANNEL_FAMILIES, LATENCY, LATENCY_HELP, TOPIC_FAMILIES, Family
from pyqd.primitives.memory import memory_stats

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
HEAD = "| metric | type | |\n| --- | --- | --- |\n"
LIBRARY = ("process_", "python_")


def table(rows: Iterable[tuple[str, str, str]]) -> str:
    return HEAD + "".join(f"| `{name}` | {kind} | {text} |\n" for name, kind, text in rows)


def families(found: Iterable[Family]) -> str:
    return table((family.name, family.kind, family.help) for family in found)


def daemon_table() -> str:
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(parse_args([f"--data-path={directory}"]))
        broker.load()
        collected = list(Metrics(broker).registry.collect())
        broker.close()
    return table(
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type, family.documentation)
        for family in collected
        if not family.name.startswith(LIBRARY)
    )


def statsd_table() -> str:
    keys = [f"topic.<t>.{key}" for key in (*statsd.TOPIC_KEYS, f"{statsd.LATENCY_KEY}<p>")]
    keys += [f"topic.<t>.channel.<c>.{statsd.RENAMED.get(key, key)}" for key in statsd.CHANNEL_KEYS]
    keys += [f"topic.<t>.channel.<c>.{statsd.LATENCY_KEY}<p>"]
    keys += [f"mem.{statsd.RENAMED.get(key, key)}" for key in memory_stats()]
    lines = [f"| `{key}` | {'c' if statsd.is_counter(key) else 'g'} |\n" for key in keys]
    return "| key | type |\n| --- | --- |\n" + "".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "topics": lambda: families(TOPIC_FAMILIES),
    "channels": lambda: families(CHANNEL_FAMILIES),
    "latency": lambda: table([(LATENCY, "summary", LATENCY_HELP)]),
    "daemon": daemon_table,
    "statsd": statsd_table,
}


def files() -> Iterator[tuple[Path, str]]:
    """Yield the page with its text."""
    text = PAGE.read_text()
    for name, make in TABLES.items():
        before, mark, after = text.partition(f"<!-- {name} -->\n\n")
        rest = re.sub(r"\A(\|.*\n)*", "", after)
        text = before + mark + make() + rest
    counts = f"A topic has {len(TOPIC_FAMILIES)}, a channel {len(CHANNEL_FAMILIES)} and"
    yield PAGE, re.sub(r"A topic has \d+, a channel \d+ and", counts, text)
