"""Output of a client's connection: nsqd's messagePump.

    Dispatcher -> put_delivery \
    IOLoop     -> put, put_oks -> queued frames -> flush -> transport or socket

Queue. The frames of one run are built in a scratch buffer that all connections share, since the loop runs one of them
at a time, and leave in one send. A large body is sent from its place in the log. Only bytes that the socket refuses
are copied to a buffer of the connection's own, which is freed once it is empty. So an idle connection holds no buffer,
and a busy loop writes to memory that is in the cache.

Delivery. The channel's Dispatcher puts messages, the frames leave in one send, and nothing waits: it runs without a
greenlet switch. A run takes RUN_BYTES_MAX at most; its channel asks for another turn if there is more to deliver.
Only the messagePump greenlet waits: it sends the rest if the socket was full, and the heartbeats. Until the rest is
sent, the client is `blocked` and takes no messages, so one slow reader costs the memory of one run.

A lone message leaves at once; a batch leaves when the run ends or the scratch is full. output_buffer_timeout is an
upper bound on the delay, and no delay here reaches the smallest value a client can ask for.

Invariants: 1. between runs a connection without a buffer of its own has nothing queued (`start == end`).
2. `start <= end <= capacity`. 3. No pointer into the scratch survives a greenlet switch.

Source: docs/nsq/tcp-protocol.md, "Heartbeats and deadlines", "Output buffering".
"""

from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from pyqd.hot.net.buffers cimport buffer_freed, buffer_grown
from pyqd.hot.net.sockets cimport WRITE_EVENT, send_some, send_two
from pyqd.hot.primitives.clock cimport mono_ns
from pyqd.hot.primitives.debug cimport PYQD_DEBUG
from pyqd.hot.wire.frames cimport (
    FRAME_HEADER_BYTES,
    FRAME_RESPONSE,
    message_frame_bytes,
    put_frame,
    put_message,
    put_message_head,
)
from pyqd.hot.wire.record cimport Record, record_body, record_body_bytes

from pyqd.hot.net.transport import TransportError

cdef enum:
    RUN_BYTES_MAX = 128 << 10
    SENT_BYTES_PER_WORK = 8              # a message of 200 bytes takes some 150 ns
    IN_PLACE_BYTES = 16 << 10            # from this size on a copy costs more than a send of its own
    OWN_BYTES_MIN = 4096
    OK_FRAME_BYTES = 10
    OKS_AT_ONCE = 1024
    HEARTBEAT_BYTES = 11

cdef char* OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
cdef char* HEARTBEAT = b"_heartbeat_"

cdef uint64_t SCRATCH_BYTES = 256 << 10
cdef char* scratch = <char*> malloc(SCRATCH_BYTES)
if scratch == NULL:
    raise MemoryError


