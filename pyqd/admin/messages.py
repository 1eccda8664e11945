"""Single messages of one broker: pages of a channel's messages, and changes of those that are chosen.

Source: docs/http.md, "Single messages".
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyqd.admin.shapes import OPTIONAL_TEXT, answer_of, check_shape
from pyqd.admin.upstream import Upstream, UpstreamError

STATES: Final = ("ready", "in_flight", "deferred", "dead_letter")
CHANGES: Final = ("cancel", "deliver_now", "reschedule")
PAGE_SIZE: Final = 50
PAGE_MAX: Final = 1000
# A filter looks at so many messages, and a change of all that match changes at most as many.
SCAN_MAX: Final = 20_000
HEX_ROW: Final = 16
OPTIONAL_INTEGER: Final = (int, type(None))
MESSAGE: Final = {
    "id": (str,),
    "state": (str,),
    "timestamp": (int,),
    "attempts": (int,),
    "size": (int,),
    "due": OPTIONAL_INTEGER,
    "deadline": OPTIONAL_INTEGER,
    "client": (dict, type(None)),
    "body": OPTIONAL_TEXT,
}


@dataclasses.dataclass(frozen=True, slots=True)
class MessageRow:
    """One message. body: its first 4096 bytes. Times in ns since 1970.

    client: address of the client that has it, in flight only, with its host or id; empty for one that is gone.
    """

    id: str
    state: str
    timestamp_ns: int
    attempts: int
    size_bytes: int
    due_ns: int
    deadline_ns: int
    client: str
    client_name: str
    body: bytes
    is_truncated: bool

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> MessageRow:
        """Return the message in an answer, whose body is in base64. Raises: ShapeError, TypeError, ValueError."""
        found = {"client": None, "due": None, "deadline": None, "body": None, **row}
        check_shape(found, MESSAGE)
        client = {"remote_address": "", "hostname": "", "client_id": "", **(found["client"] or {})}
        check_shape(client, {"remote_address": (str,), "hostname": (str,), "client_id": (str,)})
        return cls(
            found["id"],
            found["state"],
            found["timestamp"],
            found["attempts"],
            found["size"],
            found["due"] or 0,
            found["deadline"] or 0,
            client["remote_address"],
            client["hostname"] or client["client_id"],
            base64.b64decode(found["body"] or ""),
            bool(found.get("truncated")),
        )

    def matches(self, text: str, client: str = "") -> bool:
        """Return whether a text is in the id or in the body, and a client has the message; empty for any."""
        return (not client or self.client == client) and (text in self.id or text.encode() in self.body)


@dataclasses.dataclass(slots=True)
class MessagePage:
    """A page of messages. next: cursor of the next, empty after the last. looked_at: number that a filter has read."""

    messages: list[MessageRow]
    next: str
    looked_at: int


class MessageList:
    """The messages of one channel at one broker, in one state. channel: empty for those that the topic itself holds."""

    def __init__(self, upstream: Upstream, node: str, topic: str, channel: str, state: str = STATES[0]) -> None:
        self._upstream = upstream
        self._node = node
        self._place = {"topic": topic} | ({"channel": channel} if channel else {})
        self._state = state

    def page(self, after: str = "", text: str = "", size: int = PAGE_SIZE, client: str = "") -> MessagePage:
        """Return messages after a cursor. text, client: only those that match both. Raises: UpstreamError."""
        if not text and not client:
            rows, following = self._rows(after, size)
            return MessagePage(rows, following, len(rows))
        return self._search(after, text, client, size, max(size, PAGE_SIZE))

    def all_ids(self, text: str = "") -> list[str]:
        """Return the ids of the messages, SCAN_MAX at most. text: only with it. Raises: UpstreamError."""
        return [row.id for row in self._search("", text, "", SCAN_MAX, PAGE_MAX).messages]

    def _search(self, after: str, text: str, client: str, wanted: int, page_size: int) -> MessagePage:
        """Read pages of the broker until so many messages match."""
        found: list[MessageRow] = []
        looked_at = 0
        while True:
            # A page of the broker is taken whole, or its cursor would skip messages.
            rows, after = self._rows(after, min(PAGE_MAX, page_size))
            looked_at += len(rows)
            found += [row for row in rows if row.matches(text, client)]
            if not after or len(found) >= wanted or looked_at >= SCAN_MAX:
                return MessagePage(found, after, looked_at)

    def change(self, change: str, ids: Iterable[str], when: Mapping[str, str], counts: dict[str, int]) -> None:
        """Change messages one by one. when: `defer` or `due` of a reschedule. counts: gets how many by status.

        A message that is gone meanwhile has the status `gone`. Raises: UpstreamError, and has counted some by then.
        """
        assert change in CHANGES
        for each in ids:
            status = self._change(change, each, when)
            counts[status] = counts.get(status, 0) + 1

    def _change(self, change: str, message_id: str, when: Mapping[str, str]) -> str:
        query = {**self._place, "id": message_id, **when}
        try:
            body = self._upstream.post(self._node, f"/message/{change}", query)
        except UpstreamError as error:
            if "MESSAGE_NOT_FOUND" in str(error):
                return "gone"
            raise
        try:
            return str(json.loads(body)["results"][0]["status"])
        except (ValueError, LookupError, TypeError) as error:
            raise UpstreamError(f"{self._node}: /message/{change}: not the answer of a pyqd: {error!r}") from None

    def _rows(self, after: str, size: int) -> tuple[list[MessageRow], str]:
        query = {**self._place, "state": self._state, "limit": str(size), "body": "base64"}
        if after:
            query["after"] = after
        answer = self._upstream.get(self._node, "/channel/messages", query)
        with answer_of(self._node, UpstreamError):
            check_shape(answer, {"messages": (list,), "next": OPTIONAL_TEXT})
            return [MessageRow.of_row(row) for row in answer["messages"]], answer["next"] or ""


def shown_as(body: bytes, form: str) -> str:
    """Return a body as text, as indented JSON if it is JSON, or as hex. form: text, json or hex."""
    if form == "hex":
        return hex_dump(body)
    text = body.decode(errors="replace")
    if form == "json":
        try:
            return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return text
    return text


def hex_dump(body: bytes) -> str:
    """Return rows of an offset, 16 bytes in hex, and the printable ones of them."""
    rows = []
    for offset in range(0, len(body), HEX_ROW):
        part = body[offset : offset + HEX_ROW]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append(f"{offset:06x}  {part.hex(' '):<{3 * HEX_ROW}} {plain}")
    return "\n".join(rows)
