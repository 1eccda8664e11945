"""A client's connection: what its commands mean, apart from the hot ones, and its life from accept to close."""

import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

import gevent
from greenlet import greenlet

from pyqd.broker.channel import Channel
from pyqd.broker.topic import Topic
from pyqd.hot.ioloop import IoLoop
from pyqd.primitives.errors import ClientError, StorageError
from pyqd.primitives.goquote import go_quote
from pyqd.primitives.names import is_valid_name
from pyqd.protocol import negotiate

if TYPE_CHECKING:
    from pyqd.protocol.server import TcpServer

STATE_INIT = 0
STATE_SUBSCRIBED = 3
STATE_CLOSING = 4
FRAME_RESPONSE = 0

logger = logging.getLogger(__name__)


class Connection(IoLoop):
    """One client over TCP or a unix socket: a pair of greenlets, IOLoop and messagePump, on one socket.

    Source: spec of the TCP protocol.
    """

    __slots__ = (
        "client_id",
        "connect_ts",
        "granted",
        "hostname",
        "remote_address",
        "server",
        "socket",
        "topology_region",
        "topology_zone",
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
        self.msg_timeout_ns = self.granted.msg_timeout_ns
        self.io_greenlet = greenlet(self.io_loop, server.hub)
        server.hub.loop.run_callback(self.io_greenlet.switch)

    def begin(self) -> None:
        """Start what needs a client that speaks V2: the pump and the heartbeats."""
        logger.info("CLIENT(%s): desired protocol magic '  V2'", self.remote_address)
        self.pump_greenlet = greenlet(self.message_pump, self.server.hub)
        self.server.hub.loop.run_callback(self.pump_greenlet.switch)
        self.start_heartbeats(negotiate.HEARTBEAT_NS_DEFAULT)

    def command(self, name: bytes, params: list[bytes], body: bytes | None) -> None:
        """Execute a command that is not hot. Raises: ClientError. Switches: it may."""
        if name == b"IDENTIFY" and body is not None:
            self.identify(body)
        elif name == b"SUB":
            self.subscribe(params)
        elif name == b"CLS":
            self.start_close()
        elif name == b"AUTH":
            raise ClientError("E_AUTH_DISABLED", "AUTH disabled")
        else:
            raise ClientError("E_INVALID", b"invalid command " + name)

    def identify(self, body: bytes) -> None:
        """IDENTIFY. Source: spec of the TCP protocol, "IDENTIFY"."""
        identity = negotiate.decode_identity(body)
        self.client_id = identity.client_id
        self.hostname = identity.hostname
        self.user_agent = identity.user_agent
        self.topology_region = identity.topology_region
        self.topology_zone = identity.topology_zone
        granted = negotiate.grant(identity, self.server.options, self.granted)
        self.granted = granted
        self.sample_rate = granted.sample_rate
        self.msg_timeout_ns = granted.msg_timeout_ns
        self.start_heartbeats(granted.heartbeat_ns)
        self.respond(negotiate.reply(identity, granted, self.server.options))

    def subscribe(self, params: list[bytes]) -> None:
        """SUB. Source: spec of the TCP protocol, "SUB"."""
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
        """Return the topic to publish to, made if it is missing. Raises: StorageError."""
        self.server.note_producer(self)
        return self.server.broker.topic_named(name)

    def note_failed_write(self, error: StorageError) -> None:
        """Tell the broker's health of a message that could not be stored."""
        self.server.broker.note_failed_write(error)

    def wait_durable(self, topics: list[Topic]) -> None:
        """Wait until the topics' logs are on stable storage. Raises: StorageError. Switches: yes."""
        self.server.wait_durable(topics)

    def log_refusal(self, error: ClientError) -> None:
        """Log what a client is refused."""
        cause = f" - {error.__cause__}" if error.__cause__ is not None else ""
        logger.error("[%s] - %s%s", self.remote_address, error, cause)

    def log_clamped(self, value_ms: int) -> None:
        """Log a REQ whose delay is out of range."""
        logger.info("[%s] REQ timeout %d out of range, clamped", self.remote_address, value_ms)

    def close(self) -> None:
        """Close the connection from outside: its channel was deleted, or the daemon stops."""
        self.close_because("closed by the daemon")

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
        """Clean up when the IOLoop has ended, for whatever reason."""
        logger.info("PROTOCOL(V2): [%s] exiting ioloop", self.remote_address)
        channel = self.channel
        if isinstance(channel, Channel):
            channel.remove_consumer(self)
            if channel.ephemeral and not channel.consumers and not channel.exiting:
                channel.topic.delete_channel(channel.name)
        self.server.forget(self)
        self.stop_pump()
        self.socket.close()
        self.io_greenlet = None

    def failed(self, error: BaseException) -> None:
        """Log what should not have happened. A broken invariant ends the daemon: nothing can be trusted after it."""
        if isinstance(error, gevent.GreenletExit):
            return
        logger.critical("[%s] bug", self.remote_address, exc_info=error)
        self.mark_gone()
        if isinstance(error, AssertionError):
            self.server.on_bug(error)

    def stats(self) -> dict[str, Any]:
        """Return what /stats shows of a client, in nsqd's order. Source: spec of the HTTP API, "GET /stats"."""
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
            "deflate": False,
            "snappy": False,
            "user_agent": self.user_agent,
            "topology_zone": self.topology_zone,
            "topology_region": self.topology_region,
            **self.pub_counts(),
            "tls": False,
            "tls_cipher_suite": "",
            "tls_version": "",
            "tls_negotiated_protocol": "",
            "tls_negotiated_protocol_is_mutual": False,
        }

    def pub_counts(self) -> dict[str, Any]:
        """Return the counts by topic of a client that has published."""
        self.note_published()
        counts = [{"topic": topic, "count": count} for topic, count in self.publish_counts.items()]
        return {"pub_counts": counts} if counts else {}

    def respond(self, data: bytes) -> None:
        """Queue a response frame."""
        self.put_response(data)
