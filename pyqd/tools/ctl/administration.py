"""Commands that create, pause, empty and delete topics and channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from pyqd.client.core.commands import check_channel, check_topic
from pyqd.client.errors import NotFoundError, SettingError
from pyqd.tools.ctl.cluster import Answers, ask
from pyqd.tools.ctl.completion import complete_channels, complete_topics
from pyqd.tools.ctl.counters import HELD, NodeStats, read_stats
from pyqd.tools.ctl.exits import UnsupportedError
from pyqd.tools.ctl.frame import command, yes_option
from pyqd.tools.ctl.nodes import AskedBroker, AskedNode
from pyqd.tools.ctl.session import CtlSession
from pyqd.tools.ctl.table import Fitted, Row, messages_text, plain_columns

DONE: Final = "done"
NOT_FOUND: Final = "not found"
FAILED: Final = "failed"
COLUMNS: Final = plain_columns(AskedNode="node", Action="action", Topic="topic", Channel="channel", State="state")

topic_argument = click.argument("topic", shell_complete=complete_topics)
channel_argument = click.argument("channel", required=False, shell_complete=complete_channels)


def path_of(action: str, channel: str | None) -> str:
    return f"/topic/{action}" if channel is None else f"/channel/{action}"


def wire_of(action: str) -> str:
    return (
        f"POST /topic/{action}?topic=, or POST /channel/{action}?topic=&channel= with CHANNEL, at each broker. With"
        " lookup daemons, GET /nodes at each of them, before."
    )


def check_names(topic: str, channel: str | None) -> None:
    """Check names before anything is sent. Raises: SettingError."""
    check_topic(topic)
    if channel is not None:
        check_channel(channel)


def change(
    session: CtlSession, nodes: Sequence[AskedNode], action: str, topic: str, channel: str | None, **query: Any
) -> list[Row]:
    """Carry out an action at each daemon. Returns: the rows of the results. Raises: NotFoundError if no daemon has it.

    Other failures are noted, so that the exit code tells of them.
    """
    names: Row = {"topic": topic, "channel": channel}

    def call(node: AskedNode) -> Any:
        return node.post(path_of(action, channel), topic=topic, channel=channel, **query)

    found: Answers[AskedNode, Any] = ask(nodes, call)
    absent = [failure for failure in found.failures if isinstance(failure.error, NotFoundError)]
    failed = [failure for failure in found.failures if not isinstance(failure.error, NotFoundError)]
    if absent and not found.answers and not failed:
        raise absent[0].error
    states: dict[str, tuple[str, str | None]] = {answer.node.address: (DONE, None) for answer in found.answers}
    states |= {failure.address: (NOT_FOUND, None) for failure in absent}
    states |= {failure.address: (FAILED, str(failure.error)) for failure in failed}
    session.failures += failed
    return [
        {
            "node": node.address,
            "action": action,
            **names,
            "state": states[node.address][0],
            "error": states[node.address][1],
        }
        for node in nodes
    ]


def show(session: CtlSession, rows: list[Row]) -> None:
    session.output.show({"results": rows}, lambda: Fitted(COLUMNS, rows))


@command(
    "POST /topic/create?topic= at each broker; with CHANNEL also POST /channel/create?topic=&channel=&start= there.",
    "With lookup daemons, GET /nodes at each of them before, and the same calls at each of them, without `start`.",
)
@topic_argument
@channel_argument
@click.option(
    "--start",
    metavar="PLACE",
    help="begin the channel at a place of the topic: earliest, latest, a position, a time such as"
    " 2026-11-21T04:15:00Z, or -90m; not with nsqd",
)
@click.pass_obj
def create(session: CtlSession, topic: str, channel: str | None, start: str | None) -> None:
    """Create a topic, or a channel and its topic, on all brokers.

    Existing ones stay as they are. Without --start, a channel gets the messages from now on; the first one of a topic
    also gets those that the topic holds.
    """
    check_names(topic, channel)
    if start is not None and channel is None:
        raise SettingError("--start is for a channel: give its name too")
    brokers = session.brokers(may_be_none=True)
    if start is not None:
        require_pyqd(session, brokers, "--start")
    daemons: list[AskedNode] = [*session.cluster.lookup_daemons()]
    nodes = [*daemons, *brokers]
    rows = change(session, nodes, "create", topic, None)
    if channel is not None:
        rows = change(session, daemons, "create", topic, channel)
        rows += change(session, brokers, "create", topic, channel, start=start)
    show(session, rows)


def require_pyqd(session: CtlSession, brokers: list[AskedBroker], what: str) -> None:
    """Check that no broker is nsqd, which ignores parameters that it does not know. Raises: ClientError."""

    def probe(broker: AskedBroker) -> None:
        try:
            broker.get("/drain")
        except UnsupportedError:
            raise UnsupportedError(f"{broker.address}: {what} needs pyqd, and this broker is nsqd") from None

    session.ask(brokers, probe)
    if session.failures:
        raise session.failures.pop(0).error


@command(wire_of("pause"))
@topic_argument
@channel_argument
@click.pass_obj
def pause(session: CtlSession, topic: str, channel: str | None) -> None:
    """Pause a topic or a channel.

    A paused topic accepts messages and holds them; a paused channel delivers none.
    """
    check_names(topic, channel)
    show(session, change(session, session.brokers(), "pause", topic, channel))


@command(wire_of("unpause"))
@topic_argument
@channel_argument
@click.pass_obj
def unpause(session: CtlSession, topic: str, channel: str | None) -> None:
    """End the pause of a topic or a channel."""
    check_names(topic, channel)
    show(session, change(session, session.brokers(), "unpause", topic, channel))


@command(wire_of("empty"), "Before the question, GET /stats?format=json&topic= at each broker.")
@topic_argument
@channel_argument
@yes_option
@click.pass_obj
def empty(session: CtlSession, topic: str, channel: str | None, yes: bool) -> None:
    """Drop the messages of a topic or a channel, after a question.

    Of a topic: those that no channel has received. Of a channel: queued, in-flight and deferred ones.
    """
    check_names(topic, channel)
    brokers = session.brokers()
    if not yes:
        held = held_messages(holders(session, brokers, topic, channel), topic, channel, of_channels=channel is not None)
        session.confirm(f"Drop {messages_text(held)} of {subject(topic, channel)}{places(brokers)}?", yes)
    show(session, change(session, brokers, "empty", topic, channel))


@command(
    wire_of("delete"),
    "With lookup daemons, the same call at each of them, first, so that no consumer is sent there again.",
    "Before the question, GET /stats?format=json&topic= at each broker.",
)
@topic_argument
@channel_argument
@yes_option
@click.pass_obj
def delete(session: CtlSession, topic: str, channel: str | None, yes: bool) -> None:
    """Delete a topic with its channels, or a channel, and all their messages, after a question.

    Connections of their clients are closed. A client that connects again creates the topic or the channel again.
    """
    check_names(topic, channel)
    brokers = session.brokers(may_be_none=True)
    if not yes:
        held = deleted_messages(session, brokers, topic, channel)
        session.confirm(f"Delete {subject(topic, channel)} with {messages_text(held)}{places(brokers)}?", yes)
    registered = registrations_deleted(session, topic, channel)
    try:
        rows = change(session, brokers, "delete", topic, channel)
    except NotFoundError:
        # A registration may outlive its topic.
        if not registered:
            raise
        rows = []
    if not registered and not rows and not session.failures:
        raise not_found(topic, channel)
    show(session, [*registered, *rows])


def deleted_messages(session: CtlSession, brokers: list[AskedBroker], topic: str, channel: str | None) -> int:
    """Return the number of messages that a deletion drops. Raises: NotFoundError."""
    try:
        return held_messages(holders(session, brokers, topic, channel), topic, channel, of_channels=True)
    except NotFoundError:
        # A lookup daemon may have a registration without a topic.
        if not session.cluster.lookup_daemons():
            raise
        return 0


def registrations_deleted(session: CtlSession, topic: str, channel: str | None) -> list[Row]:
    """Delete a registration at the lookup daemons. Returns: the rows of the daemons that had it."""
    daemons = session.cluster.lookup_daemons()

    def call(node: AskedNode) -> bool:
        names = node.get("/topics")["topics"] if channel is None else node.get("/channels", topic=topic)["channels"]
        if (topic if channel is None else channel) not in names:
            return False
        node.post(path_of("delete", channel), topic=topic, channel=channel)
        return True

    found = ask(daemons, call)
    session.failures += found.failures
    row: Row = {"action": "delete", "topic": topic, "channel": channel, "state": DONE, "error": None}
    return [{"node": answer.node.address, **row} for answer in found.answers if answer.value]


def holders(session: CtlSession, brokers: list[AskedBroker], topic: str, channel: str | None) -> list[NodeStats]:
    """Return the counters of a topic from the brokers that have it; none if no broker has it."""
    found = session.ask(brokers, lambda broker: read_stats(broker, topic, channel))
    return [answer.value for answer in found if answer.value.topics]


def held_messages(read: list[NodeStats], topic: str, channel: str | None, *, of_channels: bool) -> int:
    """Return the number of messages that a topic, its channels, or one of them hold. Raises: NotFoundError."""
    topics = [entry for stats in read for entry in stats.topics if entry["topic_name"] == topic]
    if not topics:
        raise not_found(topic, channel)
    channels = [
        counted
        for entry in topics
        for counted in entry["channels"]
        if of_channels and channel in (None, counted["channel_name"])
    ]
    total = sum(counted[key] for counted in channels for key in HELD)
    return int(total + sum(entry["depth"] for entry in topics)) if channel is None else int(total)


def not_found(topic: str, channel: str | None) -> NotFoundError:
    code = "TOPIC_NOT_FOUND" if channel is None else "CHANNEL_NOT_FOUND"
    return NotFoundError(code, shown=f"no broker has {subject(topic, channel)} ({code})")


def subject(topic: str, channel: str | None) -> str:
    return f"topic {topic}" if channel is None else f"channel {channel} of topic {topic}"


def places(brokers: list[AskedBroker]) -> str:
    if not brokers:
        return " on no broker"
    addresses = ", ".join(broker.address for broker in brokers)
    return f" on {len(brokers)} brokers ({addresses})" if len(brokers) > 1 else f" on {addresses}"
