"""What an auth server answers: who a client is, and what it may do with which topics and channels, until when.

Patterns are in RE2's syntax, which is Go's, and searched for by its library: in time that grows with the length of a
name alone, as it is the client that chooses the names.

Source: docs/nsq/tcp-protocol.md, "Authorisation"; docs/security.md.
"""

import json
import time
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
# One of ours, for the HTTP API; over TCP it allows nothing.
ADMIN: Final = "admin"
PERMISSIONS: Final = frozenset({PUBLISH, SUBSCRIBE, ADMIN})

NS_PER_S: Final = 1_000_000_000
INT64_MAX: Final = 2**63 - 1


class BadAnswer(Exception):  # noqa: N818 - what came, not what went wrong here
    """What an auth server said is of no use; str() of it is why, for the log alone."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """One entry: what is permitted on topics and channels that the patterns are found in."""

    topic: Any
    channels: tuple[Any, ...]
    permissions: frozenset[str]

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        """Return whether it permits this. channel: empty where a topic as a whole is meant."""
        return (
            permission in self.permissions
            and self.topic.search(topic) is not None
            and any(pattern.search(channel) is not None for pattern in self.channels)
        )


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a client may do. expires_ns: monotonic."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires_ns: int

    def allows(self, permission: str, topic: str, channel: str = "") -> bool:
        """Return whether any entry permits this."""
        return any(entry.allows(permission, topic, channel) for entry in self.authorizations)

    def expired(self) -> bool:
        """Return whether they are to be asked for again."""
        return self.expires_ns < time.monotonic_ns()


class _Members(list[tuple[str, Any]]):
    """The members of a JSON object in order."""


def decode_permissions(body: bytes) -> Permissions:
    """Decode an auth server's answer as Go's decoder does, and check it as nsqd does. Raises: BadAnswer."""
    try:
        decoded = json.loads(body.decode("utf-8", "replace"), object_pairs_hook=_Members)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"the answer is not JSON: {error}") from error
    fields = _fields(decoded, "the answer")
    entries = tuple(_authorization(entry) for entry in _items(fields, "authorizations"))
    ttl_s = fields.get("ttl", 0)
    if type(ttl_s) is not int or ttl_s > INT64_MAX:
        raise BadAnswer("ttl is not an integer")
    if ttl_s <= 0:
        raise BadAnswer(f"invalid TTL {ttl_s} (must be >0)")
    return Permissions(
        identity=_text(fields, "identity"),
        identity_url=_text(fields, "identity_url"),
        authorizations=entries,
        expires_ns=min(time.monotonic_ns() + ttl_s * NS_PER_S, INT64_MAX),
    )


def _authorization(entry: Any) -> Authorization:
    fields = _fields(entry, "an authorization")
    permissions = [_string(item, "a permission") for item in _items(fields, "permissions")]
    for permission in permissions:
        if permission not in PERMISSIONS:
            raise BadAnswer(f"unknown permission {permission}")
    topic = _pattern(_text(fields, "topic"), "topic")
    channels = tuple(_pattern(_string(item, "a channel"), "channel") for item in _items(fields, "channels"))
    return Authorization(topic, channels, frozenset(permissions))


@cache
def _engine() -> tuple[Any, Any]:
    """Return RE2's library and its options; imported late, as it takes 3 MB that most daemons have no use for."""
    import re2

    options = re2.Options()
    options.log_errors = False
    return re2, options


def _pattern(text: str, noun: str) -> Any:
    engine, options = _engine()
    try:
        return engine.compile(text, options)
    except engine.error as error:
        raise BadAnswer(f'unable to compile {noun} "{text}" {error}') from error


def _fields(value: Any, noun: str) -> dict[str, Any]:
    """Return an object's members, keys in lower case; null is an empty object, and null members are absent."""
    if value is None:
        return {}
    if not isinstance(value, _Members):
        raise BadAnswer(f"{noun} is not an object")
    return {key.lower(): member for key, member in value if member is not None}


def _items(fields: dict[str, Any], key: str) -> list[Any]:
    value = fields.get(key, [])
    if not isinstance(value, list) or isinstance(value, _Members):
        raise BadAnswer(f"{key} is not an array")
    return value


def _text(fields: dict[str, Any], key: str) -> str:
    return _string(fields.get(key), key)


def _string(value: Any, noun: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadAnswer(f"{noun} is not a string")
    return value
