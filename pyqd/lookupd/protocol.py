"""Protocol between brokers and a lookup daemon, without I/O: bytes in, bytes out.

    conversation   magic "  V1", then commands; each has one answer
    command        line up to LF; IDENTIFY is followed by an int32 size and JSON
    answer         int32 size, data: "OK", JSON, or an error after which the connection closes

Deviations from nsqlookupd, which reads a line of any length and ends with a panic at a negative size: lines have up to
LINE_BYTES_MAX and bodies up to BODY_BYTES_MAX bytes.

Source: docs/nsq/lookupd.md, "TCP protocol".
"""

import functools
import json
import logging
import struct
import time
from collections.abc import Callable
from typing import Any, Final

from pyqd.lookupd.registry import Peer, RegisteredBroker, Registry
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import CommandError
from pyqd.primitives.goquote import go_quote, go_quote_str
from pyqd.primitives.names import is_valid_name_str
from pyqd.primitives.peer_json import json_text

MAGIC: Final = b"  V1"
# Names have up to 64 bytes; the longest command is UNREGISTER with two of them.
LINE_BYTES_MAX: Final = 4096
# A broker sends some 200 bytes. Thousands of connections may hold such a body that is not complete.
BODY_BYTES_MAX: Final = 1 << 16
NAMES_KNOWN_MAX: Final = 10_000
INT64_END: Final = 1 << 63
# Registrations that came together and have a log line each; more of them share one. A broker that connects sends all
# of its topics and channels, and a line takes as long as a registration.
LOGGED_EACH_MAX: Final = 16

_SIZE = struct.Struct(">i")

logger = logging.getLogger(__name__)


# Brokers of a cluster register the same names; the pattern takes longer than everything else about a REGISTER.
is_valid_name = functools.lru_cache(NAMES_KNOWN_MAX)(is_valid_name_str)


def framed(data: bytes) -> bytes:
    """Return an answer as it is sent."""
    return _SIZE.pack(len(data)) + data


OK: Final = framed(b"OK")


