"""POST /topic/create and /channel/create. GET and POST /topic/retention and /topic/quota, changed at run time.

Source: docs/nsq/http-api.md, "Topic and channel administration"; docs/http.md; docs/space.md.
"""

import contextlib
import logging
import re
from typing import Any

from pyqd.api.http_params import FLAG, refusing, requested_topic, topic_and_channel_name, topic_name
from pyqd.api.replay import answering_position_errors, place_of
from pyqd.api.rights import ADMIN, STATUS, TOPIC
from pyqd.broker import replay
from pyqd.broker.broker import Broker
from pyqd.broker.channel import Channel
from pyqd.broker.topic import Topic
from pyqd.http.messages import HttpError, Request, Response, Route, json_response
from pyqd.http.query import UrlQuery
from pyqd.net.loop_driver import poll_sync, yield_to_loop
from pyqd.primitives.durations import INT64_MAX, format_duration, parse_duration
from pyqd.primitives.errors import StorageError

_BYTES = re.compile("[0-9]{1,18}", re.ASCII)

logger = logging.getLogger(__name__)


class TopicRoutes:
    """Routes that create topics and channels, and those of a topic's retention and quota."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def routes(self) -> list[Route]:
        create_channel = answering_position_errors(self.create_channel)
        return [
            Route("POST", "/topic/create", self.create_topic, right=ADMIN, topics=TOPIC),
            Route("POST", "/channel/create", create_channel, right=ADMIN, topics=TOPIC),
            Route("GET", "/topic/retention", self.retention, right=STATUS),
            Route("POST", "/topic/retention", self.set_retention, right=ADMIN, topics=TOPIC),
            Route("GET", "/topic/quota", self.quota, right=STATUS),
            Route("POST", "/topic/quota", self.set_quota, right=ADMIN, topics=TOPIC),
        ]

    def create_topic(self, request: Request) -> Response:
        self.broker.topic(topic_name(request.query()))
        return Response(200)

    def create_channel(self, request: Request) -> Response:
        """Create a channel if it is missing, at a place of the log if `start` names one. Switches: yes."""
        query = request.query()
        topic, name = topic_and_channel_name(self.broker, query)
        place = None if query.get("start") is None else place_of(query, "start", "INVALID_START")
        if place is not None and name not in topic.channels_by_name:
            # Looked up before the channel exists, so that no channel is created if the place is refused.
            replay.find(topic, place, yield_to_loop)
        if topic.exiting:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        created = name not in topic.channels_by_name
        channel = topic.channel(name)
        if place is None:
            return Response(200)
        if not created:
            return json_response({"topic": topic.name, "channel": name, "created": False})
        moved = moved_or_deleted(topic, channel, place)
        shown = {key: moved[key] for key in ("topic", "channel", "to", "depth")}
        return json_response({**shown, "created": True})

    def retention(self, request: Request) -> Response:
        return retention_response(requested_topic(self.broker, request.query()))

    def set_retention(self, request: Request) -> Response:
        """Set the retention of a topic's finished messages, stored over restarts."""
        query = request.query()
        topic = requested_topic(self.broker, query)
        limits: dict[str, int | None] = {}
        if query.get("bytes") is not None:
            limits["retention_bytes"] = bytes_of(query)
        if query.get("time") is not None:
            limits["retention_time_ns"] = time_of(query)
        if not limits:
            raise HttpError(400, "MISSING_ARG_BYTES")
        topic.quota.set_own(**limits)
        logger.info(
            "TOPIC(%s): retention is %d bytes, %d ns", topic.name, topic.retention_bytes, topic.retention_time_ns
        )
        return retention_response(topic)

    def quota(self, request: Request) -> Response:
        return quota_response(requested_topic(self.broker, request.query()))

    def set_quota(self, request: Request) -> Response:
        """Set a topic's quota of disk space, stored over restarts."""
        query = request.query()
        topic = requested_topic(self.broker, query)
        if query.get("bytes") is None:
            raise HttpError(400, "MISSING_ARG_BYTES")
        topic.quota.set_own(bytes_max=bytes_of(query))
        logger.info("TOPIC(%s): quota is %d bytes", topic.name, topic.quota.bytes_max)
        return quota_response(topic)


def moved_or_deleted(topic: Topic, channel: Channel, place: replay.LogPlace) -> dict[str, Any]:
    """Move a new channel to its place; delete the channel if that fails. Returns: the effect. Raises: as `replay.move`.

    Switches: yes.
    """
    try:
        return replay.move(topic, channel, place, yield_to_loop, poll_sync)
    except BaseException:
        if topic.channels_by_name.get(channel.name) is channel and not is_needed(topic, channel):
            with contextlib.suppress(StorageError):
                topic.delete_channel(channel.name)
        raise


def is_needed(topic: Topic, channel: Channel) -> bool:
    """Return whether a channel must stay, although it could not be moved to the place of its creation."""
    if channel.is_closed() or channel.consumers:
        return True
    # A topic's first channel gets the messages that the topic held; they would go with the channel.
    is_only = len(topic.channels_by_name) == 1
    return is_only and (topic.ephemeral or channel.depth + channel.deferred_count + channel.in_flight_count > 0)


def bytes_of(query: UrlQuery) -> int | None:
    """Return the parameter `bytes`; None if the daemon's flag applies."""
    text = query.get("bytes") or ""
    if text == FLAG:
        return None
    if not _BYTES.fullmatch(text):
        raise HttpError(400, "INVALID_BYTES")
    return int(text)


def time_of(query: UrlQuery) -> int | None:
    """Return the duration in `time` in nanoseconds; None if the daemon's flag applies."""
    text = query.get("time") or ""
    if text == FLAG:
        return None
    with refusing("INVALID_TIME"):
        time_ns = parse_duration(text)
    if not 0 <= time_ns < INT64_MAX:
        raise HttpError(400, "INVALID_TIME")
    return time_ns


def retention_response(topic: Topic) -> Response:
    own_bytes, own_time_ns, _ = topic.own_limits
    return json_response(
        {
            "topic": topic.name,
            "bytes": topic.retention_bytes,
            "time": format_duration(topic.retention_time_ns),
            "own_bytes": own_bytes,
            "own_time": None if own_time_ns is None else format_duration(own_time_ns),
        }
    )


def quota_response(topic: Topic) -> Response:
    return json_response(
        {
            "topic": topic.name,
            "bytes": topic.quota.bytes_max,
            "own_bytes": topic.own_limits[2],
            "used": topic.quota.bytes_used(),
            "refused": topic.quota.refusal,
        }
    )
