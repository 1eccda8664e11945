"""Shell completion: names of contexts, topics and channels, asked from the brokers while the user types."""

from __future__ import annotations

import contextlib
from typing import Final

import click

from pyqd.client.errors import ClientError
from pyqd.primitives.durations import MILLISECOND_NS
from pyqd.tools.ctl.cluster import ask
from pyqd.tools.ctl.counters import read_stats
from pyqd.tools.ctl.session import FLAGS_KEY, CtlSession

SHELLS: Final = ("bash", "zsh", "fish")
# A user who presses Tab waits for no broker that is down.
TIMEOUT_NS: Final = 1000 * MILLISECOND_NS


def complete_contexts(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    with contextlib.suppress(ClientError):
        _, contexts = CtlSession({}).context_file.read()
        return [name for name in contexts if name.startswith(incomplete)]
    return []


def complete_topics(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in _channels_by_topic(ctx, None) if name.startswith(incomplete)]


def complete_channels(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    topic = ctx.params.get("topic") or ctx.params.get("topic_pattern")
    found = _channels_by_topic(ctx, topic).get(topic, ()) if isinstance(topic, str) else ()
    return [name for name in found if name.startswith(incomplete)]


def _channels_by_topic(ctx: click.Context, topic: str | None) -> dict[str, list[str]]:
    """Return topics and their channels, sorted; none if no broker answers."""
    session = CtlSession({"timeout_ns": TIMEOUT_NS, **ctx.meta.get(FLAGS_KEY, {})})
    found: dict[str, set[str]] = {}
    with contextlib.suppress(ClientError), contextlib.closing(session):
        for answer in ask(session.brokers(), lambda broker: read_stats(broker, topic)).answers:
            for entry in answer.value.topics:
                names = found.setdefault(entry["topic_name"], set())
                names.update(channel["channel_name"] for channel in entry["channels"])
    return {name: sorted(found[name]) for name in sorted(found)}
