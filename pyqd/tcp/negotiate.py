"""IDENTIFY: decodes and checks the body that a client sends, and computes the values that the client is granted.

Source: docs/nsq/tcp-protocol.md, "IDENTIFY fields".
"""

import dataclasses
import json
from typing import Any, Final, NoReturn

from pyqd.config.options import TOPOLOGY_AWARE_CONSUMPTION, Options
from pyqd.primitives.durations import MILLISECOND_NS, SECOND_NS
from pyqd.primitives.errors import ClientError
from pyqd.primitives.nsq_compat import NSQ_VERSION
from pyqd.primitives.peer_json import json_text

# Decoding JSON holds the loop: a quarter of a MiB takes some milliseconds, and clients send some hundred bytes.
IDENTITY_BYTES_MAX = 256 << 10
HEARTBEAT_NS_DEFAULT: Final = 30 * SECOND_NS
HEARTBEAT_NS_MIN: Final = SECOND_NS
MSG_TIMEOUT_NS_MIN: Final = SECOND_NS
OUTPUT_BUFFER_BYTES_DEFAULT: Final = 16384
OUTPUT_BUFFER_BYTES_MIN: Final = 64
SAMPLE_RATE_MAX: Final = 99
DEFLATE_LEVEL_DEFAULT: Final = 6

# Distance of a client from the daemon, by which a channel prefers consumers: pyx/broker/consumer.pyx.
ZONE_LOCAL: Final = 0
REGION_LOCAL: Final = 1
GLOBAL: Final = 2

_INT64: Final = range(-(2**63), 2**63)
_INT32: Final = range(-(2**31), 2**31)

_STRINGS: Final = ("client_id", "hostname", "user_agent", "topology_region", "topology_zone")
_BOOLS: Final = ("feature_negotiation", "tls_v1", "snappy", "deflate", "message_ids")
_INTS: Final = {
    "heartbeat_interval": _INT64,
    "output_buffer_timeout": _INT64,
    "output_buffer_size": _INT64,
    "sample_rate": _INT32,
    "msg_timeout": _INT64,
    "deflate_level": _INT64,
}


@dataclasses.dataclass(slots=True)
class ClientIdentity:
    """The body of an IDENTIFY, absent fields empty: the fields of nsqd, and `message_ids`, an extension of pyqd.

    Times in ms, sizes in bytes. message_ids: each OK names the ids of its messages.
    """

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    feature_negotiation: bool = False
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    message_ids: bool = False
    heartbeat_interval: int = 0
    output_buffer_timeout: int = 0
    output_buffer_size: int = 0
    sample_rate: int = 0
    msg_timeout: int = 0
    deflate_level: int = 0


class _Fields(list[tuple[str, Any]]):
    """The members of a JSON object in order, repeated ones too: the last one wins whatever its case."""


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _typed(key: str, value: Any) -> Any:
    """Return a field's value as its type, or raise ValueError as Go's decoder would."""
    if key in _STRINGS and isinstance(value, str):
        return value
    if key in _BOOLS and isinstance(value, bool):
        return value
    if key in _INTS and type(value) is int and value in _INTS[key]:
        return value
    raise ValueError(f"{key} has another type")


def decode_identity(body: bytes) -> ClientIdentity:
    """Decode the JSON body as Go's decoder does: keys in any case, unknown ones ignored, null for absent.

    Raises: ClientError.
    """
    if len(body) > IDENTITY_BYTES_MAX:
        raise ClientError("E_BAD_BODY", f"IDENTIFY body too big {len(body)} > {IDENTITY_BYTES_MAX}")
    identity = ClientIdentity()
    known = {*_STRINGS, *_BOOLS, *_INTS}

    try:
        decoded = json.loads(json_text(body), object_pairs_hook=_Fields, parse_constant=_refuse_constant)
        if decoded is None:
            return identity
        if not isinstance(decoded, _Fields):
            raise ValueError("not an object")
        for key, value in decoded:
            field = key.lower()
            if field in known and value is not None:
                setattr(identity, field, _typed(field, value))
    except (ValueError, RecursionError) as error:
        raise ClientError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from error
    return identity


@dataclasses.dataclass(slots=True)
class Granted:
    """Values in force for a client after its IDENTIFY. Times in ns, sizes in bytes."""

    heartbeat_ns: int
    output_buffer_timeout_ns: int
    output_buffer_size: int
    sample_rate: int
    msg_timeout_ns: int


def _invalid(noun: str, value: int) -> ClientError:
    return ClientError("E_BAD_BODY", f"IDENTIFY {noun} ({value}) is invalid")


def _heartbeat_ns(value: int, options: Options, current: Granted) -> int:
    if value in (0, -1):
        return current.heartbeat_ns if value == 0 else 0
    if HEARTBEAT_NS_MIN <= value * MILLISECOND_NS <= options.max_heartbeat_interval_ns:
        return value * MILLISECOND_NS
    raise _invalid("heartbeat interval", value)


def _buffer_timeout_ns(value: int, options: Options, current: Granted) -> int:
    if value in (0, -1):
        return current.output_buffer_timeout_ns if value == 0 else 0
    if options.min_output_buffer_timeout_ns <= value * MILLISECOND_NS <= options.max_output_buffer_timeout_ns:
        return value * MILLISECOND_NS
    raise _invalid("output buffer timeout", value)


