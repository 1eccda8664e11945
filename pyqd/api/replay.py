"""GET /topic/positions and /topic/log, POST /channel/seek: re-reading a topic.

Checks come in the order of all routes below /topic and /channel: first the names, then whether they exist, then the
other parameters.

Source: docs/http.md; docs/nsq/http-api.md, "Topic and channel administration".
"""

from pyqd.api.http_params import existing_channel, number, refusing, requested_topic, topic_and_channel_name
from pyqd.api.rights import CHANNEL, CONSUME, TOPIC
from pyqd.broker import replay
from pyqd.broker.broker import Broker
from pyqd.fallback.records import FORMAT
from pyqd.hot.primitives.clock import wall
from pyqd.http.messages import OCTETS, Handler, HttpError, Request, Response, Route, json_response
from pyqd.http.query import UrlQuery
from pyqd.net.loop_driver import poll_sync, yield_to_loop
from pyqd.primitives.timestamps import parse_timestamp

RANGE_BYTES = 1 << 20
RANGE_BYTES_MAX = 4 << 20


class ReplayRoutes:
    """Routes that read a topic by position, and move channels."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def routes(self) -> list[Route]:
        positions, log, seek = map(answering_position_errors, (self.positions, self.log, self.seek))
        return [
            Route("GET", "/topic/positions", positions, right=CONSUME, topics=TOPIC),
            Route("GET", "/topic/log", log, logged=False, right=CONSUME, topics=TOPIC),
            Route("POST", "/channel/seek", seek, right=CONSUME, topics=TOPIC, channel=CHANNEL),
        ]

    def positions(self, request: Request) -> Response:
        """Return the range of readable positions of a topic, and the position at a time. Switches: yes."""
        query = request.query()
        topic = requested_topic(self.broker, query)
        time_text = query.get("time")
        place = None
        if time_text is not None:
            with refusing("INVALID_TIME"):
                place = replay.LogPlace(time_ns=parse_timestamp(time_text, wall()))
        return json_response(replay.positions(topic, place, yield_to_loop))

    def log(self, request: Request) -> Response:
        """Return records of a topic in the log's format. Switches: yes, in large answers."""
        query = request.query()
        topic = requested_topic(self.broker, query)
        place = place_of(query, "from", "INVALID_FROM", replay.EARLIEST)
        stop = replay.POSITION_MAX
        stop_text = query.get("to")
        if stop_text is not None:
            with refusing("INVALID_TO"):
                stop = replay.parse_position(stop_text)
        bytes_max = min(number(query, "max_bytes", RANGE_BYTES, 1, digits_max=18), RANGE_BYTES_MAX)
        found = replay.read_range(topic, place, stop, bytes_max, yield_to_loop)
        headers = (
            ("X-Pyqd-Format", str(FORMAT)),
            ("X-Pyqd-Node", self.broker.node_name),
            ("X-Pyqd-Created", str(topic.created_ns)),
            ("X-Pyqd-From", str(found.first)),
            ("X-Pyqd-Next", str(found.next)),
            ("X-Pyqd-End", str(found.end)),
            ("X-Pyqd-Count", str(found.records)),
        )
        return Response(200, found.data, OCTETS, headers)

    def seek(self, request: Request) -> Response:
        """Move a channel, or return the effect of a move. Switches: yes."""
        query = request.query()
        topic, name = topic_and_channel_name(self.broker, query)
        channel = existing_channel(topic, name)
        if query.get("to") is None:
            raise HttpError(400, "MISSING_ARG_TO")
        place = place_of(query, "to", "INVALID_TO")
        dry_run = query.get("dry_run")
        if dry_run not in (None, "true", "1", "false", "0"):
            raise HttpError(400, "INVALID_DRY_RUN")
        if dry_run in ("true", "1"):
            return json_response({**replay.preview(topic, channel, place, yield_to_loop), "dry_run": True})
        return json_response({**replay.move(topic, channel, place, yield_to_loop, poll_sync), "dry_run": False})


def place_of(query: UrlQuery, name: str, code: str, default: str = "") -> replay.LogPlace:
    with refusing(code):
        return replay.parse_place(query.get(name) or default, wall())


def answering_position_errors(handler: Handler) -> Handler:
    """Return a handler that answers with 404, 410 or 400 if the topic or the position does not exist (any more)."""

    def answer(request: Request) -> Response:
        try:
            return handler(request)
        except replay.TopicGone:
            raise HttpError(404, "TOPIC_NOT_FOUND") from None
        except replay.PositionGone as error:
            return json_response({"message": "POSITION_GONE", "earliest": error.earliest}, 410)
        except replay.PositionBeyondEnd as error:
            return json_response({"message": "POSITION_BEYOND_END", "next": error.next}, 400)

    return answer
