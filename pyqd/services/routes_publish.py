"""POST /pub and /mpub.

The order of the checks is part of the interface: a request with two faults is refused for the same one everywhere.

Source: spec of the HTTP API, "Publishing".
"""

import logging
import re
import struct
from collections.abc import Callable

from pyqd.broker.broker import Broker
from pyqd.broker.topic import Topic
from pyqd.hot.clock import wall
from pyqd.primitives.durations import MILLISECOND_NS
from pyqd.primitives.errors import StorageError
from pyqd.primitives.moments import parse_moment
from pyqd.primitives.names import is_valid_name_str
from pyqd.services.http_messages import HttpError, Request, Response, text_response
from pyqd.services.http_query import Query
from pyqd.services.http_router import Route

SIZE_BYTES = 4
# The least that a message takes in a binary body: its size and one byte.
MESSAGE_BYTES_MIN = SIZE_BYTES + 1

_int32 = struct.Struct(">i")
_UNIX_MS = re.compile("[0-9]{1,30}")
_DEFER_MS = re.compile("[+-]?[0-9]{1,30}")

logger = logging.getLogger(__name__)


class PublishRoutes:
    """The routes that accept messages."""

    def __init__(self, broker: Broker, wait_durable: Callable[[list[Topic]], None] | None = None) -> None:
        self.broker = broker
        self.wait_durable = wait_durable

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("POST", "/pub", self.pub, self.msg_size_max, logged=False),
            Route("POST", "/mpub", self.mpub, self.body_size_max, logged=False),
        ]

    def msg_size_max(self) -> int:
        """Return the largest message."""
        return self.broker.options.max_msg_size

    def body_size_max(self) -> int:
        """Return the largest body of many messages."""
        return self.broker.options.max_body_size

    def pub(self, request: Request) -> Response:
        """Accept the body as one message, perhaps deferred."""
        if request.body_too_big:
            raise HttpError(413, "MSG_TOO_BIG")
        if not request.body:
            raise HttpError(400, "MSG_EMPTY")
        query = request.query()
        topic = self.topic(query)
        now_ns = wall()
        due_ns = 0
        defer_text = query.get("defer")
        due_text = query.get("due")
        if defer_text is not None:
            defer_ns = self.defer_ns(defer_text)
            due_ns = now_ns + defer_ns if defer_ns else 0
        if due_text is not None:
            if defer_text is not None:
                raise HttpError(400, "INVALID_DUE")
            due_ns = self.due_ns(due_text, now_ns)
        try:
            topic.publish_body(request.body, now_ns, due_ns)
            self.make_durable(topic)
        except StorageError as error:
            raise self.refused(error) from error
        return text_response("OK")

    def mpub(self, request: Request) -> Response:
        """Accept the messages in the body, all or none."""
        if request.content_length > self.body_size_max():
            raise HttpError(413, "BODY_TOO_BIG")
        query = request.query()
        topic = self.topic(query)
        options = self.broker.options
        if is_binary(query.get("binary")):
            bodies = binary_bodies(request, options.max_msg_size, options.max_body_size)
        else:
            bodies = text_bodies(request, options.max_msg_size)
        if bodies:
            try:
                topic.publish_bodies(bodies, wall())
                self.make_durable(topic)
            except StorageError as error:
                raise self.refused(error) from error
        return text_response("OK")

    def make_durable(self, topic: Topic) -> None:
        """With --sync-every=1, wait until the topic is on stable storage. Raises: StorageError. Switches: yes."""
        if self.wait_durable is not None and self.broker.options.sync_every == 1 and not topic.ephemeral:
            self.wait_durable([topic])

    def topic(self, query: Query) -> Topic:
        """Return the topic asked for, made if it is missing."""
        name = query.get("topic")
        if name is None:
            raise HttpError(400, "MISSING_ARG_TOPIC")
        if not is_valid_name_str(name):
            raise HttpError(400, "INVALID_TOPIC")
        try:
            topic = self.broker.topic(name)
        except StorageError as error:
            logger.error("TOPIC(%s): not created - %s", name, error)
            raise HttpError(503, "EXITING") from error
        if topic.exiting:
            raise HttpError(503, "EXITING")
        return topic

    def defer_ns(self, text: str) -> int:
        """Return a delay, given in milliseconds."""
        if not _DEFER_MS.fullmatch(text):
            raise HttpError(400, "INVALID_DEFER")
        defer_ns = int(text) * MILLISECOND_NS
        if not 0 <= defer_ns <= self.broker.options.defer_ns_max():
            raise HttpError(400, "INVALID_DEFER")
        return defer_ns

    def due_ns(self, text: str, now_ns: int) -> int:
        """Return a moment, given in Unix milliseconds or as RFC 3339; 0 for one that has passed."""
        try:
            due_ns = int(text) * MILLISECOND_NS if _UNIX_MS.fullmatch(text) else parse_moment(text, now_ns)
        except ValueError as error:
            raise HttpError(400, "INVALID_DUE") from error
        if due_ns > now_ns + self.broker.options.defer_ns_max():
            raise HttpError(400, "INVALID_DUE")
        return due_ns if due_ns > now_ns else 0

    def refused(self, error: StorageError) -> HttpError:
        """Note that a message could not be accepted. Returns: what the client is told."""
        self.broker.note_failed_write(error)
        return HttpError(503, "EXITING")


def is_binary(value: str | None) -> bool:
    """Return whether the body is in the binary form. A value that is neither is taken as yes."""
    if value is None or value in ("false", "0"):
        return False
    if value not in ("true", "1"):
        logger.warning("deprecated value used for /mpub binary param: %s", value)
    return True


def text_bodies(request: Request, msg_size_max: int) -> list[bytes]:
    """Return the lines of the body without the empty ones."""
    lines = request.body.split(b"\n")
    # The last line of a body that was cut off may be any length.
    cut_off = lines.pop() if request.body_too_big else None
    for line in lines:
        if len(line) > msg_size_max:
            raise HttpError(413, "MSG_TOO_BIG")
    if cut_off is not None:
        raise HttpError(413, "BODY_TOO_BIG")
    return [line for line in lines if line]


def binary_bodies(request: Request, msg_size_max: int, body_size_max: int) -> list[bytes]:
    """Return the messages of a body of a count, then each one's size and bytes; what follows them is ignored."""
    body = request.body
    if len(body) < SIZE_BYTES:
        raise HttpError(413, "BAD_BODY")
    (count,) = _int32.unpack_from(body)
    if not 0 < count <= (body_size_max - SIZE_BYTES) // MESSAGE_BYTES_MIN:
        raise HttpError(413, "BAD_BODY")
    truncated = HttpError(413, "BODY_TOO_BIG" if request.body_too_big else "BAD_MESSAGE")
    bodies = []
    at = SIZE_BYTES
    for _ in range(count):
        start = at + SIZE_BYTES
        if start > len(body):
            raise truncated
        (size,) = _int32.unpack_from(body, at)
        if not 0 < size <= msg_size_max:
            raise HttpError(413, "BAD_MESSAGE")
        at = start + size
        if at > len(body):
            raise truncated
        bodies.append(body[start:at])
    return bodies
