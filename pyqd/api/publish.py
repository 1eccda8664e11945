"""POST /pub and /mpub.

The order of the checks is part of the interface: a request with two faults is always refused for the same one.

Source: docs/nsq/http-api.md, "Publishing".
"""

import logging
import re
import struct
from collections.abc import Callable

from gevent.event import Event

from pyqd.api.http_params import refusing, topic_name
from pyqd.api.rights import PUBLISH, TOPIC
from pyqd.broker.broker import Broker
from pyqd.broker.topic import Topic
from pyqd.config.options import Options
from pyqd.hot.api.plain_publish import PlainPublisher
from pyqd.hot.broker.intake import enqueue_frames, must_queue
from pyqd.hot.broker.trace import TraceClient
from pyqd.hot.primitives.clock import wall
from pyqd.hot.primitives.guid import id_after, to_hex
from pyqd.hot.wire.bodies import BinaryFramer, Frames, LineFramer
from pyqd.http.messages import TEXT, HttpError, Request, Response, Route, storage_refusal, text_response
from pyqd.http.query import UrlQuery
from pyqd.net.listener import UNIX_REMOTE
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.durations import MILLISECOND_NS
from pyqd.primitives.errors import StorageError
from pyqd.primitives.sites import Sites
from pyqd.primitives.timestamps import parse_timestamp

SIZE_BYTES = 4
ID_HEADER = "X-NSQ-Message-Id"
COUNT_HEADER = "X-NSQ-Message-Count"
# Least size of a message in a binary body: its size field and one byte.
MESSAGE_BYTES_MIN = SIZE_BYTES + 1
# Bytes of a body that are parsed in one slice; in lines of one byte a slice takes half a millisecond.
PIECE_BYTES = 128 << 10

_int32 = struct.Struct(">i")
_UNIX_MS = re.compile("[0-9]{1,30}")
_DEFER_MS = re.compile("[+-]?[0-9]{1,30}")

logger = logging.getLogger(__name__)


def plain_publishers(broker: Broker, sites: Sites | None = None) -> Callable[[str], PlainPublisher]:
    """Return the maker of an HTTP server's short paths, which store plain publishes; it takes the client's address.

    sites: those of the server.
    """

    def find_topic(name: bytes) -> Topic | None:
        topic = broker.topics.get(name.decode("ascii"))
        waits = broker.options.sync_every == 1 and topic is not None and not topic.ephemeral
        return None if waits else topic

    options = broker.options
    limits = options.max_msg_size, options.max_body_size, count_max(options)

    def new_path(remote: str) -> PlainPublisher:
        accepts_host = None if sites is None or remote == UNIX_REMOTE else sites.accepts
        return PlainPublisher(*limits, find_topic, remote, accepts_host)

    return new_path


def count_max(options: Options) -> int:
    return (options.max_body_size - SIZE_BYTES) // MESSAGE_BYTES_MIN


