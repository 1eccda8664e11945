"""Connection of an NSQ client: its life from accept to close, and the commands that are executed once per client.

A connection has three compiled parts, which call each other in one direction:

    ioloop     IoLoop, pyx/tcp/ioloop.pyx        receives, scans, executes
    publisher  Publisher, pyx/tcp/publisher.pyx  checks and stores publishes
    output     ClientOutput, pyx/tcp/output.pyx  queues answers, delivers messages, sends heartbeats

The parts get the connection at construction, as `client`, and call it for everything rare: SUB, IDENTIFY, AUTH, syncs,
log lines, the end.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import gevent

from pyqd.broker.channel import Channel
from pyqd.broker.topic import Topic
from pyqd.config.options import TLS_NOT_REQUIRED
from pyqd.hot.net.transport import TransportError
from pyqd.hot.tcp.ioloop import STATE_CLOSING, STATE_INIT, STATE_SUBSCRIBED, IoLoop
from pyqd.hot.tcp.output import ClientOutput
from pyqd.hot.tcp.publisher import Publisher
from pyqd.net.greenlets import start_raw
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import CommandError, LimitReached, StorageError, reason_of
from pyqd.primitives.goquote import go_quote
from pyqd.primitives.names import is_valid_name
from pyqd.primitives.timestamps import wall_ahead_ns
from pyqd.tcp import negotiate
from pyqd.tcp.authorization import Authorizer
from pyqd.tcp.upgrade import tls_stats, upgrade

if TYPE_CHECKING:
    from OpenSSL import SSL

    from pyqd.tcp.server import TcpServer

logger = logging.getLogger(__name__)


class PublishSyncs(Protocol):
    """Interface to the group commit, which makes topics durable."""

    def wait(self, topics: Iterable[Topic]) -> None:
        """Wait until the topics are durable. Raises: StorageError. Switches: yes."""

    def notify(self, topics: Iterable[Topic], callback: Callable[[BaseException | None], None]) -> None:
        """Call callback(None) when the topics are durable, or callback(error) if their sync fails. Switches: no."""


class Connection:
    """One client over TCP or a unix socket: two greenlets, IOLoop and messagePump, on one socket.

    Source: docs/nsq/tcp-protocol.md.
    """

    __slots__ = (
        "authorizer",
        "client_id",
        "closes",
        "connected_ns",
        "granted",
        "hostname",
        "ioloop",
        "output",
        "publisher",
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
        self.server = server
        self.socket = sock
        self.remote_address = remote_address
        self.output = ClientOutput(sock.fileno(), server.hub, server.broker.scheduler, self)
        self.publisher = Publisher(self.output, server.limits, self)
        self.ioloop = IoLoop(self.output, self.publisher, server.limits, self)
        self.client_id = self.hostname = remote_address.rpartition(":")[0]
        self.user_agent = ""
        self.topology_region = self.topology_zone = ""
        self.connected_ns = time.monotonic_ns()
        self.closes = False
        self.granted = negotiate.defaults(server.options)
        self.upgrades = negotiate.Upgrades()
        self.tls: SSL.Connection | None = None
        self.ioloop.tls_needed = server.options.tls_required != TLS_NOT_REQUIRED
        self.authorizer = Authorizer(server.auth, remote_address)
        self.publisher.auth_needed = self.authorizer.needed
        self.output.msg_timeout_ns = self.granted.msg_timeout_ns
        self.ioloop.greenlet = start_raw(server.hub, self.ioloop.io_loop)

    @property
    def gone(self) -> bool:
        """True once the connection is closed, or about to be."""
        return self.output.gone

    @property
    def buffer_bytes(self) -> int:
        """Memory of the connection's own buffers."""
        return self.ioloop.buffer_bytes

    def begin(self) -> None:
        """Start the messagePump and the heartbeats: the client has sent the magic."""
        logger.info("CLIENT(%s): desired protocol magic '  V2'", self.remote_address)
        self.output.pump_greenlet = start_raw(self.server.hub, self.output.message_pump)
        self.output.start_heartbeats(negotiate.HEARTBEAT_NS_DEFAULT)

    def command(self, name: bytes, params: list[bytes], body: bytes | None) -> None:
        """Execute a command that comes once per client. Raises: CommandError. Switches: possibly."""
        if name == b"IDENTIFY" and body is not None:
            self.identify(body)
        elif name == b"SUB":
            self.subscribe(params)
        elif name == b"CLS":
            self.start_close()
        elif name == b"AUTH" and body is not None:
            self.auth(body)
        else:
            raise CommandError("E_INVALID", b"invalid command " + name)

    def identify(self, body: bytes) -> None:
        """IDENTIFY. Source: docs/nsq/tcp-protocol.md, "IDENTIFY". Switches: if many come at once; for an upgrade."""
        self.server.slice_queue.wait_if_busy()
        if self.gone:
            return
        identity = negotiate.decode_identity(body)
        self.client_id = identity.client_id
        self.hostname = identity.hostname
        self.user_agent = identity.user_agent
        self.output.traced = None
        self.topology_region = identity.topology_region
        self.topology_zone = identity.topology_zone
        self.output.locality = negotiate.locality(identity, self.server.options)
        granted = negotiate.grant(identity, self.server.options, self.granted)
        self.granted = granted
        self.output.sample_rate = granted.sample_rate
        self.output.msg_timeout_ns = granted.msg_timeout_ns
        self.publisher.returns_ids = identity.message_ids and identity.feature_negotiation
        self.output.start_heartbeats(granted.heartbeat_ns)
        if not identity.feature_negotiation:
            self.respond(b"OK")
            return
        upgrades = negotiate.upgrades(
            identity,
            self.server.options,
            tls_enabled=self.server.tls.enabled,
            upgraded=self.output.transport is not None,
        )
        self.respond(negotiate.reply(identity, granted, upgrades, self.server.options))
        if upgrades.any():
            self.upgrades = upgrades
            upgrade(self, upgrades, self.server.tls, self.server.hub)

    def auth(self, secret: bytes) -> None:
        """AUTH. Source: docs/nsq/tcp-protocol.md, "AUTH". Switches: yes."""
        answer = self.authorizer.auth(secret)
        if not self.gone:
            self.respond(answer)

    def renew_permissions(self, command: bytes) -> None:
        """Ask for the expired permissions of the client again. Raises: CommandError. Switches: yes."""
        self.authorizer.renew(command)

    def subscribe(self, params: list[bytes]) -> None:
        """SUB. Source: docs/nsq/tcp-protocol.md, "SUB". Switches: if the permissions of the client have expired."""
        if self.ioloop.state != STATE_INIT:
            raise CommandError("E_INVALID", "cannot SUB in current state")
        if self.output.heartbeat_ns <= 0:
            raise CommandError("E_INVALID", "cannot SUB with heartbeats disabled")
        if len(params) < 2:
            raise CommandError("E_INVALID", "SUB insufficient number of parameters")
        topic_name, channel_name = params
        if not is_valid_name(topic_name):
            raise CommandError("E_BAD_TOPIC", b"SUB topic name " + go_quote(topic_name) + b" is not valid")
        if not is_valid_name(channel_name):
            raise CommandError("E_BAD_CHANNEL", b"SUB channel name " + go_quote(channel_name) + b" is not valid")
        self.authorizer.require_subscribe(topic_name, channel_name)
        if self.gone:
            return
        channel = self.open_channel(topic_name.decode("ascii"), channel_name.decode("ascii"))
        channel.add_consumer(self.output)
        self.output.subscribe(channel)
        self.ioloop.state = STATE_SUBSCRIBED
        self.respond(b"OK")

    def open_channel(self, topic_name: str, channel_name: str) -> Channel:
        """Return the channel, created if it is missing. Raises: CommandError, also if it has enough consumers."""
        if self.server.broker.draining:
            raise CommandError("E_SUB_FAILED", "SUB failed exiting")
        try:
            channel = self.server.broker.topic(topic_name).channel(channel_name)
        except StorageError as error:
            raise CommandError("E_SUB_FAILED", f"SUB failed {error}") from error
        except LimitReached as error:
            raise CommandError(f"E_{error.code}", str(error)) from None
        limit = self.server.options.max_channel_consumers
        if limit != 0 and len(channel.consumers) >= limit:
            raise CommandError(
                "E_SUB_FAILED", f"SUB failed consumers for {topic_name}:{channel_name} exceeds limit of {limit}"
            )
        return channel

    def start_close(self) -> None:
        """CLS: deliver nothing more; the client can finish its messages in flight."""
        # A drain stops deliveries as well; the client does not know that, and may still send its CLS.
        if self.ioloop.state == STATE_INIT or self.closes:
            raise CommandError("E_INVALID", "cannot CLS in current state")
        self.closes = True
        self.stop_deliveries()
        self.respond(b"CLOSE_WAIT")

    def stop_deliveries(self) -> None:
        """Deliver nothing more to a consumer; it can finish its messages in flight."""
        if self.ioloop.state == STATE_SUBSCRIBED:
            self.output.rdy = 0
            self.ioloop.state = STATE_CLOSING

    def find_topic(self, name: bytes, command: bytes) -> Topic:
        """Return the topic for a publish, created if it is missing. Raises: StorageError, CommandError."""
        if self.server.broker.is_refused(name.decode("ascii")):
            publish = command.decode("ascii")
            raise CommandError(f"E_{publish}_FAILED", f"{publish} failed exiting")
        self.server.note_producer(self)
        try:
            return self.server.broker.topic_named(name)
        except LimitReached as error:
            raise CommandError(f"E_{error.code}", str(error)) from None

    def permission_until(self, command: bytes, topic: bytes) -> int:
        """Return the end, monotonic ns, of the permission to publish to the topic; 0: unknown. Raises: CommandError."""
        return self.authorizer.publish_until(command, topic)

    def wait_for_turn(self) -> None:
        """Let the loop serve others before the rest of a long pass. Switches: yes."""
        self.server.slice_queue.wait()

    def end_input(self) -> None:
        """Let the IOLoop find the end behind the commands that have come: the answers cannot be sent any more."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RD)

    def note_failed_write(self, error: StorageError) -> None:
        """Show in the broker's health that a message could not be stored."""
        self.server.broker.note_failed_write(error)

    def notify_when_durable(
        self, topics: dict[Topic, None], on_durable: Callable[[BaseException | None], None]
    ) -> None:
        """Call on_durable(None) when the topics are on stable storage, or on_durable(error) if not. Switches: no."""
        self.server.durability.notify(topics, on_durable)

    def wait_durable(self, topics: Iterable[Topic]) -> None:
        """Wait until the topics' logs are on stable storage. Raises: StorageError. Switches: yes."""
        self.server.durability.wait(topics)

    def log_refusal(self, error: CommandError) -> None:
        cause = f" - {reason_of(error.__cause__)}" if error.__cause__ is not None else ""
        logger.error("[%s] - %s%s", self.remote_address, error, cause)

    def log_clamped(self, value_ms: int) -> None:
        """Log a REQ with a delay that is out of range."""
        logger.info("[%s] REQ timeout %d out of range, clamped", self.remote_address, value_ms)

    def close(self) -> None:
        """Close the connection because its channel is deleted: at once, or a little later if many are closed."""
        self.server.closing.add(self)

    def close_because(self, reason: str) -> None:
        """Close the connection at once; both greenlets end when they run next."""
        if self.gone:
            return
        logger.info("[%s] closing - %s", self.remote_address, reason)
        self.output.mark_gone()
        # The IOLoop waits for a readable socket; a shutdown makes it readable.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def finished(self) -> None:
        """Clean up at the end of the IOLoop. Switches: if many clients leave at once.

        The end of a client takes some 100 us. It leaves its channel first, so nothing is delivered while others end.
        """
        channel = self.output.channel
        if isinstance(channel, Channel):
            channel.remove_consumer(self.output)
            if channel.ephemeral and not channel.consumers and not channel.exiting:
                channel.topic.delete_channel(channel.name)
        # A daemon that stops ends the greenlet during this wait; the rest of the clean-up then runs at once.
        with contextlib.suppress(gevent.GreenletExit):
            self.server.slice_queue.wait_if_busy()
        logger.info("PROTOCOL(V2): [%s] exiting ioloop", self.remote_address)
        self.server.remove_client(self)
        self.output.stop()
        transport = self.output.transport
        if transport is not None:
            with contextlib.suppress(TransportError):
                transport.finish()
            transport.release()
        self.socket.close()
        self.ioloop.greenlet = None

    def failed(self, error: BaseException) -> None:
        """Log an internal error and close. A failed assertion ends the daemon: its state cannot be trusted any more."""
        if isinstance(error, gevent.GreenletExit):
            return
        logger.critical("[%s] internal error, closing connection", self.remote_address, exc_info=error)
        self.close_because("internal error")
        if isinstance(error, AssertionError):
            self.server.on_internal_error(error)

    def stats(self) -> dict[str, Any]:
        """Return the client's entry in /stats, in nsqd's order. Source: docs/nsq/http-api.md, "GET /stats"."""
        return {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "version": "V2",
            "remote_address": self.remote_address,
            "state": self.ioloop.state,
            "ready_count": self.output.rdy,
            "in_flight_count": self.output.in_flight,
            "message_count": self.output.message_count,
            "finish_count": self.output.finish_count,
            "requeue_count": self.output.requeue_count,
            # By the present wall clock, which may have been set since: readers subtract it from theirs.
            "connect_ts": (self.connected_ns + wall_ahead_ns()) // SECOND_NS,
            "sample_rate": self.output.sample_rate,
            "deflate": self.upgrades.deflate,
            "snappy": self.upgrades.snappy,
            "user_agent": self.user_agent,
            **self.authorizer.stats(),
            "topology_zone": self.topology_zone,
            "topology_region": self.topology_region,
            **self.pub_counts(),
            **tls_stats(self.tls),
        }

    def pub_counts(self) -> dict[str, Any]:
        """Return the numbers of published messages by topic, if there are any."""
        self.publisher.note_published()
        published = self.publisher.publish_counts
        counts = [{"topic": topic, "count": count} for topic, count in published.items()]
        return {"pub_counts": counts} if counts else {}

    def respond(self, data: bytes) -> None:
        """Queue a response frame."""
        self.output.put_response(data)
