"""GET and POST /channel/limits: how many messages a second, and how often one, changed while it runs.

Source: docs/http.md.
"""

import logging
import re
from typing import Any

from pyqd.api.http_params import channel_asked
from pyqd.api.rights import ADMIN, STATUS
from pyqd.broker.broker import Broker
from pyqd.broker.channel import Channel
from pyqd.broker.channel_limits import ATTEMPTS_MAX, ChannelLimits, shown
from pyqd.durability.syncer import sync_channel
from pyqd.http.messages import HttpError, Request, Response, json_response
from pyqd.http.query import Query
from pyqd.http.router import Route
from pyqd.primitives.errors import StorageError
from pyqd.primitives.names import is_ephemeral_str, is_valid_name_str

_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_COUNT = re.compile("[0-9]{1,9}", re.ASCII)

logger = logging.getLogger(__name__)


class LimitRoutes:
    """The routes to a channel's limits."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/channel/limits", self.limits, right=STATUS),
            Route("POST", "/channel/limits", self.set_limits, right=ADMIN),
        ]

    def limits(self, request: Request) -> Response:
        """Tell what a channel is limited to, and what came of it."""
        return limits_of(channel_asked(self.broker, request.query()))

    def set_limits(self, request: Request) -> Response:
        """Limit a channel from now on and over restarts. What is not given stays. Switches: at the end."""
        query = request.query()
        channel = channel_asked(self.broker, query)
        limits = asked_for(query, channel.limits)
        if limits.dead_letter_topic:
            self.provide_topic(channel, limits.dead_letter_topic)
        channel.set_limits(limits)
        logger.info("TOPIC(%s): channel %s has %s", channel.topic.name, channel.name, limits.text())
        if channel.directory is not None:
            # Where that fails it is done all the same, and outlives the process. The health says the rest.
            sync_channel(channel)
        return limits_of(channel)

    def provide_topic(self, channel: Channel, name: str) -> None:
        """Make the topic for dead letters, if it is missing: that it can be had shows now, not when it is needed."""
        if not is_valid_name_str(name) or is_ephemeral_str(name) or name == channel.topic.name:
            raise HttpError(400, "INVALID_DEAD_LETTER_TOPIC")
        try:
            self.broker.topic(name)
        except StorageError as error:
            logger.error("TOPIC(%s): not created - %s", name, error)
            raise HttpError(503, "EXITING") from error


def asked_for(query: Query, now: ChannelLimits) -> ChannelLimits:
    """Return the limits that a query makes of those in force. Raises: HttpError 400."""
    names = ("rate", "burst", "max_attempts", "dead_letter_topic")
    if all(query.get(name) is None for name in names):
        raise HttpError(400, "MISSING_ARG_RATE")
    limits = now
    if query.get("rate") is not None:
        limits = limits._replace(rate=parse_rate(query, "rate", "INVALID_RATE"), burst=0.0)
    if query.get("burst") is not None:
        limits = limits._replace(burst=parse_rate(query, "burst", "INVALID_BURST"))
        if not limits.rate:
            raise HttpError(400, "MISSING_ARG_RATE")
    if query.get("max_attempts") is not None:
        limits = limits._replace(max_attempts=count(query, "max_attempts", "INVALID_MAX_ATTEMPTS"))
    topic = query.get("dead_letter_topic")
    if topic is not None:
        limits = limits._replace(dead_letter_topic=topic)
        if not limits.max_attempts:
            raise HttpError(400, "MISSING_ARG_MAX_ATTEMPTS")
    if limits.max_attempts and not limits.dead_letter_topic:
        # A message is not dropped for having been tried often.
        raise HttpError(400, "INVALID_DEAD_LETTER_TOPIC" if topic is not None else "MISSING_ARG_DEAD_LETTER_TOPIC")
    return limits if limits.max_attempts else limits._replace(dead_letter_topic="")


def parse_rate(query: Query, name: str, code: str) -> float:
    """Return a parameter that is a number, perhaps with a fraction."""
    text = query.get(name) or ""
    if not _NUMBER.fullmatch(text):
        raise HttpError(400, code)
    return float(text)


def count(query: Query, name: str, code: str) -> int:
    """Return a parameter that is a number of attempts."""
    text = query.get(name) or ""
    if not _COUNT.fullmatch(text) or int(text) > ATTEMPTS_MAX:
        raise HttpError(400, code)
    return int(text)


def limits_of(channel: Channel) -> Response:
    names: dict[str, Any] = {"topic": channel.topic.name, "channel": channel.name}
    return json_response({**names, **shown(channel, channel.limits), "waiting_for": channel.why_waiting})
