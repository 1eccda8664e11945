"""A client's connection: what its commands mean, apart from the hot ones, and its life from accept to close."""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import gevent
from OpenSSL import SSL

from pyqd.broker.channel import Channel
from pyqd.broker.topic import Topic
from pyqd.config.options import TLS_NOT_REQUIRED
from pyqd.hot.net.transport import TransportError
from pyqd.hot.tcp.ioloop import IoLoop
from pyqd.net import tls
from pyqd.net.greenlets import start_raw
from pyqd.primitives.errors import ClientError, LimitReached, StorageError, reason_of
from pyqd.primitives.goquote import go_quote
from pyqd.primitives.names import is_valid_name
from pyqd.tcp import negotiate
from pyqd.tcp.authorization import Authorizer
from pyqd.tcp.upgrade import upgrade

if TYPE_CHECKING:
    from pyqd.tcp.server import TcpServer

STATE_INIT = 0
STATE_SUBSCRIBED = 3
STATE_CLOSING = 4
FRAME_RESPONSE = 0
# Of the publisher's, as what its client may do has expired.
RENEW_PERMISSIONS = b" renew"

logger = logging.getLogger(__name__)


class Connection(IoLoop):
    """One client over TCP or a unix socket: a pair of greenlets, IOLoop and messagePump, on one socket.

    Source: docs/nsq/tcp-protocol.md, "Commands".
    """

    __slots__ = (
        "authorizer",
        "client_id",
        "connect_ts",
        "granted",
        "hostname",
        "remote_address",
        "server",
        "socket",
        "tls",
        "topology_region",
        "topology_zone",
        "upgrades",
        "user_agent",
    )

    def __init__(self, server: "TcpServer", sock: socket.socket, remote_address: str) -> None:
        super().__init__(sock.fileno(), server.hub, server.broker.scheduler, server.limits)
        self.server = server
        self.socket = sock
        self.remote_address = remote_address
        self.client_id = self.hostname = remote_address.rpartition(":")[0]
        self.user_agent = ""
        self.topology_region = self.topology_zone = ""
        self.connect_ts = int(time.time())
        self.granted = negotiate.defaults(server.options)
        self.upgrades = negotiate.Upgrades()
        self.tls: SSL.Connection | None = None
        self.tls_needed = server.options.tls_required != TLS_NOT_REQUIRED
        self.auth_needed = server.auth.enabled
        self.authorizer = Authorizer(self)
        self.msg_timeout_ns = self.granted.msg_timeout_ns
        self.io_greenlet = start_raw(server.hub, self.io_loop)

    def begin(self) -> None:
        """Start what needs a client that speaks V2: the pump and the heartbeats."""
        logger.info("CLIENT(%s): desired protocol magic '  V2'", self.remote_address)
        self.pump_greenlet = start_raw(self.server.hub, self.message_pump)
        self.start_heartbeats(negotiate.HEARTBEAT_NS_DEFAULT)

    def command(self, name: bytes, params: list[bytes], body: bytes | None) -> None:
        """Execute a command that is not hot. Raises: ClientError. Switches: it may."""
        if name == b"IDENTIFY" and body is not None:
            self.identify(body)
        elif name == b"SUB":
            self.subscribe(params)
        elif name == b"CLS":
            self.start_close()
        elif name == b"AUTH" and body is not None:
            self.auth(body)
        elif name == RENEW_PERMISSIONS:
            self.authorizer.renew(params[0])
        else:
            raise ClientError("E_INVALID", b"invalid command " + name)

    def identify(self, body: bytes) -> None:
        """IDENTIFY. Source: docs/nsq/tcp-protocol.md, "IDENTIFY". Switches: if many come at once; for an upgrade."""
        self.server.pieces.wait_if_late()
        if self.gone:
            return
        identity = negotiate.decode_identity(body)
        self.client_id = identity.client_id
        self.hostname = identity.hostname
        self.user_agent = identity.user_agent
        self.topology_region = identity.topology_region
        self.topology_zone = identity.topology_zone
        self.locality = negotiate.locality(identity, self.server.options)
        granted = negotiate.grant(identity, self.server.options, self.granted)
        self.granted = granted
        self.sample_rate = granted.sample_rate
        self.msg_timeout_ns = granted.msg_timeout_ns
        self.tells_ids = identity.message_ids and identity.feature_negotiation
        self.start_heartbeats(granted.heartbeat_ns)
        if not identity.feature_negotiation:
            self.respond(b"OK")
            return
        upgrades = negotiate.upgrades(
            identity,
            self.server.options,
            tls_enabled=self.server.tls.enabled,
            upgraded=self.transport is not None,
        )
        self.respond(negotiate.reply(identity, granted, upgrades, self.server.options))
        if upgrades.any():
            self.upgrades = upgrades
            upgrade(self, upgrades)

    def auth(self, secret: bytes) -> None:
        """AUTH. Source: docs/nsq/tcp-protocol.md, "AUTH". Switches: yes."""
        answer = self.authorizer.auth(secret)
        if not self.gone:
            self.respond(answer)

    def subscribe(self, params: list[bytes]) -> None:
        """SUB. Source: docs/nsq/tcp-protocol.md, "SUB". Switches: where what the client may do has expired."""
        if self.state != STATE_INIT:
            raise ClientError("E_INVALID", "cannot SUB in current state")
        if self.heartbeat_ns <= 0:
            raise ClientError("E_INVALID", "cannot SUB with heartbeats disabled")
        if len(params) < 2:
            raise ClientError("E_INVALID", "SUB insufficient number of parameters")
        topic_name, channel_name = params
        if not is_valid_name(topic_name):
            raise ClientError("E_BAD_TOPIC", b"SUB topic name " + go_quote(topic_name) + b" is not valid")
        if not is_valid_name(channel_name):
            raise ClientError("E_BAD_CHANNEL", b"SUB channel name " + go_quote(channel_name) + b" is not valid")
        self.authorizer.require_subscribe(topic_name, channel_name)
        if self.gone:
            return
        channel = self.open_channel(topic_name.decode("ascii"), channel_name.decode("ascii"))
        channel.add_consumer(self)
        self.channel = channel
        self.state = STATE_SUBSCRIBED
        self.respond(b"OK")

    def open_channel(self, topic_name: str, channel_name: str) -> Channel:
        """Return the channel, made if it is missing, unless it takes no more consumers."""
        try:
            channel = self.server.broker.topic(topic_name).channel(channel_name)
        except StorageError as error:
            raise ClientError("E_SUB_FAILED", f"SUB failed {error}") from error
        except LimitReached as error:
            raise ClientError(f"E_{error.code}", str(error)) from None
        limit = self.server.options.max_channel_consumers
        if limit != 0 and len(channel.consumers) >= limit:
            raise ClientError(
                "E_SUB_FAILED", f"SUB failed consumers for {topic_name}:{channel_name} exceeds limit of {limit}"
            )
        return channel

    def start_close(self) -> None:
        """CLS: nothing more is delivered; what is in flight can be finished."""
        if self.state != STATE_SUBSCRIBED:
            raise ClientError("E_INVALID", "cannot CLS in current state")
        self.rdy = 0
        self.state = STATE_CLOSING
        self.respond(b"CLOSE_WAIT")

    def find_topic(self, name: bytes) -> Topic:
        """Return the topic to publish to, made if it is missing. Raises: StorageError, ClientError."""
        self.server.note_producer(self)
        try:
            return self.server.broker.topic_named(name)
        except LimitReached as error:
            raise ClientError(f"E_{error.code}", str(error)) from None

    def permission_until(self, command: bytes, topic: bytes) -> int:
        """Return until when, monotonic ns, the client may publish to the topic; 0: unknown. Raises: ClientError."""
        return self.authorizer.publish_until(command, topic)

    def note_failed_write(self, error: StorageError) -> None:
        """Tell the broker's health of a message that could not be stored."""
        self.server.broker.note_failed_write(error)

    def tell_durable(self, topics: dict[Topic, None], told: Callable[[BaseException | None], None]) -> None:
        """Have told(error) called when the topics are on stable storage. Switches: no."""
        self.server.durability.tell(topics, told)

    def wait_durable(self, topics: Iterable[Topic]) -> None:
        """Wait until the topics' logs are on stable storage. Raises: StorageError. Switches: yes."""
        self.server.durability.wait(topics)

    def log_refusal(self, error: ClientError) -> None:
        """Log what a client is refused."""
        cause = f" - {reason_of(error.__cause__)}" if error.__cause__ is not None else ""
        logger.error("[%s] - %s%s", self.remote_address, error, cause)

    def log_clamped(self, value_ms: int) -> None:
        """Log a REQ whose delay is out of range."""
        logger.info("[%s] REQ timeout %d out of range, clamped", self.remote_address, value_ms)

    def close(self) -> None:
        """Close the connection as its channel was deleted: at once, or in a turn if many are closed."""
        self.server.closing.add(self)

    def close_because(self, reason: str) -> None:
        """Close the connection at once; both greenlets see it when they run next."""
        if self.gone:
            return
        logger.info("[%s] closing - %s", self.remote_address, reason)
        self.mark_gone()
        # The IOLoop waits for the socket to become readable, which this makes it.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def finished(self) -> None:
        """Clean up when the IOLoop has ended, for whatever reason. Switches: if many clients leave at once.

        The end of a client takes some 100 us. Its channel is left first, so nothing is delivered while others end.
        """
        channel = self.channel
        if isinstance(channel, Channel):
            channel.remove_consumer(self)
            if channel.ephemeral and not channel.consumers and not channel.exiting:
                channel.topic.delete_channel(channel.name)
        # A daemon that stops does not wait for the turns, and a greenlet that is ended cleans up at once.
        with contextlib.suppress(gevent.GreenletExit):
            self.server.pieces.wait_if_late()
        logger.info("PROTOCOL(V2): [%s] exiting ioloop", self.remote_address)
        self.server.forget(self)
        self.stop_pump()
        if self.transport is not None:
            with contextlib.suppress(TransportError):
                self.transport.finish()
            self.transport.release()
        self.socket.close()
        self.io_greenlet = None

    def failed(self, error: BaseException) -> None:
        """Log what should not have happened. A broken invariant ends the daemon: nothing can be trusted after it."""
        if isinstance(error, gevent.GreenletExit):
            return
        logger.critical("[%s] internal error, closing connection", self.remote_address, exc_info=error)
        self.close_because("internal error")
        if isinstance(error, AssertionError):
            self.server.on_bug(error)

    def stats(self) -> dict[str, Any]:
        """Return what /stats shows of a client, in nsqd's order. Source: docs/nsq/http-api.md, "GET /stats"."""
        return {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "version": "V2",
            "remote_address": self.remote_address,
            "state": self.state,
            "ready_count": self.rdy,
            "in_flight_count": self.in_flight,
            "message_count": self.message_count,
            "finish_count": self.finish_count,
            "requeue_count": self.requeue_count,
            "connect_ts": self.connect_ts,
            "sample_rate": self.sample_rate,
            "deflate": self.upgrades.deflate,
            "snappy": self.upgrades.snappy,
            "user_agent": self.user_agent,
            **self.authorizer.stats(),
            "topology_zone": self.topology_zone,
            "topology_region": self.topology_region,
            **self.pub_counts(),
            **tls.stats_of(self.tls),
        }

    def pub_counts(self) -> dict[str, Any]:
        """Return the counts by topic of a client that has published."""
        self.note_published()
        counts = [{"topic": topic, "count": count} for topic, count in self.publish_counts.items()]
        return {"pub_counts": counts} if counts else {}

    def respond(self, data: bytes) -> None:
        """Queue a response frame."""
        self.put_response(data)
