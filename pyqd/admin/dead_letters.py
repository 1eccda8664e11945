"""Dead letters of a channel at one broker: pages of them, and their way back to the topic that they came from.

Source: docs/http.md, "Dead letters".
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pyqd.admin.messages import PAGE_SIZE, SCAN_MAX, MessageList, MessagePage, MessageRow
from pyqd.admin.shapes import OPTIONAL_TEXT, answer_of, check_shape, parse_answer
from pyqd.admin.upstream import Upstream, UpstreamError
from pyqd.client.dead_letters import (
    DeadLetterTopic,
    Row,
    channel_names,
    find_dead_letter_topic,
    read_limits,
    return_dead_letters,
    returnable_states,
    select_dead_letters,
)
from pyqd.client.errors import ClientError
from pyqd.client.http import Reply

# Each letter takes three requests.
RETURNED_MAX: Final = 1000
# Lent to a dead-letter topic without channels, which holds its messages where nothing can cancel them.
NEW_CHANNEL: Final = "pyqadmin"
# Dead letters that could not be published wait in the channel itself.
WAITING: Final = "-"
LIMITS: Final = {"dead_letter_topic": OPTIONAL_TEXT, "dead_letters_waiting": (int,), "waiting_for": OPTIONAL_TEXT}


class Calls:
    """The calls of one broker, as `pyqd.client.dead_letters` wants them."""

    def __init__(self, upstream: Upstream, address: str) -> None:
        self._upstream = upstream
        self.address = address

    def send(self, method: str, path: str, query: Mapping[str, object], body: bytes | None = None) -> Reply:
        """Return the answer to a request. Raises: UpstreamError."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._upstream.send(method, self.address, path, given, body)

    def get(self, path: str, **query: object) -> Row:
        """Return the JSON object of a GET. Raises: UpstreamError."""
        return self._object(path, self.send("GET", path, query).body)

    def post(self, path: str, **query: object) -> Row:
        """Return the JSON object of a POST; an empty one if the answer is empty. Raises: UpstreamError."""
        body = self.send("POST", path, query).body
        return self._object(path, body) if body else {}

    def _object(self, path: str, body: bytes) -> Row:
        with answer_of(f"{self.address}: {path}", UpstreamError):
            found: Row = parse_answer(body)
            check_shape(found, {})
            return found


@dataclasses.dataclass(frozen=True, slots=True)
class LetterPlace:
    """The dead letters of a channel. target: the dead-letter topic, empty if there is none. holders: its channels.

    waiting: the number of dead letters that could not be published yet. waiting_for: the reason.
    """

    target: str
    holders: list[str]
    waiting: int
    waiting_for: str

    def chosen(self, wanted: str | None) -> str:
        """Return the holder that a form names, or the first one; empty for the dead-letter topic itself."""
        if wanted == WAITING or not self.target:
            return WAITING
        if wanted in self.holders:
            return str(wanted)
        return self.holders[0] if self.holders else ""


class DeadLetters:
    """The dead letters of one channel at one broker. All methods raise UpstreamError."""

    def __init__(self, upstream: Upstream, node: str, topic: str, channel: str) -> None:
        self._upstream = upstream
        self._node = node
        self._topic = topic
        self._channel = channel
        self._calls = Calls(upstream, node)

    def place(self) -> LetterPlace:
        limits = read_limits(self._calls, self._topic, self._channel)
        with answer_of(self._node, UpstreamError):
            check_shape(limits, LIMITS)
            target = limits["dead_letter_topic"] or ""
            holders: list[str] = []
            if target:
                stats = self._calls.get("/stats", format="json", topic=target, include_clients="false")
                holders = [name for entry in stats.get("topics") or () for name in channel_names(entry["channels"])]
            return LetterPlace(target, holders, limits["dead_letters_waiting"], limits["waiting_for"] or "")

    def page(self, place: LetterPlace, holder: str, after: str = "", text: str = "") -> MessagePage:
        """Return dead letters after a cursor. text: only those with it. holder: as `LetterPlace.chosen` returns."""
        if holder == WAITING:
            return MessageList(self._upstream, self._node, self._topic, self._channel, "dead_letter").page(after, text)
        states = returnable_states(holder or None)
        state, _, cursor = after.partition(":")
        number = states.index(state) if state in states else 0
        found: list[MessageRow] = []
        looked_at = 0
        for state in states[number:]:
            messages = MessageList(self._upstream, self._node, place.target, holder, state)
            part = messages.page(cursor, text, PAGE_SIZE - len(found))
            found += part.messages
            looked_at += part.looked_at
            if part.next:
                return MessagePage(found, f"{state}:{part.next}", looked_at)
            cursor = ""
            if len(found) >= PAGE_SIZE and state != states[-1]:
                return MessagePage(found, f"{states[-1]}:", looked_at)
        return MessagePage(found, "", looked_at)

    def holding(self) -> DeadLetterTopic | None:
        """Return the dead-letter topic, with the channels that share it and those that a returned message reaches."""
        with answer_of(self._node, UpstreamError):
            return find_dead_letter_topic(self._calls, self._topic, self._channel)

    def matching(self, target: str, holder: str, wanted: Iterable[str] | None, text: str = "") -> list[Row]:
        """Return dead letters that can return, at most RETURNED_MAX. wanted: only these ids. text: only with it."""
        ids = None if wanted is None else frozenset(wanted)
        rows: Iterator[Any] = itertools.islice(select_dead_letters(self._calls, target, holder or None, ids), SCAN_MAX)
        with answer_of(self._node, UpstreamError):
            found = (row for row in rows if not text or MessageRow.of_row(row).matches(text))
            return list(itertools.islice(found, RETURNED_MAX))

    def give_back(self, target: str, holder: str, rows: list[Row]) -> tuple[dict[str, int], list[str]]:
        """Publish dead letters in their topic again. Returns: how many by result, and the errors."""
        counts: dict[str, int] = {}
        errors: list[str] = []
        try:
            for result in return_dead_letters(self._calls, target, holder or None, rows, self._topic, NEW_CHANNEL):
                counts[result["state"]] = counts.get(result["state"], 0) + 1
                if result["error"] is not None:
                    errors.append(result["error"])
        except ClientError as error:
            errors.append(str(error))
        return counts, errors