class PublishRoutes:
    """Routes that accept messages."""

    def __init__(self, broker: Broker, wait_durable: Callable[[list[Topic]], None]) -> None:
        self.broker = broker
        self.wait_durable = wait_durable

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/pub", self.pub, self.msg_size_max, logged=False, right=PUBLISH, topics=TOPIC),
            Route("POST", "/mpub", self.mpub, self.body_size_max, logged=False, right=PUBLISH, topics=TOPIC),
        ]

    def msg_size_max(self) -> int:
        return self.broker.options.max_msg_size

    def body_size_max(self) -> int:
        return self.broker.options.max_body_size

    def pub(self, request: Request) -> Response:
        if request.body_too_big:
            raise HttpError(413, "MSG_TOO_BIG")
        if not request.body:
            raise HttpError(400, "MSG_EMPTY")
        query = request.query()
        topic = self.topic(query)
        now_ns = wall()
        due_ns = self.due_asked(query, now_ns)
        try:
            note_publisher(topic, request)
            if topic.busy:
                guid = self.store_queued(topic, one_frame(request.body), now_ns, due_ns)
            else:
                guid = topic.publish_body(request.body, now_ns, due_ns)
            self.make_durable(topic)
        except StorageError as error:
            raise self.refused(error) from error
        return publish_response(guid)

    def mpub(self, request: Request) -> Response:
        """Publish the messages in the body, all or none, perhaps deferred."""
        if request.content_length > self.body_size_max():
            raise HttpError(413, "BODY_TOO_BIG")
        query = request.query()
        topic = self.topic(query)
        now_ns = wall()
        due_ns = self.due_asked(query, now_ns)
        options = self.broker.options
        if is_binary(query.get("binary")):
            frames = binary_frames(request, options.max_msg_size, count_max(options))
        else:
            frames = line_frames(request, options.max_msg_size)
        if frames.count == 0:
            return text_response("OK")
        try:
            note_publisher(topic, request)
            if must_queue(topic, frames):
                guid = self.store_queued(topic, frames, now_ns, due_ns)
            else:
                guid = topic.publish_frames(frames, now_ns, due_ns)
            self.make_durable(topic)
        except StorageError as error:
            raise self.refused(error) from error
        return publish_response(guid, frames.count)

    def store_queued(self, topic: Topic, frames: Frames, now_ns: int, due_ns: int) -> int:
        """Store messages in slices, after the batches that are queued already. Returns: the first message's id.

        Raises: StorageError, HttpError if the topic is deleted meanwhile. Switches: yes.
        """
        queued = enqueue_frames(topic, frames, now_ns, due_ns)
        if topic.trace is not None:
            queued.publisher = topic.trace.publisher
        finished = Event()
        queued.on_done = finished.set
        try:
            finished.wait()
        finally:
            queued.cancel()
        if queued.error is not None:
            raise queued.error
        if not queued.stored:
            raise HttpError(503, "EXITING")
        return id_after(queued.last_id, 1 - frames.count)

    def make_durable(self, topic: Topic) -> None:
        """With --sync-every=1, wait until the topic is on stable storage. Raises: StorageError. Switches: yes."""
        if self.broker.options.sync_every == 1 and not topic.ephemeral:
            self.wait_durable([topic])

    def topic(self, query: UrlQuery) -> Topic:
        """Return the topic that a query names, created if it is missing."""
        name = topic_name(query)
        if self.broker.is_refused(name):
            raise HttpError(503, "EXITING")
        topic = self.broker.topic(name)
        if topic.exiting:
            raise HttpError(503, "EXITING")
        return topic

    def due_asked(self, query: UrlQuery, now_ns: int) -> int:
        """Return the due time of published messages in Unix nanoseconds; 0 for at once."""
        defer_text = query.get("defer")
        due_text = query.get("due")
        due_ns = 0
        if defer_text is not None:
            defer_ns = self.defer_ns(defer_text)
            due_ns = now_ns + defer_ns if defer_ns else 0
        if due_text is not None:
            if defer_text is not None:
                raise HttpError(400, "INVALID_DUE")
            due_ns = self.due_ns(due_text, now_ns)
        return due_ns

    def defer_ns(self, text: str) -> int:
        """Return a delay given in milliseconds."""
        if not _DEFER_MS.fullmatch(text):
            raise HttpError(400, "INVALID_DEFER")
        defer_ns = int(text) * MILLISECOND_NS
        if not 0 <= defer_ns <= self.broker.options.defer_ns_max():
            raise HttpError(400, "INVALID_DEFER")
        return defer_ns

    def due_ns(self, text: str, now_ns: int) -> int:
        """Return a due time given in Unix milliseconds or as RFC 3339; 0 if it has passed."""
        with refusing("INVALID_DUE"):
            due_ns = int(text) * MILLISECOND_NS if _UNIX_MS.fullmatch(text) else parse_timestamp(text, now_ns)
        if due_ns > now_ns + self.broker.options.defer_ns_max():
            raise HttpError(400, "INVALID_DUE")
        return due_ns if due_ns > now_ns else 0

    def refused(self, error: StorageError) -> HttpError:
        """Record that storage refused a message. Returns: the answer to the client."""
        self.broker.note_failed_write(error)
        return storage_refusal(error)


def note_publisher(topic: Topic, request: Request) -> None:
    """Name the client of the publish that follows at once, if the topic is traced."""
    if topic.trace is not None:
        user_agent = request.headers.get(b"user-agent", b"").decode("latin-1")
        topic.published_by(TraceClient(request.remote, user_agent))


def one_frame(body: bytes) -> Frames:
    return Frames(_int32.pack(len(body)) + body, 0, 1, (len(body) + 7) // 8)


def publish_response(guid: int, count: int | None = None) -> Response:
    """Return the answer to a publish. It names the id of the message, or of the first of `count` messages."""
    headers: tuple[tuple[str, str], ...] = ((ID_HEADER, to_hex(guid).decode("ascii")),)
    if count is not None:
        headers += ((COUNT_HEADER, str(count)),)
    return Response(200, b"OK", TEXT, headers)


def is_binary(value: str | None) -> bool:
    """Return whether the body is in the binary form. Other values than nsqd's count as true, as in nsqd."""
    if value is None or value in ("false", "0"):
        return False
    if value not in ("true", "1"):
        logger.warning("deprecated value used for /mpub binary param: %s", value)
    return True


def line_frames(request: Request, msg_size_max: int) -> Frames:
    """Return the non-empty lines of the body as framed messages. Switches: if there are many."""
    framer = LineFramer(request.body, msg_size_max)
    while not framer.step(PIECE_BYTES):
        yield_to_loop()
    if not framer.failed and not request.body_too_big:
        return framer.frames
    # The last line of a truncated body may be of any length.
    is_too_long = framer.failed and not (framer.cut and request.body_too_big)
    raise HttpError(413, "MSG_TOO_BIG" if is_too_long else "BODY_TOO_BIG")


def binary_frames(request: Request, msg_size_max: int, batch_count_max: int) -> Frames:
    """Return the messages of a binary body: a count, then size and bytes of each. Trailing bytes are ignored.

    Switches: if there are many.
    """
    framer = BinaryFramer(request.body, msg_size_max, batch_count_max)
    while not framer.step(PIECE_BYTES):
        yield_to_loop()
    if not framer.failed:
        return framer.frames
    if not framer.counts:
        raise HttpError(413, "BAD_BODY")
    raise HttpError(413, "BODY_TOO_BIG" if framer.cut and request.body_too_big else "BAD_MESSAGE")
