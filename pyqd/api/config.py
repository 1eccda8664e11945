"""GET and PUT /config/:opt. Source: docs/nsq/http-api.md, "/config/:opt"."""

import enum
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pyqd.api.rights import ADMIN
from pyqd.config.configfile import shown
from pyqd.config.live_options import FLAG_OF, LiveOptions
from pyqd.http.messages import HttpError, Request, Response, Route, json_response, text_response
from pyqd.primitives.goflags import STRING

logger = logging.getLogger(__name__)


class ConfigRoutes:
    """Routes of the options. resolved: by key, the values that replace an option's once the daemon runs."""

    def __init__(self, live: LiveOptions, resolved: Mapping[str, Callable[[], Any]]) -> None:
        self.live = live
        self.resolved = resolved

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/config/:opt", self.show, right=ADMIN),
            Route("PUT", "/config/:opt", self.change, self.body_size_max, right=ADMIN),
        ]

    def body_size_max(self) -> int:
        return self.live.broker.options.max_msg_size

    def show(self, request: Request) -> Response:
        return self.value(request.match.argument)

    def change(self, request: Request) -> Response:
        key = request.match.argument
        if request.body_too_big or not request.body:
            raise HttpError(413, "INVALID_VALUE")
        try:
            self.live.change(key, request.body)
        except KeyError:
            raise HttpError(400, "INVALID_OPTION") from None
        except ValueError as error:
            logger.info("HTTP: %s is unchanged: %s", key, error)
            raise HttpError(400, "INVALID_VALUE") from None
        logger.info("HTTP: %s is now %s", key, shown(FLAG_OF[key], self.live.value_of(key)))
        return self.value(key)

    def value(self, key: str) -> Response:
        """Return strings as they are and all other values as JSON."""
        if key not in FLAG_OF:
            raise HttpError(400, "INVALID_OPTION")
        value = self.resolved[key]() if key in self.resolved else self.live.value_of(key)
        if FLAG_OF[key].type is STRING and not FLAG_OF[key].repeatable:
            return text_response(value) if value else Response(200)
        if isinstance(value, enum.Enum) and isinstance(value.value, str):
            return text_response(value.value)
        if isinstance(value, tuple):
            # Go's format of whole numbers.
            value = [int(item) if isinstance(item, float) and item.is_integer() else item for item in value]
        return json_response(value)
