"""GET /trace/log: events of traced messages. GET and POST /topic/trace: the trace of a topic, changed at run time.

Source: docs/trace.md.
"""

import logging
import time
from typing import Final

import gevent
from gevent.event import Event

from pyqd.api.http_params import FLAG, number, refusing, requested_topic
from pyqd.api.rights import ADMIN, CONSUME, STATUS, TOPIC
from pyqd.broker.broker import Broker
from pyqd.broker.topic import Topic
from pyqd.broker.tracing import BlockPage, TraceSetting
from pyqd.config.options import TRACE_BODY_BYTES_MAX, parse_rate
from pyqd.fallback.records import FORMAT
from pyqd.http.messages import OCTETS, HttpError, Request, Response, Route, json_response
from pyqd.net.loop_driver import yield_to_loop

TRACE_ANSWER_BYTES: Final = 1 << 20
TRACE_ANSWER_BYTES_MAX: Final = 4 << 20
WAIT_MS_MAX: Final = 60_000
# A reader that waits gets the events of so long at once, and not a block for each.
LINGER_S: Final = 0.05
MS_PER_S: Final = 1000

logger = logging.getLogger(__name__)


class TraceRoutes:
    """Routes of the trace."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/trace/log", self.log, logged=False, right=CONSUME),
            Route("GET", "/topic/trace", self.trace, right=STATUS),
            Route("POST", "/topic/trace", self.set_trace, right=ADMIN, topics=TOPIC),
        ]

    def log(self, request: Request) -> Response:
        """Return whole blocks of events from a position on. Switches: yes, up to `wait_ms` at the end of the log."""
        query = request.query()
        position = number(query, "position", 0)
        bytes_max = number(query, "max_bytes", TRACE_ANSWER_BYTES)
        wait_ms = number(query, "wait_ms", 0)
        if bytes_max == 0:
            raise HttpError(400, "INVALID_MAX_BYTES")
        if wait_ms:
            self.wait_for_events(position, min(wait_ms, WAIT_MS_MAX) / MS_PER_S)
        page = self.broker.tracing.read(position, min(bytes_max, TRACE_ANSWER_BYTES_MAX), yield_to_loop)
        return self.page(page)

    def wait_for_events(self, position: int, wait_s: float) -> None:
        """Wait until there are events from a position on, and for those that follow at once. Switches: yes."""
        tracing = self.broker.tracing
        end_s = time.monotonic() + wait_s
        while not tracing.has_events(position):
            begun = Event()
            tracing.waiting.append(begun.set)
            try:
                if not begun.wait(max(0.0, end_s - time.monotonic())):
                    return
            finally:
                tracing.waiting.remove(begun.set)
        log = tracing.log
        if log is not None and position >= log.sealed_position:
            gevent.sleep(min(LINGER_S, wait_s))

    def page(self, page: BlockPage) -> Response:
        log = self.broker.tracing.log
        headers = (
            ("X-Pyqd-Format", str(FORMAT)),
            ("X-Pyqd-Node", self.broker.node_name),
            ("X-Pyqd-Position", str(page.first)),
            ("X-Pyqd-Next", str(page.next)),
            ("X-Pyqd-Oldest", str(page.oldest)),
            ("X-Pyqd-End", str(page.next if log is None else log.next_position)),
        )
        return Response(200, page.data, OCTETS, headers)

    def trace(self, request: Request) -> Response:
        return self.trace_of(requested_topic(self.broker, request.query()))

    def set_trace(self, request: Request) -> Response:
        """Set the trace of a topic, stored over restarts."""
        query = request.query()
        topic = requested_topic(self.broker, query)
        if query.get("rate") is None:
            raise HttpError(400, "MISSING_ARG_RATE")
        body_bytes = number(query, "body_bytes", 0, most=TRACE_BODY_BYTES_MAX)
        setting = None
        if query.get("rate") != FLAG:
            with refusing("INVALID_RATE"):
                setting = TraceSetting(parse_rate(query.get("rate") or ""), body_bytes)
        self.broker.tracing.set_own(topic, setting)
        logger.info("TOPIC(%s): trace is %s", topic.name, self.broker.tracing.setting_of(topic))
        return self.trace_of(topic)

    def trace_of(self, topic: Topic) -> Response:
        tracing = self.broker.tracing
        setting = tracing.setting_of(topic)
        return json_response(
            {
                "topic": topic.name,
                "traced": topic.trace is not None,
                "rate": 0 if setting is None else round(setting.rate, 9),
                "body_bytes": 0 if setting is None else setting.body_bytes,
                "own": topic.own_trace is not None,
            }
        )
