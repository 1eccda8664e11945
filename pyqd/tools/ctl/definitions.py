"""Commands that write topics, channels, limits and pauses to one file, and make brokers agree with such a file.

Source: docs/tools/pyqctl.md, "Definitions in a file".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

import click

from pyqd.client.core.commands import check_channel, check_topic
from pyqd.client.errors import ClientError, SettingError
from pyqd.primitives.names import is_ephemeral_str
from pyqd.tools.ctl.administration import DONE, FAILED, path_of
from pyqd.tools.ctl.cluster import Failure, ask
from pyqd.tools.ctl.counters import read_stats
from pyqd.tools.ctl.exits import UnsupportedError
from pyqd.tools.ctl.frame import CtlGroup, command, yes_option
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.output import say
from pyqd.tools.ctl.session import CtlSession
from pyqd.tools.ctl.settings import DEFAULT, keeps_less, number_of
from pyqd.tools.ctl.table import Fitted, Row, plain_columns

FORMAT: Final = 1
WOULD_CHANGE: Final = "would be done"
COLUMNS: Final = plain_columns(Node="node", Change="action", Topic="topic", Channel="channel", To="to", State="state")
LIMITS: Final = {"rate": 0, "burst": 0, "max_attempts": 0, "dead_letter_topic": None}
RETENTION: Final = ("bytes", "time")
NUMBER: Final = (int, float)

Names = tuple[str, str | None]


@dataclass
class Definition:
    """Topic, or channel of one. A setting that is None stays as it is.

    limits: of a channel, with keys of LIMITS; {} for none. retention: of a topic, with keys of RETENTION for values of
    its own; {} for none.
    """

    paused: bool | None = None
    limits: Row | None = None
    retention: Row | None = None


# By topic and channel; a topic has None as its channel, and stands before its channels.
Definitions = dict[Names, Definition]


class DefinedChange(NamedTuple):
    """One change at one broker. to: the new value, for people."""

    action: str
    topic: str
    channel: str | None
    to: str
    path: str
    query: Row


@click.group(cls=CtlGroup, name="definitions")
def definitions() -> None:
    """Write topics, channels, limits and pauses to a file, and make brokers agree with it."""


@command(
    "GET /stats?format=json&include_clients=false&include_mem=false at each broker, and GET /topic/retention?topic="
    " there for each topic.",
    name="export",
)
@click.pass_obj
def export_definitions(session: CtlSession) -> None:
    """Print the definitions of all brokers as one JSON document: pyqctl definitions export >FILE.

    It has topics and channels with their pauses, the limits of channels and the retention of topics that have one of
    their own. Ephemeral ones are left out, as they come and go with their clients. If brokers differ, the first one
    counts, and a line on standard error names the difference.
    """
    found = session.ask(session.brokers(), read_definitions)
    merged: Definitions = {}
    for answer in found:
        for names, definition in answer.value.items():
            known = merged.setdefault(names, definition)
            if known != definition:
                say(f"{answer.node.address}: {subject(names)} differs from that of another broker, which is kept")
    session.output.line(json.dumps(document_of(merged), indent=2))


@command(
    "The calls of `export`. For each difference, at its broker: POST /topic/create, /channel/create, /topic/pause,"
    " /topic/unpause, /channel/pause, /channel/unpause, /channel/limits or /topic/retention; none with --dry-run.",
    name="import",
)
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("-n", "--dry-run", is_flag=True, help="list the changes, and make none")
@yes_option
@click.pass_obj
def import_definitions(session: CtlSession, file: Any, dry_run: bool, yes: bool) -> None:
    """Make each broker agree with the definitions in FILE; - stands for standard input.

    Topics and channels that are missing are created; pauses, limits and retention are set where they differ. What the
    file does not name stays as it is, and nothing is deleted. A second import changes nothing. A change that fails is
    reported, and the others are made all the same. A retention that may remove messages is changed after a question.
    """
    wanted = parse_definitions(file.read(), file.name)
    brokers = session.brokers()
    present = {each.node.address: each.value for each in session.ask(brokers, read_definitions)}
    asked = [broker for broker in brokers if broker.address in present]
    plans = {broker.address: list(changes_between(present[broker.address], wanted)) for broker in asked}
    if dry_run:
        show(session, [row_of(node, change, WOULD_CHANGE) for node, plan in plans.items() for change in plan])
        return
    fewer = sorted({topic for found in present.values() for topic in keeping_less(found, wanted)})
    if fewer:
        session.confirm(f"Keep fewer finished messages of topic {', '.join(fewer)}?", yes)
    rows: list[Row] = []
    try:
        for answer in ask(asked, lambda broker: made(broker, plans[broker.address])).answers:
            for row, error in answer.value:
                rows.append(row)
                if error is not None:
                    session.failures.append(Failure(answer.node.address, error))
    finally:
        show(session, rows)


def made(broker: AskedBroker, plan: Sequence[DefinedChange]) -> list[tuple[Row, ClientError | None]]:
    """Make changes at a broker, in their order. Returns: a row for each, and its error."""
    done: list[tuple[Row, ClientError | None]] = []
    for change in plan:
        try:
            broker.post(change.path, topic=change.topic, channel=change.channel, **change.query)
        except ClientError as error:
            done.append(({**row_of(broker.address, change, FAILED), "error": str(error)}, error))
        else:
            done.append((row_of(broker.address, change, DONE), None))
    return done


def show(session: CtlSession, rows: list[Row]) -> None:
    session.output.show({"changes": rows}, lambda: Fitted(COLUMNS, rows))


def row_of(node: str, change: DefinedChange, state: str) -> Row:
    names = {"action": change.action, "topic": change.topic, "channel": change.channel, "to": change.to}
    return {"node": node, **names, "state": state, "error": None}


def read_definitions(broker: AskedBroker) -> Definitions:
    """Return the definitions of a broker. Raises: ClientError."""
    found: Definitions = {}
    for topic in read_stats(broker).topics:
        name = topic["topic_name"]
        if is_ephemeral_str(name):
            continue
        found[name, None] = Definition(bool(topic["paused"]), retention=own_retention(broker, name))
        for channel in topic["channels"]:
            if not is_ephemeral_str(channel["channel_name"]):
                all_limits = channel.get("limits", LIMITS)
                limits = {key: all_limits[key] for key in LIMITS if all_limits[key]}
                found[name, channel["channel_name"]] = Definition(bool(channel["paused"]), limits=limits)
    return found


def own_retention(broker: AskedBroker, topic: str) -> Row | None:
    """Return the retention that a topic has of its own; None if the broker knows none. Raises: ClientError."""
    try:
        answer = broker.get("/topic/retention", topic=topic)
    except UnsupportedError:
        return None
    return {key: answer[f"own_{key}"] for key in RETENTION if answer[f"own_{key}"] is not None}


def changes_between(present: Definitions, wanted: Definitions) -> Iterator[DefinedChange]:
    """Yield the changes that make a broker agree with a file."""
    for names, goal in wanted.items():
        topic, channel = names
        now = present.get(names)
        if now is None:
            yield DefinedChange("create", topic, channel, "", path_of("create", channel), {})
            now = Definition(paused=False, limits={}, retention={})
        if goal.limits is not None and differs(goal.limits, now.limits):
            # A missing limit is none. The broker chooses a missing burst, and clears the topic with the limit of
            # attempts.
            query = {"rate": 0, "max_attempts": 0, **goal.limits}
            yield DefinedChange("limits", topic, channel, text_of(goal.limits), "/channel/limits", query)
        if goal.retention is not None and in_numbers(goal.retention) != in_numbers(now.retention):
            query = {key: goal.retention.get(key, DEFAULT) for key in RETENTION}
            yield DefinedChange("retention", topic, channel, text_of(goal.retention), "/topic/retention", query)
        if goal.paused is not None and goal.paused != now.paused:
            action = "pause" if goal.paused else "unpause"
            yield DefinedChange(action, topic, channel, "", path_of(action, channel), {})


def differs(wanted: Row, present: Row | None) -> bool:
    """Return whether the limits of a channel are others than a file has. A burst counts if the file has one."""
    keys = [key for key in LIMITS if key != "burst" or key in wanted]
    return any({**LIMITS, **wanted}[key] != {**LIMITS, **(present or {})}[key] for key in keys)


def in_numbers(retention: Row | None) -> Row:
    return {key: number_of(value) for key, value in (retention or {}).items()}


def keeping_less(present: Definitions, wanted: Definitions) -> Iterator[str]:
    """Yield the topics whose retention a file makes smaller."""
    for (topic, channel), goal in wanted.items():
        now = present.get((topic, channel))
        if now is not None and now.retention and goal.retention is not None:
            before = {"bytes": 0, "time": 0, **now.retention}
            changes = {key: goal.retention.get(key, DEFAULT) for key in RETENTION}
            if in_numbers(goal.retention) != in_numbers(now.retention) and keeps_less(before, changes):
                yield topic


def text_of(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value) or "none"


def subject(names: Names) -> str:
    return f"topic {names[0]}" if names[1] is None else f"channel {names[1]} of topic {names[0]}"


def document_of(found: Definitions) -> Row:
    """Return definitions as JSON, sorted by name."""
    topics: dict[str, Row] = {}
    for (topic, channel), each in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        if channel is None:
            settings = {"paused": each.paused, "retention": each.retention or None}
            topics[topic] = {"topic": topic, **settings, "channels": []}
        else:
            settings = {"paused": each.paused, "limits": each.limits or None}
            topics[topic]["channels"].append({"channel": channel, **settings})
    return {"format": FORMAT, "topics": list(topics.values())}


def parse_definitions(text: str, name: str) -> Definitions:
    """Return the definitions in a document. Raises: SettingError, which names the place of a mistake."""
    found: Definitions = {}
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SettingError(f"{name}: not JSON: {error}") from None
    root = Place(name, document)
    if root.value("format", int) != FORMAT:
        root.fail(f"format {root.found['format']!r} is not known; this pyqctl reads {FORMAT}")
    root.refuse_others("format", "topics")
    for topic in root.entries("topics"):
        topic_name = topic.checked("topic", check_topic)
        topic.refuse_others("topic", "paused", "retention", "channels")
        retention = topic.object("retention", bytes=int, time=str)
        try:
            in_numbers(retention)
        except ValueError as error:
            topic.fail(f"retention: {error}")
        found[topic_name, None] = Definition(topic.flag("paused"), retention=retention)
        for channel in topic.entries("channels"):
            channel_name = channel.checked("channel", check_channel)
            channel.refuse_others("channel", "paused", "limits")
            limits = channel.object("limits", rate=NUMBER, burst=NUMBER, max_attempts=int, dead_letter_topic=str)
            found[topic_name, channel_name] = Definition(channel.flag("paused"), limits=limits)
    return found


class Place:
    """Object of a document, with its place in it for errors. All methods raise SettingError."""

    def __init__(self, name: str, found: Any) -> None:
        self.name = name
        if not isinstance(found, dict):
            raise SettingError(f"{name}: expected an object, found {json.dumps(found)}")
        self.found: Row = found

    def fail(self, text: str) -> NoReturn:
        raise SettingError(f"{self.name}: {text}")

    def refuse_others(self, *known: str) -> None:
        for key in self.found:
            if key not in known:
                self.fail(f"unknown key {key!r}; known are {', '.join(known)}")

    def value(self, key: str, kind: type | tuple[type, ...]) -> Any:
        if key not in self.found:
            self.fail(f"{key!r} is missing")
        found = self.found[key]
        # True is an int.
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            self.fail(f"{key!r}: {json.dumps(found)} is not valid")
        return found

    def flag(self, key: str) -> bool | None:
        return self.value(key, bool) if key in self.found else None

    def checked(self, key: str, check: Callable[[str], Any]) -> str:
        """Return a name."""
        found = str(self.value(key, str))
        try:
            check(found)
        except SettingError as error:
            self.fail(str(error))
        return found

    def object(self, key: str, **kinds: type | tuple[type, ...]) -> Row | None:
        """Return an object with some of these keys; {} for null, and None if it is missing."""
        if key not in self.found:
            return None
        found = self.found[key]
        place = Place(f"{self.name}.{key}", {} if found is None else found)
        place.refuse_others(*kinds)
        return {each: place.value(each, kinds[each]) for each in place.found}

    def entries(self, key: str) -> Iterator[Place]:
        """Yield the objects of a list; none if it is missing."""
        for number, each in enumerate(self.value(key, list) if key in self.found else ()):
            yield Place(f"{self.name}: {key}[{number}]", each)


for each_command in (export_definitions, import_definitions):
    definitions.add_command(each_command)
