"""A client that reads a daemon as NSQ's nsqadmin does: the same requests, and Go's rules for decoding JSON.

Go decodes into structures with typed fields: a number with a fraction is no int64, a string no number; null leaves the
zero value; keys that no field has are passed over. A single value of the wrong type makes nsqadmin give the node up.
"""

from __future__ import annotations

import re
from typing import Any

from tests.support.server import Daemon

INT64_MAX = (1 << 63) - 1
VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")

INFO = {
    "version": str,
    "broadcast_address": str,
    "hostname": str,
    "http_port": int,
    "tcp_port": int,
    "topology_zone": str,
    "topology_region": str,
}
LATENCY = {"count": int, "percentiles": [{"*": float}], "topic": str, "channel": str, "host": str}
CLIENT = {
    "node": str,
    "remote_address": str,
    "version": str,
    "client_id": str,
    "hostname": str,
    "user_agent": str,
    "connect_ts": int,
    "connected": int,
    "in_flight_count": int,
    "ready_count": int,
    "finish_count": int,
    "requeue_count": int,
    "message_count": int,
    "sample_rate": int,
    "deflate": bool,
    "snappy": bool,
    "authed": bool,
    "auth_identity": str,
    "auth_identity_url": str,
    "topology_region": str,
    "topology_zone": str,
    "tls": bool,
    "tls_cipher_suite": str,
    "tls_version": str,
    "tls_negotiated_protocol": str,
    "tls_negotiated_protocol_is_mutual": bool,
}
COUNTS = {
    "node": str,
    "hostname": str,
    "topic_name": str,
    "depth": int,
    "memory_depth": int,
    "backend_depth": int,
    "message_count": int,
    "delivery_msg_count": int,
    "zone_local_msg_count": int,
    "region_local_msg_count": int,
    "global_msg_count": int,
    "paused": bool,
    "e2e_processing_latency": LATENCY,
}
CHANNEL = {
    **COUNTS,
    "channel_name": str,
    "in_flight_count": int,
    "deferred_count": int,
    "requeue_count": int,
    "timeout_count": int,
    "client_count": int,
    "clients": [CLIENT],
}
STATS = {"topics": [{**COUNTS, "channels": [CHANNEL]}]}


def decode(schema: Any, value: Any, where: str = "") -> Any:
    """Return value as Go decodes it into the schema. Raises: AssertionError for a value of the wrong type.

    schema: a type, a list of one schema, or a dictionary of schemas by key ("*": a map with values of that schema).
    """
    if value is None:
        return {} if isinstance(schema, dict) else [] if isinstance(schema, list) else schema()
    if isinstance(schema, list):
        assert isinstance(value, list), f"{where}: {value!r} is no array"
        return [decode(schema[0], item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(schema, dict):
        assert isinstance(value, dict), f"{where}: {value!r} is no object"
        if "*" in schema:
            return {key: decode(schema["*"], item, f"{where}.{key}") for key, item in value.items()}
        return {key: decode(schema[key], item, f"{where}.{key}") for key, item in value.items() if key in schema}
    if schema is float:
        assert type(value) in (int, float), f"{where}: {value!r} is no number"
        return float(value)
    assert type(value) is schema, f"{where}: {value!r} is no {schema.__name__}"
    assert schema is not int or -INT64_MAX - 1 <= value <= INT64_MAX, f"{where}: {value} is no int64"
    return value


class Admin:
    """nsqadmin's requests to one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def get(self, schema: Any, path: str, **query: str) -> Any:
        reply = self.daemon.http("GET", path, None, **query)
        assert reply.status == 200, reply
        # Without it nsqadmin takes the body for an envelope of old.
        assert reply.headers["x-nsq-content-type"] == "nsq; version=1.0"
        return decode(schema, reply.json(), path)

    def post(self, path: str, **query: str) -> None:
        assert self.daemon.http("POST", path, None, **query).status == 200

    def node(self) -> dict[str, Any]:
        info: dict[str, Any] = self.get(INFO, "/info")
        assert VERSION.fullmatch(info["version"]), "nsqadmin takes this for a node of version 0"
        return info

    def stats(self, topic: str = "", channel: str = "", *, clients: bool = True) -> list[dict[str, Any]]:
        """Return the topics of /stats, requested as nsqadmin does."""
        query = {"format": "json"}
        if topic:
            query["topic"] = topic
            if channel:
                query["channel"] = channel
        if not clients:
            query["include_clients"] = "false"
        topics: list[dict[str, Any]] = self.get(STATS, "/stats", **query)["topics"]
        return topics
