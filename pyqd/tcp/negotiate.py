"""IDENTIFY: decodes and checks the body that a client sends, and computes the values that the client is granted.

Source: docs/nsq/tcp-protocol.md, "IDENTIFY fields".
"""

import dataclasses
import json
from typing import Any, Final, NoReturn

from pyqd.config.options import TOPOLOGY_AWARE_CONSUMPTION, Options
from pyqd.hot.broker.consumer import ELSEWHERE, IN_REGION, IN_ZONE
from pyqd.primitives.durations import MILLISECOND_NS, SECOND_NS
from pyqd.primitives.errors import CommandError
from pyqd.primitives.nsq_compat import NSQ_VERSION
from pyqd.primitives.peer_json import json_text
from pyqd.tcp.permissions import JsonMembers

# Decoding JSON holds the loop: a quarter of a MiB takes some milliseconds, and clients send some hundred bytes.
IDENTITY_BYTES_MAX = 256 << 10
HEARTBEAT_NS_DEFAULT: Final = 30 * SECOND_NS
HEARTBEAT_NS_MIN: Final = SECOND_NS
MSG_TIMEOUT_NS_MIN: Final = SECOND_NS
OUTPUT_BUFFER_BYTES_DEFAULT: Final = 16384
OUTPUT_BUFFER_BYTES_MIN: Final = 64
SAMPLE_RATE_MAX: Final = 99
DEFLATE_LEVEL_DEFAULT: Final = 6

_INT64: Final = range(-(2**63), 2**63)
_INT32: Final = range(-(2**31), 2**31)


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


_KINDS: Final = {field.name: field.type for field in dataclasses.fields(ClientIdentity)}


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _typed(key: str, value: Any) -> Any:
    """Return a field's value as its type, or raise ValueError as Go's decoder would."""
    # Only this integer of nsqd's has 32 bits.
    integers = _INT32 if key == "sample_rate" else _INT64
    if type(value) is _KINDS[key] and (type(value) is not int or value in integers):
        return value
    raise ValueError(f"{key} has another type")


def decode_identity(body: bytes) -> ClientIdentity:
    """Decode the JSON body as Go's decoder does: keys in any case, unknown ones ignored, null for absent.

    Raises: CommandError.
    """
    if len(body) > IDENTITY_BYTES_MAX:
        raise CommandError("E_BAD_BODY", f"IDENTIFY body too big {len(body)} > {IDENTITY_BYTES_MAX}")
    identity = ClientIdentity()
    try:
        decoded = json.loads(json_text(body), object_pairs_hook=JsonMembers, parse_constant=_refuse_constant)
        if decoded is None:
            return identity
        if not isinstance(decoded, JsonMembers):
            raise ValueError("not an object")
        for key, value in decoded:
            field = key.lower()
            if field in _KINDS and value is not None:
                setattr(identity, field, _typed(field, value))
    except (ValueError, RecursionError) as error:
        raise CommandError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from error
    return identity


@dataclasses.dataclass(slots=True)
class Granted:
    """Values in force for a client after its IDENTIFY. Times in ns, sizes in bytes."""

    heartbeat_ns: int
    output_buffer_timeout_ns: int
    output_buffer_size: int
    sample_rate: int
    msg_timeout_ns: int


def _granted(
    noun: str, value: int, current: int, least: int, most: int, *, unit: int = MILLISECOND_NS, off: int | None = 0
) -> int:
    """Return a requested value times its unit, between least and most. 0: the current one. -1: `off`, if there is one.

    Raises: CommandError.
    """
    if value == 0:
        return current
    if value == -1 and off is not None:
        return off
    if least <= value * unit <= most:
        return value * unit
    raise CommandError("E_BAD_BODY", f"IDENTIFY {noun} ({value}) is invalid")


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

    Raises: CommandError.
    """
    heartbeat_ns = _granted(
        "heartbeat interval",
        identity.heartbeat_interval,
        current.heartbeat_ns,
        HEARTBEAT_NS_MIN,
        options.max_heartbeat_interval_ns,
    )
    timeout_ns = _granted(
        "output buffer timeout",
        identity.output_buffer_timeout,
        current.output_buffer_timeout_ns,
        options.min_output_buffer_timeout_ns,
        options.max_output_buffer_timeout_ns,
    )
    size = _granted(
        "output buffer size",
        identity.output_buffer_size,
        current.output_buffer_size,
        OUTPUT_BUFFER_BYTES_MIN,
        options.max_output_buffer_size,
        unit=1,
        off=1,
    )
    sample_rate = _granted("sample rate", identity.sample_rate, 0, 1, SAMPLE_RATE_MAX, unit=1, off=None)
    msg_timeout_ns = _granted(
        "msg timeout",
        identity.msg_timeout,
        current.msg_timeout_ns,
        MSG_TIMEOUT_NS_MIN,
        options.max_msg_timeout_ns,
        off=None,
    )
    is_unbuffered = identity.output_buffer_size == -1
    return Granted(heartbeat_ns, 0 if is_unbuffered else timeout_ns, size, sample_rate, msg_timeout_ns)


def locality(identity: ClientIdentity, options: Options) -> int:
    """Return the distance of the client from the daemon: ELSEWHERE for all clients unless the experiment is enabled.

    Empty names are equal, as for nsqd. Source: docs/nsq/broker-semantics.md, "Topology-aware consumption".
    """
    if TOPOLOGY_AWARE_CONSUMPTION not in options.enable_experiment:
        return ELSEWHERE
    if identity.topology_zone == options.topology_zone:
        return IN_ZONE
    return IN_REGION if identity.topology_region == options.topology_region else ELSEWHERE


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
    """Return the requested upgrades that are granted: none on an upgraded connection. Raises: CommandError."""
    deflate = options.deflate and identity.deflate
    snappy = options.snappy and identity.snappy
    if deflate and snappy:
        raise CommandError("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
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