cdef class ClientOutput(Consumer):
    """Sending half of a connection, and the Consumer that its channel knows.

    fd: socket, not blocking; the caller closes it after `stop`. client: Python half of the connection.
    """

    def __cinit__(self, *args, **kwargs):
        self.base = scratch
        self.capacity = SCRATCH_BYTES
        self.fd = -1

    def __init__(self, int fd, hub, Scheduler scheduler not None, client):
        self.fd = fd
        self.hub = hub
        self.scheduler = scheduler
        self.client = client

    def __dealloc__(self):
        if self.owned:
            free(self.base)
            buffer_freed(self.capacity)

    # Queue.

    cdef char* reserve(self, uint64_t size_bytes) except NULL:
        """Return the address for `size_bytes` more; the caller then adds them to `end`. Raises: MemoryError."""
        if self.capacity - self.end < size_bytes:
            if not self.owned and not self.withholding:
                self.flush()
            if self.capacity - self.end < size_bytes:
                self.spill(self.end - self.start + size_bytes)
        if PYQD_DEBUG:
            assert self.start <= self.end and size_bytes <= self.capacity - self.end
        return self.base + self.end

    cdef int put(self, FrameType frame_type, const char* data, uint32_t size_bytes) except -1:
        put_frame(self.reserve(FRAME_HEADER_BYTES + size_bytes), frame_type, data, size_bytes)
        self.end += FRAME_HEADER_BYTES + size_bytes
        return 0

    cdef int put_oks(self, uint32_t count) except -1:
        """Queue the response OK so many times."""
        cdef uint32_t index, piece
        cdef char* at
        while count != 0:
            piece = min(count, <uint32_t> OKS_AT_ONCE)
            at = self.reserve(piece * OK_FRAME_BYTES)
            for index in range(piece):
                memcpy(at + index * OK_FRAME_BYTES, OK_FRAME, OK_FRAME_BYTES)
            self.end += piece * OK_FRAME_BYTES
            count -= piece
        return 0

    def put_response(self, bytes data not None):
        """Queue a response frame."""
        self.put(FRAME_RESPONSE, data, <uint32_t> len(data))

    cdef int spill(self, uint64_t capacity) except -1:
        """Move the queued bytes to a buffer of the connection's own, of at least this capacity. Raises: MemoryError."""
        cdef uint64_t queued = self.end - self.start
        cdef char* grown
        assert capacity >= queued
        capacity = max(capacity, <uint64_t> OWN_BYTES_MIN)
        if self.owned:
            memmove(self.base, self.base + self.start, queued)
            if capacity > self.capacity:
                capacity = max(capacity, 2 * self.capacity)
                grown = <char*> realloc(self.base, capacity)
                if grown == NULL:
                    # The bytes lie at the start of the buffer now.
                    self.start = 0
                    self.end = queued
                    raise MemoryError
                buffer_grown(capacity - self.capacity)
                self.base = grown
                self.capacity = capacity
        else:
            grown = <char*> malloc(capacity)
            if grown == NULL:
                raise MemoryError
            memcpy(grown, self.base + self.start, queued)
            self.base = grown
            self.capacity = capacity
            self.owned = True
            buffer_grown(capacity)
        self.start = 0
        self.end = queued
        return 0

    cdef int discard(self) except -1:
        self.start = self.end
        return self.release()

    cdef int release(self) except -1:
        """Free the connection's own buffer; nothing is queued any more."""
        if self.owned:
            free(self.base)
            buffer_freed(self.capacity)
            self.owned = False
            self.base = scratch
            self.capacity = SCRATCH_BYTES
        self.start = 0
        self.end = 0
        return 0

    cdef uint64_t owned_bytes(self) noexcept:
        """Return the memory of the connection's own buffer and of its transports."""
        return (self.capacity if self.owned else 0) + (0 if self.transport is None else self.transport.held_bytes())

    # Send.

    cdef int flush(self) except -1:
        """Send the queued bytes. Returns: 1 if all are sent, 0 if the socket is full."""
        cdef ssize_t sent
        assert not self.withholding
        while self.start < self.end:
            if self.broken:
                break
            if self.transport is None:
                sent = send_some(self.fd, self.base + self.start, self.end - self.start)
            else:
                sent = self.send_through(self.base + self.start, self.end - self.start)
            if sent > 0:
                self.start += <uint64_t> sent
                self.sent_bytes += <uint64_t> sent
            elif sent == 0:
                if not self.owned:
                    self.spill(self.end - self.start)
                return 0
            else:
                self.note_broken()
        self.release()
        return 1 if self.transport is None or self.broken else self.flush_transport()

    cdef int flush_or_block(self) except -1:
        """Send the queued bytes; if the socket is full, leave the rest to the messagePump greenlet."""
        if self.withholding:
            # The IOLoop waits for a sync and flushes after it. Nothing is delivered before.
            if not self.owned:
                self.spill(self.end - self.start)
            self.blocked = True
        elif self.start < self.end and not self.flush():
            self.blocked = True
            self.wake_pump()
        if PYQD_DEBUG:
            assert self.owned or self.start == self.end
        return 0

    cdef int send_in_place(self, const char* data, uint64_t size_bytes) except -1:
        """Send the queued bytes and then the data, without copying the data; keep the rest if the socket is full."""
        cdef uint64_t queued = self.end - self.start
        cdef uint64_t rest
        cdef ssize_t sent
        assert self.transport is None and not self.withholding and not self.owned
        sent = send_two(self.fd, self.base + self.start, queued, data, size_bytes)
        if sent < 0:
            self.note_broken()
            return self.release()
        self.sent_bytes += <uint64_t> sent
        if <uint64_t> sent == queued + size_bytes:
            return self.release()
        rest = size_bytes if <uint64_t> sent < queued else queued + size_bytes - <uint64_t> sent
        self.start += min(<uint64_t> sent, queued)
        self.spill(self.end - self.start + rest)
        memcpy(self.base + self.end, data + (size_bytes - rest), rest)
        self.end += rest
        return 0

    cdef ssize_t send_through(self, const char* data, uint64_t size_bytes) except -2:
        """Give the transport bytes to send. Returns: their number; 0 if the socket is full; -1 if the peer is gone."""
        try:
            return self.transport.send(data, size_bytes)
        except TransportError:
            return -1

    cdef int flush_transport(self) except -1:
        """Send the bytes that the transport still has. Returns: as `flush`."""
        cdef int flushed
        try:
            flushed = self.transport.flush()
        except TransportError:
            flushed = -1
        if flushed < 0:
            self.note_broken()
        return flushed != 0

    cdef int note_broken(self) except -1:
        """Drop what is queued from now on, deliver nothing more, and end the input behind the commands that have come.

        The peer is gone as a rule, but a lack of memory for the socket is no sign of that in its input.
        """
        self.broken = True
        self.client.end_input()
        return 0

    def upgrade(self, CodecTransport transport not None):
        """Send everything through a transport from now on."""
        assert self.start == self.end and not self.blocked and not self.withholding
        self.transport = transport

    cdef int wait_until_drained(self, greenlet) except -1:
        """Wait until the messagePump has sent the queued bytes. greenlet: the current one, IOLoop's. Switches: yes."""
        assert self.drain_waiter is None
        self.draining_since_ns = mono_ns()
        if self.heartbeat_ns > 0:
            self.scheduler.set_timer(self, self.draining_since_ns + self.heartbeat_ns)
        while self.blocked and not self.gone:
            self.drain_waiter = greenlet
            self.hub.switch()
        self.drain_waiter = None
        return 0

    cdef int wake_drain_waiter(self) except -1:
        if self.drain_waiter is not None:
            waiter, self.drain_waiter = self.drain_waiter, None
            self.hub.loop.run_callback(waiter.switch)
        return 0

    # Withhold answers until a sync.

    cdef int begin_withholding(self) except -1:
        """Withhold all bytes queued from now on, until `end_withholding` or `drop_withheld`."""
        if not self.withholding:
            self.withholding = True
            self.durable_bytes = self.end - self.start
        return 0

    cdef int drop_withheld(self) except -1:
        """End withholding, and drop the bytes queued since it began. The rest of a half-sent frame stays."""
        assert self.withholding and self.durable_bytes <= self.end - self.start
        self.withholding = False
        self.end = self.start + self.durable_bytes
        return 0

    cdef int end_withholding(self) except -1:
        """End withholding: send the withheld bytes, and let the channel deliver again."""
        self.withholding = False
        self.blocked = False
        self.flush_or_block()
        if self.heartbeat_wanted:
            self.wake_pump()
        return self.request_delivery()

    def withhold(self, bint withholding):
        """Begin (True) or end (False) withholding. At the end, nothing is sent before the next flush."""
        if withholding:
            self.begin_withholding()
            return
        self.withholding = False
        if self.heartbeat_wanted:
            self.wake_pump()

    # Deliver.

    def subscribe(self, ChannelCore channel not None):
        """Take messages of this channel, which lists this consumer."""
        assert self.channel is None
        self.channel = channel

    cdef bint begin_run(self) except -1:
        self.run_end_bytes = self.sent_bytes + (self.end - self.start) + RUN_BYTES_MAX
        # A message that cannot be sent would count as an attempt.
        return not self.broken

    cdef bint put_delivery(self, const Delivery* delivery) except -1:
        """Queue the frame of a message, or send it at once if its body is too large to copy."""
        cdef const Record* record = delivery.record
        cdef uint32_t size_bytes = record_body_bytes(record)
        if size_bytes >= IN_PLACE_BYTES and self.transport is None and not self.withholding:
            self.put_large(delivery)
        else:
            put_message(
                self.reserve(message_frame_bytes(size_bytes)), record.guid, record.timestamp_ns, delivery.attempts,
                record_body(record), size_bytes)
            self.end += message_frame_bytes(size_bytes)
        # If the socket is full, another message would be copied here, and leave its channel too early.
        return not (self.owned or self.broken) and self.sent_bytes + (self.end - self.start) < self.run_end_bytes

    cdef int put_large(self, const Delivery* delivery) except -1:
        """Queue the head of a frame, and send it with the body from its place in the log."""
        cdef const Record* record = delivery.record
        cdef uint32_t size_bytes = record_body_bytes(record)
        put_message_head(
            self.reserve(message_frame_bytes(0)), record.guid, record.timestamp_ns, delivery.attempts, size_bytes)
        self.end += message_frame_bytes(0)
        if not self.owned:
            return self.send_in_place(record_body(record), size_bytes)
        memcpy(self.reserve(size_bytes), record_body(record), size_bytes)
        self.end += size_bytes
        return 0

    cdef int end_run(self) except -1:
        cdef uint64_t run_bytes = self.sent_bytes + (self.end - self.start) + RUN_BYTES_MAX - self.run_end_bytes
        self.scheduler.spend(<int64_t> run_bytes // SENT_BYTES_PER_WORK)
        return self.flush_or_block()

    cdef int fail_run(self, error) except -1:
        """Close the connection: a frame may be half sent, and queued bytes lie in the shared scratch."""
        self.discard()
        self.client.failed(error)
        return 0

    cdef int request_delivery(self) except -1:
        """Schedule a run of the channel, since this client may take messages again."""
        if self.channel is not None and not self.gone:
            self.scheduler.request_wake(self.channel)
        return 0

    # messagePump and heartbeats.

    def message_pump(self):
        """Run as a greenlet for the life of the connection. Switches: yes."""
        try:
            while not self.gone:
                self.pump_once()
        except BaseException as error:
            self.client.failed(error)

    cdef int pump_once(self) except -1:
        if self.blocked and not self.withholding:
            self.wait_writable()
        elif self.heartbeat_wanted and not self.withholding:
            self.heartbeat_wanted = False
            self.put(FRAME_RESPONSE, HEARTBEAT, HEARTBEAT_BYTES)
            self.flush_or_block()
        else:
            self.pump_idle = True
            self.hub.switch()
            self.pump_idle = False
        return 0

    cdef int wake_pump(self) except -1:
        if self.pump_idle:
            self.pump_idle = False
            self.hub.loop.run_callback(self.pump_greenlet.switch)
        return 0

    cdef int wait_writable(self) except -1:
        """Wait until the socket is writable and send the rest. Switches: yes."""
        if self.write_watcher is None:
            self.write_watcher = self.hub.loop.io(self.fd, WRITE_EVENT)
        self.write_watcher.start(self.pump_greenlet.switch)
        try:
            self.hub.switch()
        finally:
            if self.write_watcher is not None:
                self.write_watcher.stop()
        # Meanwhile the IOLoop may have begun to wait for a sync; then it flushes afterwards.
        if not self.gone and not self.withholding and self.flush():
            self.blocked = False
            self.request_delivery()
            self.wake_drain_waiter()
        return 0

    def start_heartbeats(self, int64_t heartbeat_ns):
        """Begin or change heartbeats and their deadlines. heartbeat_ns: interval; 0 ends them."""
        cdef int64_t now_ns = mono_ns()
        self.heartbeat_ns = heartbeat_ns
        self.heartbeat_due_ns = now_ns + heartbeat_ns
        self.command_ns = now_ns
        self.scheduler.drop_timer(self)
        self.set_heartbeat_timer()

    cdef int set_heartbeat_timer(self) except -1:
        """Set the timer to the next heartbeat, or to the end of two intervals without a command."""
        if self.heartbeat_ns > 0 and not self.gone:
            self.scheduler.set_timer(self, min(self.heartbeat_due_ns, self.command_ns + 2 * self.heartbeat_ns))
        return 0

    cdef int on_time(self, int64_t now_ns) except -1:
        if self.gone or self.heartbeat_ns <= 0:
            return 0
        if self.withholding or self.executing:
            # The daemon does not read while it waits, so the client is not silent.
            self.command_ns = now_ns
        elif now_ns >= self.command_ns + 2 * self.heartbeat_ns:
            self.client.close_because("no command within two heartbeat intervals")
            return 0
        if self.drain_waiter is not None and now_ns >= self.draining_since_ns + self.heartbeat_ns:
            self.client.close_because("it does not read its answers")
            return 0
        if now_ns >= self.heartbeat_due_ns:
            self.heartbeat_due_ns = now_ns + self.heartbeat_ns
            self.heartbeat_wanted = True
            self.wake_pump()
        self.set_heartbeat_timer()
        return 0

    # End.

    def mark_gone(self):
        """Deliver nothing more; both greenlets end when they run next."""
        self.gone = True
        self.rdy = 0
        self.wake_drain_waiter()

    def stop(self):
        """End the messagePump greenlet; the descriptor may be closed after this. Switches: no."""
        self.gone = True
        self.scheduler.drop_timer(self)
        if self.write_watcher is not None:
            self.write_watcher.stop()
            self.write_watcher.close()
            self.write_watcher = None
        self.hub.loop.run_callback(self.end_pump)

    def end_pump(self):
        """Let the messagePump greenlet see that the connection is gone, and drop the reference to the connection."""
        pump, self.pump_greenlet = self.pump_greenlet, None
        if pump is not None and not pump.dead:
            pump.switch()
        self.client = None
