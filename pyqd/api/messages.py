"""GET /channel/messages; POST /message/cancel, /message/reschedule, /message/deliver_now: single messages.

Source: docs/http.md, "Single messages".
"""

import base64
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyqd.api.http_params import number, refusing, requested_topic_and_channel
from pyqd.api.replay import answering_position_errors
from pyqd.api.rights import CHANNEL, CONSUME, TOPIC
from pyqd.broker import message_lookup, peek
from pyqd.broker.broker import Broker
from pyqd.hot.primitives.clock import wall
from pyqd.hot.primitives.guid import from_hex
from pyqd.http.messages import (
    JSON,
    Handler,
    HttpError,
    Request,
    Response,
    Route,
    json_response,
    storage_refusal,
    to_json,
)
from pyqd.http.query import UrlQuery
from pyqd.net.loop_driver import in_slices, poll_sync, yield_to_loop
from pyqd.primitives.durations import MILLISECOND_NS
from pyqd.primitives.timestamps import parse_timestamp

LIMIT: Final = 100
LIMIT_MAX: Final = 1000
BODY_BYTES_MAX: Final = 4096
BODY_FORMS: Final = ("text", "base64", "none")

_NUMBER = re.compile("[0-9]{1,18}", re.ASCII)


class MessageRoutes:
    """Routes that list single messages and change them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def routes(self) -> list[Route]:
        handlers: dict[tuple[str, str], Handler] = {
            ("GET", "/channel/messages"): self.messages,
            ("POST", "/message/cancel"): self.cancel,
            ("POST", "/message/reschedule"): self.reschedule,
            ("POST", "/message/deliver_now"): self.deliver_now,
        }
        return [
            Route(
                *request,
                answering_position_errors(handler),
                logged=request[0] != "GET",
                right=CONSUME,
                topics=TOPIC,
                channel=CHANNEL,
            )
            for request, handler in handlers.items()
        ]

    def messages(self, request: Request) -> Response:
        """Return a page of messages. Switches: yes, if the page begins far back or is large."""
        query = request.query()
        topic, channel = requested_topic_and_channel(self.broker, query)
        state = choice_parameter(query, "state", peek.STATES, "INVALID_STATE")
        form = choice_parameter(query, "body", BODY_FORMS, "INVALID_BODY")
        limit = number(query, "limit", LIMIT, 1, LIMIT_MAX, digits_max=18) if query.get("limit") else LIMIT
        cursor = peek.Cursor()
        after = query.get("after")
        if after:
            with refusing("INVALID_AFTER"):
                cursor = peek.parse_cursor(after, state if channel else peek.READY)
        body_bytes_max = 0 if form == "none" else BODY_BYTES_MAX
        if channel is None:
            page = peek.page_of_topic(topic, state, cursor, limit, body_bytes_max, yield_to_loop)
        else:
            page = peek.page_of_channel(topic, channel, state, cursor, limit, body_bytes_max, yield_to_loop)
        rows: list[bytes] = []
        # 1,000 bodies of 4 KiB would take 20 ms.
        in_slices(append_rows(rows, page.rows, state, form))
        place = {"topic": topic.name, "channel": None if channel is None else channel.name, "state": state}
        ends = to_json(place)[:-1], to_json({"next": page.after})[1:]
        return Response(200, b'%b,"messages":[%b],%b' % (ends[0], b",".join(rows), ends[1]), JSON)

    def cancel(self, request: Request) -> Response:
        """Finish a message unread. Switches: yes."""
        return self.change(request, lambda _topic: message_lookup.cancel)

    def reschedule(self, request: Request) -> Response:
        """Change the due time of a message. Switches: yes."""
        due_ns = self.due_ns(request.query())
        return self.change(request, lambda topic: message_lookup.reschedule_to(topic, due_ns), due=due_ns)

    def deliver_now(self, request: Request) -> Response:
        """Make a message due now. Switches: yes."""
        now_ns = wall()
        return self.change(request, lambda topic: message_lookup.reschedule_to(topic, now_ns, at_once=True))

    def change(self, request: Request, change_for: Any, **shown_too: int) -> Response:
        query = request.query()
        topic, channel = requested_topic_and_channel(self.broker, query)
        id_text = query.get("id")
        if id_text is None:
            raise HttpError(400, "MISSING_ARG_ID")
        try:
            guid = from_hex(id_text.encode())
        except ValueError:
            raise HttpError(400, "INVALID_ARG_ID") from None
        channels = list(topic.channels_by_name.values()) if channel is None else [channel]
        change = change_for(topic)
        outcomes = message_lookup.change_message(topic, channels, guid, change, yield_to_loop, poll_sync)
        statuses = [outcome.status for outcome in outcomes]
        if all(status == message_lookup.UNKNOWN for status in statuses):
            raise HttpError(404, "MESSAGE_NOT_FOUND")
        answer: dict[str, Any] = {"topic": topic.name, "id": id_text, **shown_too}
        answer["results"] = [
            {"channel": outcome.channel, "status": outcome.status, **({"was": outcome.was} if outcome.was else {})}
            for outcome in outcomes
        ]
        for error in filter(None, (outcome.error for outcome in outcomes)):
            refusal = storage_refusal(error)
            return json_response({"message": refusal.code, **answer}, refusal.status)
        return json_response(answer)

    def due_ns(self, query: UrlQuery) -> int:
        """Return the due time in `defer` or `due`, in Unix nanoseconds; never before now."""
        now_ns = wall()
        defer, due = query.get("defer"), query.get("due")
        if defer is None and due is None:
            raise HttpError(400, "MISSING_ARG_DUE")
        due_ns = 0
        if defer is not None:
            if due is not None or not _NUMBER.fullmatch(defer):
                raise HttpError(400, "INVALID_DEFER" if due is None else "INVALID_DUE")
            due_ns = now_ns + int(defer) * MILLISECOND_NS
        elif due is not None:
            with refusing("INVALID_DUE"):
                due_ns = int(due) * MILLISECOND_NS if _NUMBER.fullmatch(due) else parse_timestamp(due, now_ns)
        if due_ns > now_ns + self.broker.options.defer_ns_max():
            raise HttpError(400, "INVALID_DUE" if defer is None else "INVALID_DEFER")
        return max(due_ns, now_ns)


def append_rows(texts: list[bytes], rows: Iterable[peek.ListedMessage], state: str, form: str) -> Iterator[None]:
    """Append messages in JSON, one in each step."""
    for row in rows:
        texts.append(to_json(row_to_json(row, state, form)))
        yield


def row_to_json(row: peek.ListedMessage, state: str, form: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": f"{row.guid:016x}",
        "state": state,
        "timestamp": row.timestamp_ns,
        "attempts": row.attempts,
        "size": row.size_bytes,
        "position": row.position,
    }
    if state == peek.IN_FLIGHT:
        client = None if row.client is None else row.client.stats()
        found["client"] = client and {key: client[key] for key in ("client_id", "hostname", "remote_address")}
        found["delivered"] = row.delivered_ns
        found["deadline"] = row.deadline_ns
    else:
        found["due"] = row.due_ns or None
    if form != "none":
        found["body"] = base64.b64encode(row.body).decode() if form == "base64" else row.body.decode(errors="replace")
        found["truncated"] = len(row.body) < row.size_bytes
    return found


def choice_parameter(query: UrlQuery, name: str, values: tuple[str, ...], code: str) -> str:
    """Return a parameter that must have one of these values; the first value if it is missing."""
    value = query.get(name) or values[0]
    if value not in values:
        raise HttpError(400, code)
    return value