class LookupSession:
    """Conversation with one broker.

    remote: its address, which is the id of the producer. info: returns the reply to IDENTIFY. closing: the
    connection is to be closed once the answers were sent.
    """

    def __init__(self, registry: Registry, remote: str, info: Callable[[], dict[str, Any]]) -> None:
        self.remote = remote
        self.closing = False
        self.producer: RegisteredBroker | None = None
        self._registry = registry
        self._info = info
        self._unread = b""
        self._has_magic = False
        # Registrations that have no log line yet: topic, and channel or "".
        self._new: list[tuple[str, str]] = []
        self._commands: dict[str, Callable[[list[str]], bytes]] = {
            "PING": self._ping,
            "REGISTER": self._register,
            "UNREGISTER": self._unregister,
        }

    def receive(self, data: bytes) -> bytes:
        """Handle received bytes of the broker. Returns: the answers to send, empty if there are none yet."""
        if self.closing:
            return b""
        if self._unread:
            data = self._unread + data
        answers: list[bytes] = []
        try:
            try:
                at = self._run(data, answers)
            finally:
                self._log_new()
            self._unread = data[at:]
        except CommandError as error:
            cause = f" - {error.__cause__}" if error.__cause__ is not None else ""
            logger.error("[%s] - %s%s", self.remote, error, cause)
            answers.append(framed(error.frame()))
            self.closing = True
            self._unread = b""
        return b"".join(answers)

    def end(self) -> None:
        """End the registrations: the connection has closed."""
        self.closing = True
        if self.producer is not None:
            self._registry.remove(self.producer)
            self.producer = None
            logger.info("DB: client(%s) REMOVED", self.remote)

    def _run(self, data: bytes, answers: list[bytes]) -> int:
        """Run all complete commands, and append their answers. Returns: where the first incomplete one begins."""
        at = 0
        if not self._has_magic:
            if len(data) < len(MAGIC):
                return 0
            if not data.startswith(MAGIC):
                cause = ValueError(f"magic {go_quote(data[: len(MAGIC)]).decode()}")
                raise CommandError("E_BAD_PROTOCOL") from cause
            self._has_magic = True
            at = len(MAGIC)
        while True:
            end = data.find(b"\n", at, at + LINE_BYTES_MAX + 1)
            if end < 0:
                if len(data) - at > LINE_BYTES_MAX:
                    raise CommandError("E_INVALID", f"line of more than {LINE_BYTES_MAX} bytes")
                return at
            line = data[at:end]
            if line.lstrip().startswith(b"IDENTIFY"):
                body_end = self._identify(data, end + 1, answers) if words_of(line)[0] == "IDENTIFY" else 0
                if body_end < 0:
                    return at
                if body_end:
                    at = body_end
                    continue
            answers.append(self._execute(line))
            at = end + 1

    def _execute(self, line: bytes) -> bytes:
        """Run a command without a body. Returns: its answer."""
        words = words_of(line)
        command = self._commands.get(words[0])
        if command is None:
            raise CommandError("E_INVALID", f"invalid command {words[0]}")
        return command(words)

    def _ping(self, _words: list[str]) -> bytes:
        if self.producer is not None:
            now_ns = time.monotonic_ns()
            since_s = (now_ns - self.producer.last_update_ns) / SECOND_NS
            logger.info("CLIENT(%s): pinged (last ping %.1fs)", self.remote, since_s)
            self._registry.ping(self.producer, now_ns)
        return OK

    def _identify(self, data: bytes, at: int, answers: list[bytes]) -> int:
        """Run IDENTIFY. at: of the size, behind the line. Returns: the end of the body; -1 if it has not come yet."""
        if self.producer is not None:
            raise CommandError("E_INVALID", "cannot IDENTIFY again")
        if len(data) < at + _SIZE.size:
            return -1
        (size,) = _SIZE.unpack_from(data, at)
        if not 0 <= size <= BODY_BYTES_MAX:
            raise CommandError("E_BAD_BODY", f"IDENTIFY invalid body size {size}, 0 to {BODY_BYTES_MAX} are allowed")
        at += _SIZE.size
        if len(data) < at + size:
            return -1
        body = data[at : at + size]
        peer = parse_peer(body, self.remote)
        self.producer = self._registry.add(peer, time.monotonic_ns())
        logger.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self.remote,
            peer.broadcast_address,
            peer.tcp_port,
            peer.http_port,
            peer.version,
        )
        logger.info("DB: client(%s) REGISTER category:client key: subkey:", self.remote)
        answers.append(framed(json.dumps(self._info(), separators=(",", ":"), sort_keys=True).encode()))
        return int(at + size)

    def _names(self, words: list[str]) -> tuple[RegisteredBroker, str, str]:
        """Return the producer, the topic and the channel, which may be empty, of REGISTER or UNREGISTER."""
        if self.producer is None:
            raise CommandError("E_INVALID", "client must IDENTIFY")
        if len(words) == 1:
            raise CommandError("E_INVALID", f"{words[0]} insufficient number of params")
        topic = words[1]
        channel = words[2] if len(words) > 2 else ""
        if not is_valid_name(topic):
            raise CommandError("E_BAD_TOPIC", f"{words[0]} topic name '{topic}' is not valid")
        if channel and not is_valid_name(channel):
            raise CommandError("E_BAD_CHANNEL", f"{words[0]} channel name '{channel}' is not valid")
        return self.producer, topic, channel

    def _register(self, words: list[str]) -> bytes:
        producer, topic, channel = self._names(words)
        new_topic, new_channel = self._registry.register(producer, topic, channel)
        if new_channel:
            self._new.append((topic, channel))
        if new_topic:
            self._new.append((topic, ""))
        return OK

    def _log_new(self) -> None:
        """Log the registrations since the last call: each on a line of nsqlookupd's form, or many on one line."""
        new = self._new
        if not new:
            return
        self._new = []
        if len(new) > LOGGED_EACH_MAX:
            first, last = (f"{topic}:{channel}" if channel else topic for topic, channel in (new[0], new[-1]))
            logger.info("DB: client(%s) REGISTER %d topics and channels, %s to %s", self.remote, len(new), first, last)
            return
        for topic, channel in new:
            category = "channel" if channel else "topic"
            logger.info("DB: client(%s) REGISTER category:%s key:%s subkey:%s", self.remote, category, topic, channel)

    def _unregister(self, words: list[str]) -> bytes:
        producer, topic, channel = self._names(words)
        for ended in self._registry.unregister(producer, topic, channel):
            logger.warning(
                "client(%s) unexpected UNREGISTER category:channel key:%s subkey:%s", self.remote, topic, ended
            )
        category = "channel" if channel else "topic"
        logger.info("DB: client(%s) UNREGISTER category:%s key:%s subkey:%s", self.remote, category, topic, channel)
        return OK


def words_of(line: bytes) -> list[str]:
    """Return the words of a line: without white space at its ends, split at single spaces."""
    return line.decode("utf-8", "backslashreplace").strip().split(" ")


def parse_peer(body: bytes, remote: str) -> Peer:
    """Return the identity of a broker from the body of its IDENTIFY. Raises: CommandError.

    Keys match in any case, as in Go's decoder; of several the last one counts, and null leaves a field as it is.
    """
    values: dict[str, Any] = {
        "hostname": "",
        "broadcast_address": "",
        "tcp_port": 0,
        "http_port": 0,
        "version": "",
        "topology_zone": "",
        "topology_region": "",
    }
    try:
        found = json.loads(json_text(body))
        if not isinstance(found, dict):
            raise ValueError("not an object")
        for key, value in found.items():
            name = key.lower()
            if name in values and value is not None:
                # The answers of `/lookup` have the value, and Go's clients cannot decode a larger one.
                is_too_large = type(value) is int and not -INT64_END <= value < INT64_END
                if type(value) is not type(values[name]) or is_too_large:
                    raise ValueError(f"{name} is {go_quote_str(str(value))}")
                values[name] = value
    except (ValueError, RecursionError) as error:
        logger.info("[%s] - IDENTIFY: %s", remote, error)
        raise CommandError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
    peer = Peer(remote_address=remote, **values)
    if not (peer.broadcast_address and peer.tcp_port and peer.http_port and peer.version):
        raise CommandError("E_BAD_BODY", "IDENTIFY missing fields")
    return peer
