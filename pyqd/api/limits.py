"""GET and POST /channel/limits: rate and attempts of a channel, changed at run time.

Source: docs/http.md.
"""

import logging
import re
from typing import Any

from pyqd.api.http_params import number, requested_channel
from pyqd.api.rights import ADMIN, STATUS, TOPIC
from pyqd.broker.broker import Broker
from pyqd.broker.channel import Channel
from pyqd.broker.channel_settings import ATTEMPTS_MAX, ChannelSettings, limits_to_dict
from pyqd.durability.syncer import sync_channel
from pyqd.http.messages import HttpError, Request, Response, Route, json_response
from pyqd.http.query import UrlQuery
from pyqd.primitives.names import is_ephemeral_str, is_valid_name_str

_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)

logger = logging.getLogger(__name__)


class LimitRoutes:
    """Routes of a channel's limits."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/channel/limits", self.limits, right=STATUS),
            Route("POST", "/channel/limits", self.set_limits, right=ADMIN, topics=(*TOPIC, "dead_letter_topic")),
        ]

    def limits(self, request: Request) -> Response:
        """Return a channel's limits and their effect so far."""
        return limits_response(requested_channel(self.broker, request.query()))

    def set_limits(self, request: Request) -> Response:
        """Set a channel's limits, stored over restarts. Missing parameters keep their values. Switches: at the end."""
        query = request.query()
        channel = requested_channel(self.broker, query)
        limits = requested_limits(query, channel.limits)
        if limits.dead_letter_topic:
            self.provide_topic(channel, limits.dead_letter_topic)
        channel.set_limits(limits)
        logger.info("TOPIC(%s): limits of channel %s: %s", channel.topic.name, channel.name, limits.text())
        if channel.directory is not None:
            # If the sync fails, the change is made all the same and outlives the process. The failure shows in the
            # health.
            sync_channel(self.broker, channel)
        return limits_response(channel)

    def provide_topic(self, channel: Channel, name: str) -> None:
        """Create the dead-letter topic if it is missing, so that a failure shows now and not with the first dead
        letter.
        """
        if not is_valid_name_str(name) or is_ephemeral_str(name) or name == channel.topic.name:
            raise HttpError(400, "INVALID_DEAD_LETTER_TOPIC")
        self.broker.topic(name)


def requested_limits(query: UrlQuery, now: ChannelSettings) -> ChannelSettings:
    """Return the limits in force with a query's changes. Raises: HttpError 400."""
    names = ("rate", "burst", "max_attempts", "dead_letter_topic")
    if all(query.get(name) is None for name in names):
        raise HttpError(400, "MISSING_ARG_RATE")
    limits = now
    if query.get("rate") is not None:
        limits = limits._replace(rate=parse_rate(query, "rate"), burst=0.0)
    if query.get("burst") is not None:
        limits = limits._replace(burst=parse_rate(query, "burst"))
        if not limits.rate:
            raise HttpError(400, "MISSING_ARG_RATE")
    if query.get("max_attempts") is not None:
        limits = limits._replace(max_attempts=number(query, "max_attempts", 0, most=ATTEMPTS_MAX, digits_max=9))
    topic = query.get("dead_letter_topic")
    if topic is not None:
        limits = limits._replace(dead_letter_topic=topic)
        if not limits.max_attempts:
            raise HttpError(400, "MISSING_ARG_MAX_ATTEMPTS")
    if limits.max_attempts and not limits.dead_letter_topic:
        # Without a dead-letter topic, a limit on attempts would drop messages.
        raise HttpError(400, "INVALID_DEAD_LETTER_TOPIC" if topic is not None else "MISSING_ARG_DEAD_LETTER_TOPIC")
    return limits if limits.max_attempts else limits._replace(dead_letter_topic="")


def parse_rate(query: UrlQuery, name: str) -> float:
    text = query.get(name) or ""
    if not _NUMBER.fullmatch(text):
        raise HttpError(400, f"INVALID_{name.upper()}")
    return float(text)


def limits_response(channel: Channel) -> Response:
    names: dict[str, Any] = {"topic": channel.topic.name, "channel": channel.name}
    return json_response({**names, **limits_to_dict(channel, channel.limits), "waiting_for": channel.dead_letter_error})
