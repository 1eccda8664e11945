"""Routes of a lookup daemon's HTTP API.

`*` stands for all topics in calls that do not check the name. Source: docs/nsq/lookupd.md, "HTTP API".
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from pyqd import __version__
from pyqd.http.messages import JSON, HttpError, Request, Response, Route, json_response, text_response, to_json
from pyqd.http.query import UrlQuery
from pyqd.lookupd.registry import RegisteredName, Registry
from pyqd.net.loop_driver import in_slices
from pyqd.primitives.names import is_valid_name_str
from pyqd.primitives.nsq_compat import NSQ_VERSION, PYQD_VERSION
from pyqd.primitives.timestamps import wall_ahead_ns

OPEN: Final = "open"
STATUS: Final = "status"
ADMIN: Final = "admin"
TOPIC: Final = ("topic",)

logger = logging.getLogger(__name__)


class LookupRoutes:
    """Routes over one registry. now_ns: the monotonic clock."""

    def __init__(self, registry: Registry, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.registry = registry
        self._now_ns = now_ns

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/ping", self.ping, common_headers=False, right=OPEN, any_site=True),
            Route("GET", "/info", self.info, right=STATUS),
            Route("GET", "/debug", self.debug, right=STATUS),
            Route("GET", "/lookup", self.lookup, right=STATUS),
            Route("GET", "/topics", self.topics, right=STATUS),
            Route("GET", "/channels", self.channels, right=STATUS),
            Route("GET", "/nodes", self.nodes, right=STATUS),
            Route("POST", "/topic/create", self.create_topic, right=ADMIN, topics=TOPIC),
            Route("POST", "/topic/delete", self.delete_topic, right=ADMIN, topics=TOPIC),
            Route("POST", "/topic/tombstone", self.tombstone, right=ADMIN, topics=TOPIC),
            Route("POST", "/channel/create", self.create_channel, right=ADMIN, topics=TOPIC),
            Route("POST", "/channel/delete", self.delete_channel, right=ADMIN, topics=TOPIC),
        ]

    def ping(self, _request: Request) -> Response:
        return text_response("OK")

    def info(self, _request: Request) -> Response:
        """Return the version of nsqlookupd that is spoken, and pyqd's own."""
        return json_response({"version": NSQ_VERSION, PYQD_VERSION: __version__})

    def topics(self, _request: Request) -> Response:
        return json_response({"topics": self.registry.topics()})

    def channels(self, request: Request) -> Response:
        return json_response({"channels": self.registry.channels(topic_of(request.query()))})

    def lookup(self, request: Request) -> Response:
        """Return the channels of a topic and the brokers that have it."""
        answer = self.registry.lookup(topic_of(request.query()), self._now_ns())
        if answer is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return Response(200, answer, JSON)

    def nodes(self, _request: Request) -> Response:
        return Response(200, b'{"producers":[%b]}' % b",".join(gathered(self.registry.nodes(self._now_ns()))), JSON)

    def debug(self, _request: Request) -> Response:
        found = self.registry.debug(wall_ahead_ns())
        rows = (b"%b:%b" % (to_json(key), to_json(producers)) for key, producers in found)
        return Response(200, b"{%b}" % b",".join(gathered(rows)), JSON)

    def create_topic(self, request: Request) -> Response:
        """Create a topic without brokers."""
        topic = topic_of(request.query())
        if not is_valid_name_str(topic):
            raise HttpError(400, "INVALID_ARG_TOPIC")
        logger.info("DB: adding topic(%s)", topic)
        self.registry.create_topic(topic)
        return Response(200)

    def delete_topic(self, request: Request) -> Response:
        """Delete a topic and its channels here; brokers keep them."""
        in_slices(map(log_deletion, self.registry.topic_deletion(topic_of(request.query()))))
        return Response(200)

    def tombstone(self, request: Request) -> Response:
        """Hide a broker from the lookups of a topic for a while."""
        query = request.query()
        topic = topic_of(query)
        node = query.get("node")
        if node is None:
            raise HttpError(400, "MISSING_ARG_NODE")
        logger.info("DB: setting tombstone for producer@%s of topic(%s)", node, topic)
        self.registry.tombstone(topic, node, self._now_ns())
        return Response(200)

    def create_channel(self, request: Request) -> Response:
        """Create a channel without brokers, and its topic."""
        topic, channel = topic_and_channel_of(request.query())
        logger.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        logger.info("DB: adding topic(%s)", topic)
        self.registry.create_channel(topic, channel)
        return Response(200)

    def delete_channel(self, request: Request) -> Response:
        """Delete a channel here; brokers keep it."""
        topic, channel = topic_and_channel_of(request.query())
        if not self.registry.delete_channel(topic, channel):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        logger.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        return Response(200)


def gathered(parts: Iterable[bytes]) -> list[bytes]:
    """Return the parts of an answer; other connections are served between them. Switches: it may.

    Of 1,000 brokers with 1,000 topics the parts take seconds, and nsqd waits one second for the answer to a command.
    """
    found: list[bytes] = []
    in_slices(map(found.append, parts))
    return found


def log_deletion(place: RegisteredName) -> None:
    if place.channel:
        logger.info("DB: removing channel(%s) from topic(%s)", place.channel, place.topic)
    else:
        logger.info("DB: removing topic(%s)", place.topic)


def topic_of(query: UrlQuery) -> str:
    """Return the topic that a query names, valid or not. Raises: HttpError 400."""
    topic = query.get("topic")
    if topic is None:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    return topic


def topic_and_channel_of(query: UrlQuery) -> tuple[str, str]:
    """Return the valid names of a topic and a channel. Raises: HttpError 400."""
    topic = topic_of(query)
    if not is_valid_name_str(topic):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    channel = query.get("channel")
    if channel is None:
        raise HttpError(400, "MISSING_ARG_CHANNEL")
    if not is_valid_name_str(channel):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return topic, channel
