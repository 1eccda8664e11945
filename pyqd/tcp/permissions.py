"""Permissions of a client, as an auth server returns them: an identity, the permitted topics and channels, an expiry.

Patterns have RE2's syntax, as in Go. The RE2 library searches in time linear in the length of a name, so a client,
which chooses the names, cannot make a search slow.

Source: docs/nsq/tcp-protocol.md, "Authorisation"; docs/security.md.
"""

import json
import string
import time
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pyqd.primitives.durations import INT64_MAX, SECOND_NS
from pyqd.primitives.peer_json import json_text

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
# An extension of pyqd for the HTTP API; it permits no command over TCP.
ADMIN: Final = "admin"
PERMISSIONS: Final = frozenset({PUBLISH, SUBSCRIBE, ADMIN})


NAME_CHARS: Final = f"{string.ascii_letters}{string.digits}._-"
# A pattern that is found in each of these is for all names. A pattern for some names misses the empty name, the name of
# a single character, or the long one.
EVERY_NAME: Final = ("", *NAME_CHARS, NAME_CHARS)


class BadAnswer(Exception):  # noqa: N818 - names the answer of another program, not a failure here
    """Invalid answer of an auth server. str() gives the reason, which is logged and not sent to the client."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """One entry of an answer: the permissions on topics and channels whose names the patterns match."""

    topic: Any
    channels: tuple[Any, ...]
    permissions: frozenset[str]

    def allows(self, permission: str, topic: str | None, channel: str | None) -> bool:
        """Return whether the entry grants the permission. channel: empty for an operation on the topic itself.

        None stands for all topics, or for all channels.
        """
        return (
            permission in self.permissions
            and covers(self.topic, topic)
            and any(covers(pattern, channel) for pattern in self.channels)
        )


@dataclass(frozen=True, slots=True)
class Permissions:
    """Identity and permissions of a client. expires_ns: monotonic time at which they expire."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires_ns: int

    def allows(self, permission: str, topic: str | None, channel: str | None = "") -> bool:
        """Return whether any entry grants the permission. The arguments are those of an entry."""
        return any(entry.allows(permission, topic, channel) for entry in self.authorizations)

    def expired(self) -> bool:
        """Return whether the permissions have expired, so that the auth servers must be asked again."""
        return self.expires_ns < time.monotonic_ns()


class JsonMembers(list[tuple[str, Any]]):
    """Members of a JSON object in order, repeated ones too: the last one wins whatever its case."""


def covers(pattern: Any, name: str | None) -> bool:
    """Return whether a pattern is found in a name; None: in every name."""
    names = EVERY_NAME if name is None else (name,)
    return all(pattern.search(each) is not None for each in names)


def decode_permissions(body: bytes) -> Permissions:
    """Decode an auth server's answer as Go's decoder does, and check it as nsqd does. Raises: BadAnswer."""
    try:
        decoded = json.loads(json_text(body), object_pairs_hook=JsonMembers)
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
        expires_ns=min(time.monotonic_ns() + ttl_s * SECOND_NS, INT64_MAX),
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
    """Return RE2's library and its options; imported late: it takes 3 MB, and most daemons have no auth server."""
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
    if not isinstance(value, JsonMembers):
        raise BadAnswer(f"{noun} is not an object")
    return {key.lower(): member for key, member in value if member is not None}


def _items(fields: dict[str, Any], key: str) -> list[Any]:
    value = fields.get(key, [])
    if not isinstance(value, list) or isinstance(value, JsonMembers):
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
