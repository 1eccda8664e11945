"""Topic and channel parameters of a query. The order of the checks is part of the interface.

Source: docs/nsq/http-api.md, "Topic and channel administration".
"""

import contextlib
from collections.abc import Iterator

from pyqd.broker.broker import Broker
from pyqd.broker.channel import Channel
from pyqd.broker.topic import Topic
from pyqd.http.messages import HttpError
from pyqd.http.query import UrlQuery
from pyqd.primitives.durations import INT64_MAX
from pyqd.primitives.names import is_valid_name_str

# Value of a parameter that stands for the daemon's flag.
FLAG = "default"


@contextlib.contextmanager
def refusing(code: str) -> Iterator[None]:
    """Answer a ValueError of the block with the status 400. Raises: HttpError."""
    try:
        yield
    except ValueError:
        raise HttpError(400, code) from None


def number(
    query: UrlQuery, name: str, default: int, least: int = 0, most: int = INT64_MAX, *, digits_max: int = 19
) -> int:
    """Return a parameter that is a whole number, or its default. Raises: HttpError 400 INVALID_<name>."""
    text = query.get(name)
    if text is None:
        return default
    is_number = text.isascii() and text.isdigit() and len(text) <= digits_max
    if not is_number or not least <= int(text) <= most:
        raise HttpError(400, f"INVALID_{name.upper()}")
    return int(text)


def topic_name(query: UrlQuery, code: str = "INVALID_TOPIC") -> str:
    """Return the valid topic name in a query; the topic may not exist. code: for an invalid name. Raises: HttpError
    400.
    """
    name = query.get("topic")
    if name is None:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    if not is_valid_name_str(name):
        raise HttpError(400, code)
    return name


def requested_topic(broker: Broker, query: UrlQuery) -> Topic:
    """Return the topic that a query names, after checking the name. Raises: HttpError 400, 404."""
    return existing(broker, topic_name(query))


def topic_of_any_name(broker: Broker, query: UrlQuery) -> Topic:
    """Return the topic that a query names; an invalid name counts as a missing topic. Raises: HttpError 400, 404."""
    name = query.get("topic")
    if name is None:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    return existing(broker, name)


def existing(broker: Broker, name: str) -> Topic:
    topic = broker.topics.get(name)
    if topic is None or topic.exiting:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic


def requested_channel(broker: Broker, query: UrlQuery) -> Channel:
    """Return the channel that a query names. Raises: HttpError 400, 404."""
    return existing_channel(*topic_and_channel_name(broker, query))


def requested_topic_and_channel(broker: Broker, query: UrlQuery) -> tuple[Topic, Channel | None]:
    """Return the topic that a query names, and its channel or None. Raises: HttpError 400, 404."""
    if query.get("channel") is None:
        return existing(broker, topic_name(query, "INVALID_ARG_TOPIC")), None
    topic, name = topic_and_channel_name(broker, query)
    return topic, existing_channel(topic, name)


def existing_channel(topic: Topic, name: str) -> Channel:
    channel = topic.channels_by_name.get(name)
    if channel is None or channel.exiting:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return channel


def topic_and_channel_name(broker: Broker, query: UrlQuery) -> tuple[Topic, str]:
    """Return a query's topic and its valid channel name; the channel may not exist. Raises: HttpError 400, 404."""
    name_of_topic = topic_name(query, "INVALID_ARG_TOPIC")
    name = query.get("channel")
    if name is None:
        raise HttpError(400, "MISSING_ARG_CHANNEL")
    if not is_valid_name_str(name):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return existing(broker, name_of_topic), name