def _buffer_size(value: int, options: Options, current: Granted) -> int:
    if value in (0, -1):
        return current.output_buffer_size if value == 0 else 1
    if OUTPUT_BUFFER_BYTES_MIN <= value <= options.max_output_buffer_size:
        return value
    raise _invalid("output buffer size", value)


def _msg_timeout_ns(value: int, options: Options, current: Granted) -> int:
    if value == 0:
        return current.msg_timeout_ns
    if MSG_TIMEOUT_NS_MIN <= value * MILLISECOND_NS <= options.max_msg_timeout_ns:
        return value * MILLISECOND_NS
    raise _invalid("msg timeout", value)


def defaults(options: Options) -> Granted:
    """Return the values in force for a client before its IDENTIFY."""
    return Granted(
        heartbeat_ns=HEARTBEAT_NS_DEFAULT,
        output_buffer_timeout_ns=options.output_buffer_timeout_ns,
        output_buffer_size=OUTPUT_BUFFER_BYTES_DEFAULT,
        sample_rate=0,
        msg_timeout_ns=options.msg_timeout_ns,
    )


def grant(identity: ClientIdentity, options: Options, current: Granted) -> Granted:
    """Check the requested values in nsqd's order, and return the granted ones; 0 keeps the current value.

    Raises: ClientError.
    """
    heartbeat_ns = _heartbeat_ns(identity.heartbeat_interval, options, current)
    buffer_timeout_ns = _buffer_timeout_ns(identity.output_buffer_timeout, options, current)
    buffer_size = _buffer_size(identity.output_buffer_size, options, current)
    if identity.output_buffer_size == -1:
        buffer_timeout_ns = 0
    if not 0 <= identity.sample_rate <= SAMPLE_RATE_MAX:
        raise _invalid("sample rate", identity.sample_rate)
    return Granted(
        heartbeat_ns=heartbeat_ns,
        output_buffer_timeout_ns=buffer_timeout_ns,
        output_buffer_size=buffer_size,
        sample_rate=identity.sample_rate,
        msg_timeout_ns=_msg_timeout_ns(identity.msg_timeout, options, current),
    )


def locality(identity: ClientIdentity, options: Options) -> int:
    """Return the distance of the client from the daemon: GLOBAL for all clients unless the experiment is enabled.

    Empty names are equal, as for nsqd. Source: docs/nsq/broker-semantics.md, "Topology-aware consumption".
    """
    if TOPOLOGY_AWARE_CONSUMPTION not in options.enable_experiment:
        return GLOBAL
    if identity.topology_zone == options.topology_zone:
        return ZONE_LOCAL
    return REGION_LOCAL if identity.topology_region == options.topology_region else GLOBAL


@dataclasses.dataclass(frozen=True, slots=True)
class Upgrades:
    """Upgrades of a connection that follow the reply to its IDENTIFY."""

    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = DEFLATE_LEVEL_DEFAULT

    def any(self) -> bool:
        return self.tls or self.snappy or self.deflate


def upgrades(identity: ClientIdentity, options: Options, *, tls_enabled: bool, upgraded: bool) -> Upgrades:
    """Return the requested upgrades that are granted: none on an upgraded connection. Raises: ClientError."""
    deflate = options.deflate and identity.deflate
    snappy = options.snappy and identity.snappy
    if deflate and snappy:
        raise ClientError("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    deflate = deflate and not upgraded
    level = identity.deflate_level if deflate and identity.deflate_level > 0 else DEFLATE_LEVEL_DEFAULT
    return Upgrades(
        tls=tls_enabled and identity.tls_v1 and not upgraded,
        snappy=snappy and not upgraded,
        deflate=deflate,
        deflate_level=min(level, options.max_deflate_level),
    )


def reply(identity: ClientIdentity, granted: Granted, upgrades: Upgrades, options: Options) -> bytes:
    """Return the answer to the IDENTIFY of a client that negotiates: the granted values as JSON."""
    answer = {
        "max_rdy_count": options.max_rdy_count,
        "version": NSQ_VERSION,
        "max_msg_timeout": options.max_msg_timeout_ns // MILLISECOND_NS,
        "msg_timeout": granted.msg_timeout_ns // MILLISECOND_NS,
        "tls_v1": upgrades.tls,
        "deflate": upgrades.deflate,
        "deflate_level": upgrades.deflate_level,
        "max_deflate_level": options.max_deflate_level,
        "snappy": upgrades.snappy,
        "sample_rate": granted.sample_rate,
        "auth_required": bool(options.auth_http_address),
        "output_buffer_size": granted.output_buffer_size,
        "output_buffer_timeout": granted.output_buffer_timeout_ns // MILLISECOND_NS,
        "topology_region": options.topology_region,
        "topology_zone": options.topology_zone,
    }
    if identity.message_ids:
        # Only clients that request the extension get the field: for all others the answer equals nsqd's to the byte.
        answer["message_ids"] = True
    return json.dumps(answer, separators=(",", ":")).encode()
