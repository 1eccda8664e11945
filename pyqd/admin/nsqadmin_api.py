"""The JSON API of nsqadmin: routes below /api, and /config.

Source: docs/nsq/admin-and-tools.md, "nsqadmin".
"""

from __future__ import annotations

import ipaddress
import json
import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from flask import Blueprint, Response, request

from pyqd.admin.access.roles import UserRole
from pyqd.admin.actions import ACTIONS, perform
from pyqd.admin.notifications import ANONYMOUS, audit_logger
from pyqd.admin.options import ADMIN
from pyqd.admin.site import Site
from pyqd.admin.stats import TopicStats, topology_order
from pyqd.admin.upstream import UpstreamError
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.loglines import set_level
from pyqd.primitives.names import is_valid_name_str

CONFIG_BODY_MAX: Final = 1 << 20
JSON_TYPE: Final = "application/json; charset=utf-8"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
# Options whose URLs may have a password.
SECRET_URLS: Final = ("graphite_url", "trace_database", "notification_http_endpoint")

ATTRIBUTE_OF: Final = {flag.config_key: flag.attribute for flag in ADMIN.flags if flag.config_key is not None}

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """Refusal of a request: a status, and the text of `{"message": text}`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


def api(site: Site) -> Blueprint:
    routes = Blueprint("nsqadmin_api", __name__)
    handlers = Handlers(site)
    for rule, methods in handlers.rules().items():
        for method, handler in methods.items():
            name = f"{method.lower()} {rule.replace('.', '_')}"
            routes.add_url_rule(rule, name.replace("/", "_"), handler, methods=[method])
    routes.register_error_handler(ApiError, lambda error: json_reply({"message": error.message}, error.status))
    routes.register_error_handler(UpstreamError, upstream_failed)
    return routes


def upstream_failed(error: UpstreamError) -> Response:
    """Return the answer if no broker or lookup daemon could be asked."""
    logger.error("%s", error)
    return json_reply({"message": f"UPSTREAM_ERROR: {error}"}, 502)


def json_reply(value: Any, status: int = 200) -> Response:
    """Return an answer with JSON as nsqadmin writes it."""
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Response(body, status, content_type=JSON_TYPE, headers={"X-NSQ-Content-Type": "nsq; version=1.0"})


def text_reply(text: str) -> Response:
    return Response(text, content_type=TEXT_TYPE, headers={"X-NSQ-Content-Type": "nsq; version=1.0"})


def warning(failures: list[str]) -> str:
    """Return the message of an answer from which some daemons are missing."""
    if not failures:
        return ""
    for failure in failures:
        logger.warning("%s", failure)
    return "WARNING: " + "\n".join(failures)


class Handlers:
    """Handlers of the API's requests."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def rules(self) -> dict[str, dict[str, Callable[..., Response]]]:
        proxied = {"/render": {"GET": self.render}} if self.site.options.proxy_graphite else {}
        return proxied | {
            "/api/topics": {"GET": self.topics, "POST": self.create},
            "/api/topics/<topic>": {"GET": self.topic, "POST": self.change, "DELETE": self.delete},
            "/api/topics/<topic>/<channel>": {
                "GET": self.channel,
                "POST": self.change,
                "DELETE": self.delete,
            },
            "/api/nodes": {"GET": self.nodes},
            "/api/nodes/<node>": {"GET": self.node, "DELETE": self.tombstone},
            "/api/counter": {"GET": self.counter},
            "/api/graphite": {"GET": self.graphite},
            "/config/<option>": {"GET": self.config, "PUT": self.change_config},
        }

    # Reading.

    def topics(self) -> Response:
        cluster = self.site.cluster
        if request.args.get("inactive") == "true":
            inactive = cluster.inactive_topics()
            shown = {
                topic: channels for topic, channels in inactive.value.items() if self.site.may(UserRole.VIEW, topic)
            }
            return json_reply({"topics": shown, "message": warning(inactive.failures)})
        found = cluster.topics()
        visible = [topic for topic in found.value if self.site.may(UserRole.VIEW, topic)]
        names = visible if visible or cluster.lookupds else None
        return json_reply({"topics": names, "message": warning(found.failures)})

    def topic(self, topic: str) -> Response:
        self.site.require(UserRole.VIEW, topic)
        stats = self.site.cluster.stats_of(topic)
        shown = TopicStats.total(topic, stats.value.topics).to_dict()
        return json_reply({**shown, "message": warning(stats.failures)})

    def channel(self, topic: str, channel: str) -> Response:
        self.site.require(UserRole.VIEW, topic)
        stats = self.site.cluster.stats_of(topic, channel, clients=True)
        found = stats.value.channel(channel)
        if found is None:
            raise ApiError(404, "CHANNEL_NOT_FOUND")
        found.clients.sort(key=topology_order)
        return json_reply({**found.to_dict(), "message": warning(stats.failures)})

    def nodes(self) -> Response:
        found = self.site.cluster.nodes()
        for node in found.value:
            node.topics = [topic for topic in node.topics if self.site.may(UserRole.VIEW, topic[0])]
        return json_reply({"nodes": [node.to_dict() for node in found.value], "message": warning(found.failures)})

    def node(self, node: str) -> Response:
        cluster = self.site.cluster
        nodes = cluster.nodes()
        producer = next((each for each in nodes.value if each.http_address == node), None)
        if producer is None:
            raise ApiError(404, "NODE_NOT_FOUND")
        stats = cluster.stats([producer], clients=True)
        topics = [topic for topic in stats.value.topics if self.site.may(UserRole.VIEW, topic.topic)]
        clients = sum(len(channel.clients) for topic in topics for channel in topic.channels)
        shown = {
            "node": node,
            "topics": [topic.to_dict() for topic in topics] or None,
            "total_messages": sum(topic.sums["message_count"] for topic in topics),
            "total_clients": clients,
        }
        return json_reply({**shown, "message": warning(nodes.failures + stats.failures)})

    def counter(self) -> Response:
        cluster = self.site.cluster
        nodes = cluster.nodes()
        stats = cluster.stats(nodes.value)
        counts = {
            f"{channel.topic}:{channel.channel}:{channel.node}": {
                "node": channel.node,
                "topic_name": channel.topic,
                "channel_name": channel.channel,
                "message_count": channel.sums["message_count"],
            }
            for topic in stats.value.topics
            if self.site.may(UserRole.VIEW, topic.topic)
            for channel in topic.channels
        }
        return json_reply({"stats": counts, "message": warning(nodes.failures + stats.failures)})

    def graphite(self) -> Response:
        self.require_all_topics()
        if request.args.get("metric") != "rate":
            raise ApiError(400, "INVALID_ARG_METRIC")
        if "target" not in request.args:
            raise ApiError(400, "INVALID_ARG_TARGET")
        options = self.site.options
        interval_s = options.statsd_interval_ns // SECOND_NS
        query = {
            "format": "json",
            "from": f"-{2 * interval_s}sec",
            "target": request.args["target"],
            "until": f"-{interval_s}sec",
        }
        try:
            path = urlsplit(options.graphite_url).path
            _status, _type, answer = self.site.ask_graphite(f"{path}/render?{urlencode(query)}")
            rate = float(json.loads(answer)[0]["datapoints"][0][0])
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            logger.error("graphite request failed - %s", error)
            raise ApiError(500, "INTERNAL_ERROR") from None
        return json_reply({"rate": "N/A" if rate < 0 else f"{rate / interval_s:.2f}"})

    def render(self) -> Response:
        self.require_all_topics()
        target = f"/render?{request.query_string.decode('latin-1')}"
        try:
            status, content_type, body = self.site.ask_graphite(target, request.remote_addr or "")
        except (OSError, ValueError) as error:
            logger.error("graphite request failed - %s", error)
            return Response(status=502)
        return Response(body, status, content_type=content_type)

    # Changing.

    def create(self) -> Response:
        body = self.body()
        topic, channel = text_in(body, "topic"), text_in(body, "channel")
        if not is_valid_name_str(topic):
            raise ApiError(400, "INVALID_TOPIC")
        if channel and not is_valid_name_str(channel):
            raise ApiError(400, "INVALID_CHANNEL")
        self.site.require(UserRole.ADMIN, topic)
        return self.done("create", topic, channel)

    def delete(self, topic: str, channel: str = "") -> Response:
        self.site.require(UserRole.ADMIN, topic)
        return self.done("delete", topic, channel)

    def change(self, topic: str, channel: str = "") -> Response:
        self.site.require(UserRole.OPERATE, topic)
        action = self.body().get("action")
        if action not in ACTIONS:
            raise ApiError(400, "INVALID_ACTION")
        return self.done(action, topic, channel)

    def tombstone(self, node: str) -> Response:
        topic = text_in(self.body("INVALID_BODY"), "topic", "INVALID_BODY")
        if not is_valid_name_str(topic):
            raise ApiError(400, "INVALID_TOPIC")
        self.site.require(UserRole.ADMIN, topic)
        if not self.site.is_broker(node):
            raise ApiError(404, "NODE_NOT_FOUND")
        return self.done("tombstone", topic, node=node)

    def done(self, action: str, topic: str, channel: str = "", node: str = "") -> Response:
        return json_reply({"message": warning(perform(self.site, action, topic, channel, node))})

    # Options.

    def config(self, option: str) -> Response:
        self.check_config_access()
        try:
            value = getattr(self.site.options, ATTRIBUTE_OF[option])
        except KeyError:
            raise ApiError(400, "INVALID_OPTION") from None
        if isinstance(value, Enum) and isinstance(value.value, str):
            value = value.value
        if option in SECRET_URLS:
            value = without_password(value)
        return text_reply(value) if isinstance(value, str) else json_reply(value)

    def change_config(self, option: str) -> Response:
        self.check_config_access()
        body = request.get_data() if (request.content_length or 0) <= CONFIG_BODY_MAX else b""
        if not 0 < len(body) <= CONFIG_BODY_MAX:
            raise ApiError(413, "INVALID_VALUE")
        try:
            if option == "nsqlookupd_http_addresses":
                self.site.change_lookupds(addresses_of(body))
            elif option == "log_level":
                level = type(self.site.options.log_level)[body.decode().upper()]
                self.site.change_options(log_level=level)
                set_level(level)
            else:
                raise ApiError(400, "INVALID_OPTION")
        except (ValueError, KeyError):
            raise ApiError(400, "INVALID_VALUE") from None
        user = self.site.caller()
        value = body.decode(errors="replace")
        audit_logger.info("set option %s to %s by %s from %s", option, value, user.user or ANONYMOUS, user.remote_ip)
        return self.config(option)

    def check_config_access(self) -> None:
        """Refuse users who are no administrators of all topics, and addresses out of --allow-config-from-cidr."""
        self.site.require(UserRole.ADMIN)
        network = self.site.options.allow_config_from_cidr
        if not network:
            return
        try:
            address = ipaddress.ip_address(request.remote_addr or "")
        except ValueError:
            raise ApiError(400, "INVALID_REMOTE_ADDR") from None
        if address not in ipaddress.ip_network(network, strict=False):
            raise ApiError(403, "FORBIDDEN")

    def require_all_topics(self) -> None:
        """Refuse a user of some topics only: Graphite knows all of them."""
        if not self.site.sees_all():
            raise ApiError(403, "FORBIDDEN")

    def body(self, refusal: str = "") -> dict[str, Any]:
        """Return the JSON object of the current request. refusal: replaces the parser's text."""
        data = request.get_data()
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, refusal or (f"invalid JSON: {error}" if data.strip() else "EOF")) from None
        if not isinstance(found, dict):
            raise ApiError(400, refusal or "invalid JSON: an object is expected")
        return found


def text_in(body: Mapping[str, Any], name: str, refusal: str = "") -> str:
    """Return a text of a body, empty if it is missing. refusal: replaces the reason. Raises: ApiError."""
    found = body.get(name)
    if found is not None and not isinstance(found, str):
        raise ApiError(400, refusal or f"invalid JSON: {name} must be a string")
    return found or ""


def without_password(url: str) -> str:
    """Return a URL whose password, if it has one, is hidden."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user.partition(':')[0]}:***@{host}").geturl()


def addresses_of(body: bytes) -> tuple[str, ...]:
    """Return the strings of a JSON array. Raises: ValueError."""
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ValueError("not an array of strings")
    # An escape in JSON may be half of a character, which no answer and no request can contain.
    for item in found:
        item.encode()
    return tuple(found)
