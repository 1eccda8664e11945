"""The IOLoop of a connection: receive, scan all complete commands, execute them, answer in one send.

    wait readable -> receive into the shared scratch, behind what was left -> execute ... execute -> flush -> hold

A pass is one recv. Its commands are executed in order by C code over the buffer; the bodies they carry are copied once,
into a log. Answers are queued and leave together; channels that got something are given a turn by the scheduler after
the pass. What remains of an incomplete command moves to a buffer of the connection's own, which grows with what
arrives and not with what a size field claims.

A pass runs in the callback of the loop that tells of the socket, and the greenlet is switched to only for what may
wait: a command of the Python half, a sync, a full socket, a transport, the end. So a connection that publishes or
finishes one message at a time costs no switch, which would take a tenth of the time of the message.

Commands that do not matter for throughput (IDENTIFY, AUTH, SUB, CLS) belong to the Python half, `command`. They may
switch greenlets, so the rest of the pass is put by first: no pointer into the scratch lives over a switch.

Checks and their order, codes and texts are those of nsqd: docs/nsq/tcp-protocol.md, "Commands". What publishes is
in pyx/tcp/publisher.pyx.

Invariants: 1. `held_bytes <= held_capacity`; between passes the scratch holds nothing. 2. one command at a time.
3. The watcher is active only while the greenlet is in `wait_readable` or runs; so nothing else is woken by it.
"""

from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove

from pyqd.hot.broker.channel cimport BEYOND_LEDGER, DONE, NOT_IN_FLIGHT
from pyqd.hot.broker.intake cimport QueuedBatch
from pyqd.hot.net.buffers cimport buffer_freed, buffer_grown
from pyqd.hot.net.sockets cimport RECEIVE_BROKEN, receive_some
from pyqd.hot.net.transport cimport Transport
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.primitives.guid cimport hex_to_id
from pyqd.hot.primitives.schedule cimport Scheduler
from pyqd.hot.tcp.limits cimport Limits
from pyqd.hot.tcp.publisher cimport text_of
from pyqd.hot.wire.frames cimport FRAME_ERROR
from pyqd.hot.wire.scanner cimport (
    COMMAND_AUTH,
    COMMAND_DMPUB,
    COMMAND_DPUB,
    COMMAND_FIN,
    COMMAND_IDENTIFY,
    COMMAND_MPUB,
    COMMAND_NOP,
    COMMAND_PUB,
    COMMAND_RDY,
    COMMAND_REQ,
    COMMAND_TOUCH,
    SCAN_NEED_MORE,
    SCAN_READY,
    Scan,
    parse_digits,
    read_be32,
    scan_line,
)

from pyqd.hot.net.transport import TransportError
from pyqd.primitives.errors import ClientError, StorageError

cdef uint64_t SCRATCH_BYTES = 256 << 10
cdef char* scratch = <char*> malloc(SCRATCH_BYTES)
if scratch == NULL:
    raise MemoryError

cdef enum:
    READ_EVENT = 1                       # libev's EV_READ
    FIN_LINE_BYTES = 21                  # FIN, space, 16 digits, LF
    ID_BYTES = 16
    MAGIC_BYTES = 4
    NS_PER_MS = 1000000
    FIRST_COMMAND_COUNT = 2              # the magic counts as one
    LEFT_SMALL_BYTES = 64 << 10          # what is left of a pass and fits the scratch again

cdef const char* MAGIC = b"  V2"


cdef class IoLoop(Publisher):
    """A connection's receiving half. `pyqd.tcp.connection.Connection` adds what is not hot."""

    def __init__(self, int fd, hub, Scheduler scheduler not None, Limits limits not None):
        self.fd = fd
        self.hub = hub
        self.scheduler = scheduler
        self.limits = limits
        self.publish_counts = {}
        self.unsynced = {}
        self.connected_ns = mono_ns()

    def __dealloc__(self):
        free(self.held)
        buffer_freed(self.held_capacity)

    def io_loop(self):
        """Run as a greenlet for the life of the connection. Switches: yes."""
        self.read_watcher = self.hub.loop.io(self.fd, READ_EVENT)
        try:
            self.read_watcher.start(self.on_readable)
            while not self.gone and not self.eof and not self.refused:
                self.serve_once()
            if self.blocked and not self.gone:
                self.wait_until_drained()
        except BaseException as error:
            self.failed(error)
        finally:
            self.read_watcher.stop()
            self.read_watcher.close()
            self.note_published()
            self.drop_queued_batch()
            self.finished()
            self.hold(NULL, 0)
            self.drop_queued()

    def on_readable(self):
        """Serve what has come, on the loop itself, and wake the greenlet where that is not all."""
        if self.is_waiting:
            # What comes before the answers may leave is read behind them.
            self.read_watcher.stop()
            return
        if self.magic_seen and self.transport is None and not self.gone:
            try:
                self.receive_and_run()
                if self.is_at_rest():
                    return
                if self.unsynced and not (self.gone or self.eof or self.refused or self.slow_call is not None):
                    return self.wait_at_rest()
                self.is_served = True
            except BaseException as error:
                self.pass_error = error
        self.io_greenlet.switch()

    cdef object wait_at_rest(self):
        """Have `on_durable` called when what was published is on stable storage, and read nothing until then."""
        topics, self.unsynced = self.unsynced, {}
        # The watcher stays: a client that waits for its answer sends nothing, and stopping it would take two calls.
        self.is_waiting = True
        self.tell_durable(topics, self.on_durable)

    def on_durable(self, error):
        """Let the answers leave, or refuse the publishes, and go on; on the loop itself where that is all."""
        self.is_waiting = False
        try:
            self.end_withholding(error)
            if self.is_at_rest():
                if not self.read_watcher.active:
                    self.read_watcher.start(self.on_readable)
                self.held_since_ns = mono_ns()
                return
            self.is_served = True
        except BaseException as failed:
            self.pass_error = failed
        self.io_greenlet.switch()

    cdef bint is_at_rest(self) noexcept:
        """Say whether nothing is left to do after a pass but to wait for more."""
        return not (
            self.gone or self.eof or self.refused or self.blocked or self.unsynced or self.slow_call is not None)

    cdef int serve_once(self) except -1:
        """Wait for the client and serve what has come. Switches: yes."""
        self.wait_readable()
        if self.pass_error is not None:
            error, self.pass_error = self.pass_error, None
            raise error
        if self.is_served:
            self.is_served = False
        elif self.gone or not self.receive_and_run():
            return 0
        self.wait_until_synced()
        while self.slow_call is not None and not self.gone:
            self.run_slow()
            self.wait_until_synced()
            if not self.gone and not self.refused and (self.held_bytes != 0 or self.eof):
                self.run_pass(self.held, self.held_bytes)
                self.wait_until_synced()
        if self.blocked and not self.gone:
            self.wait_until_drained()
        return 0

    cdef int wait_readable(self) except -1:
        """Switches: yes."""
        if self.transport is not None and self.transport.has_more():
            # The socket does not tell of it. Other connections get their turn first, as with a readable socket.
            self.read_watcher.stop()
            self.hub.loop.run_callback(self.io_greenlet.switch)
        elif not self.read_watcher.active:
            # Until now it was not the client that was waited for.
            self.held_since_ns = mono_ns()
            self.read_watcher.start(self.on_readable)
        self.hub.switch()
        return 0

    cdef bint receive_and_run(self) except -1:
        """Receive once and run a pass over what came, or over what is left at the end. Returns: whether there was one.

        Switches: no.
        """
        cdef char* buffer = NULL
        cdef uint64_t size_bytes = 0
        cdef ssize_t received = self.receive(&buffer, &size_bytes)
        if received < 0:
            return False
        if received == 0:
            self.eof = True
        self.run_pass(buffer, size_bytes)
        return True

    cdef int wait_until_drained(self) except -1:
        """Read no more commands until their answers can leave. Switches: yes."""
        self.read_watcher.stop()
        self.draining_since_ns = mono_ns()
        if self.heartbeat_ns > 0:
            self.scheduler.set_timer(self, self.draining_since_ns + self.heartbeat_ns)
        while self.blocked and not self.gone:
            self.io_draining = True
            self.hub.switch()
        self.io_draining = False
        return 0

    cdef int wait_until_synced(self) except -1:
        """Hold the pass's answers back until what it published is on stable storage. Switches: yes.

        All connections that wait share one sync. If it fails, none of the answers was true: they are dropped, and the
        client is told so and closed. What was queued before them is sent first, as it may be the rest of a message.
        """
        if not self.unsynced:
            return 0
        topics, self.unsynced = self.unsynced, {}
        failed = None
        self.read_watcher.stop()
        try:
            self.wait_durable(topics)
        except StorageError as error:
            failed = error
        return self.end_withholding(failed)

    cdef int end_withholding(self, error) except -1:
        """Send what was held back; if there is an error, drop it and tell the client. Raises: what is no StorageError.
        """
        if error is not None:
            if not isinstance(error, StorageError):
                raise error
            self.drop_withheld()
            self.refuse(ClientError("E_PUB_FAILED", f"PUB failed {error}"))
        self.withholding = False
        self.blocked = False
        self.flush_or_block()
        if self.heartbeat_wanted:
            self.wake_pump()
        if self.channel is not None and not self.gone:
            self.scheduler.request_wake(self.channel)
        return 0

    cdef ssize_t receive(self, char** buffer, uint64_t* size_bytes) except -2:
        """Receive behind what was left of the last pass. Returns: bytes; 0 at the end; -1 when none are there yet."""
        cdef ssize_t received
        cdef char* base = scratch
        cdef uint64_t capacity = SCRATCH_BYTES
        if self.held_bytes > LEFT_SMALL_BYTES:
            if self.held_capacity < 2 * self.held_bytes:
                base = <char*> realloc(self.held, 2 * self.held_bytes)
                if base == NULL:
                    raise MemoryError
                self.held = base
                buffer_grown(2 * self.held_bytes - self.held_capacity)
                self.held_capacity = 2 * self.held_bytes
            base = self.held
            capacity = self.held_capacity
        elif self.held_bytes != 0:
            memcpy(scratch, self.held, self.held_bytes)
        if self.transport is None:
            received = receive_some(self.fd, base + self.held_bytes, capacity - self.held_bytes)
        else:
            received = self.receive_through(base + self.held_bytes, capacity - self.held_bytes)
        if received < 0:
            if received == RECEIVE_BROKEN:
                self.broken = True
                self.eof = True
            return -1
        buffer[0] = base
        size_bytes[0] = self.held_bytes + <uint64_t> received
        return received

    cdef ssize_t receive_through(self, char* into, uint64_t capacity) except -3:
        """Receive through the transport. Returns: as receive_some. What cannot be decoded ends the connection."""
        try:
            return self.transport.receive(into, capacity)
        except TransportError as error:
            self.close_because(f"failed to read command - {error}")
            return RECEIVE_BROKEN

    def drain(self):
        """Send all that is queued. Switches: where the socket is full."""
        self.flush_or_block()
        if self.blocked and not self.gone:
            self.wait_until_drained()

    @property
    def buffer_bytes(self):
        """The memory that the connection's own buffers take, and those of its transports."""
        transport_bytes = 0 if self.transport is None else self.transport.held_bytes()
        return self.held_capacity + self.queued_block_bytes + (self.capacity if self.owned else 0) + transport_bytes

    def late(self, int64_t now_ns, int64_t first_ns, int64_t rest_ns):
        """Return what the client has been waited for too long; None where it has not.

        first_ns: for its first command. rest_ns: for the rest of a command that has begun. 0: as long as it takes.
        """
        if self.gone or self.is_waiting or self.read_watcher is None or not self.read_watcher.active:
            return None
        if self.command_count < FIRST_COMMAND_COUNT:
            return "no first command in time" if first_ns and now_ns - self.connected_ns > first_ns else None
        if rest_ns and self.held_bytes and now_ns - max(self.held_since_ns, self.command_ns) > rest_ns:
            return "the rest of a command did not come in time"
        return None

    def take_held(self):
        """Return what has been received and not been executed, and forget it."""
        held = self.held[:self.held_bytes] if self.held_bytes else b""
        self.hold(NULL, 0)
        return held

    def withhold(self, bint withholding):
        """Let nothing be sent, or (False) again."""
        if withholding:
            self.begin_withholding()
            return
        self.withholding = False
        if self.heartbeat_wanted:
            self.wake_pump()

    def upgrade(self, Transport transport not None):
        """Put a transport in place: from now on all that is sent and received goes through it."""
        assert self.start == self.end and not self.blocked and not self.withholding
        self.transport = transport

    cdef int run_pass(self, char* buffer, uint64_t size_bytes) except -1:
        """Execute every complete command of the buffer, send the answers, hold what is left."""
        cdef uint64_t at = 0
        cdef int64_t used
        cdef uint64_t commands = self.command_count
        self.wall_now_ns = wall_ns()
        if self.auth_needed:
            self.pass_ns = mono_ns()
        try:
            while at < size_bytes or self.eof:
                used = self.step(buffer + at, size_bytes - at)
                if used == 0:
                    break
                at += <uint64_t> used
                self.command_count += 1
                if self.gone or self.slow_call is not None:
                    break
            if self.open_topic is not None:
                self.close_batches()
        except ClientError as error:
            self.refuse_behind_batches(error)
        except BaseException:
            self.drop_batches()
            raise
        if self.command_count != commands:
            self.command_ns = mono_ns()
            if self.channel is not None and self.can_take() and self.channel.available():
                self.scheduler.request_wake(self.channel)
        self.flush_or_block()
        if self.queued is not None:
            self.keep_queued(buffer, at)
        if not self.gone and not self.refused:
            self.hold(buffer + at, size_bytes - at)
        return 0

    cdef int keep_queued(self, char* buffer, uint64_t end) except -1:
        """Keep the messages that are queued, which end at an offset of the pass's buffer, in a block of their own.

        The connection's own buffer becomes that block: a large batch is not copied.
        """
        if buffer == self.held:
            self.queued_block, self.queued_block_bytes = self.held, self.held_capacity
            self.held = NULL
            self.held_capacity = 0
            return 0
        self.queued_block = <char*> malloc(self.queued_bytes)
        if self.queued_block == NULL:
            raise MemoryError
        self.queued_block_bytes = self.queued_bytes
        buffer_grown(self.queued_bytes)
        memcpy(self.queued_block, buffer + end - self.queued_bytes, self.queued_bytes)
        self.queued.moved(self.queued_block + (self.queued.start - (buffer + end - self.queued_bytes)))
        return 0

    cdef int hold(self, const char* at, uint64_t size_bytes) except -1:
        """Keep the beginning of a command until the rest arrives; give the buffer back when there is none."""
        cdef char* grown
        if size_bytes == 0:
            free(self.held)
            buffer_freed(self.held_capacity)
            self.held = NULL
            self.held_capacity = 0
        elif self.held != NULL and self.held <= at < self.held + self.held_capacity:
            memmove(self.held, at, size_bytes)
        else:
            if self.held_capacity < size_bytes:
                grown = <char*> realloc(self.held, size_bytes)
                if grown == NULL:
                    raise MemoryError
                self.held = grown
                buffer_grown(size_bytes - self.held_capacity)
                self.held_capacity = size_bytes
            memcpy(self.held, at, size_bytes)
        if self.held_bytes == 0:
            self.held_since_ns = mono_ns()
        self.held_bytes = size_bytes
        return 0

    cdef int run_slow(self) except -1:
        """Let the Python half execute a command. Switches: it may."""
        call, self.slow_call = self.slow_call, None
        self.read_watcher.stop()
        try:
            if self.queued is not None:
                self.finish_queued(call[1][0])
            else:
                self.command(*call)
        except ClientError as error:
            self.refuse(error)
        self.flush_or_block()
        return 0

    def wait_stored(self, QueuedBatch queued not None):
        """Return when a queued batch is finished. Switches: yes."""
        queued.on_done = self.wake_stored
        while not queued.finished:
            self.hub.switch()

    def wake_stored(self):
        """Wake the greenlet that waits for a batch."""
        self.hub.loop.run_callback(self.switch_stored, self.queued)

    def switch_stored(self, queued):
        """Switch to the greenlet if it waits for this batch still."""
        if queued is not None and queued is self.queued:
            self.io_greenlet.switch()

    def refuse(self, error):
        """Queue an error frame, to leave with the pass; if it is fatal, close then."""
        data = error.frame()
        self.put(FRAME_ERROR, data, <uint32_t> len(data))
        self.log_refusal(error)
        if error.fatal:
            self.refused = True
            # Until the error has left nothing more is delivered: it would only count as an attempt.
            self.rdy = 0

    cdef int refuse_behind_batches(self, error) except -1:
        """Answer what the MPUBs before have come to, and refuse the command behind them, or them."""
        if self.open_topic is not None:
            try:
                self.close_batches()
            except ClientError as failure:
                error = failure
        self.refuse(error)
        return 0

    cdef int64_t step_magic(self, const char* at, uint64_t size_bytes) except -1:
        if size_bytes < MAGIC_BYTES:
            return 0
        if memcmp(at, MAGIC, MAGIC_BYTES) != 0:
            raise ClientError("E_BAD_PROTOCOL")
        self.magic_seen = True
        self.begin()
        return MAGIC_BYTES

    cdef int64_t step(self, char* at, uint64_t size_bytes) except -1:
        """Execute the command at `at`. Returns: the bytes it took, or 0 when it is not complete yet."""
        cdef CommandLine line
        cdef Scan scan
        cdef int64_t used
        cdef uint64_t guid = 0
        # Most commands are of exactly this form; anything odd about it takes the long way round.
        if (
            size_bytes >= FIN_LINE_BYTES and memcmp(at, <const char*> b"FIN ", 4) == 0
            and at[FIN_LINE_BYTES - 1] == c"\n" and self.state >= STATE_SUBSCRIBED and self.open_topic is None
            and hex_to_id(at + 4, &guid) == 0
        ):
            self.finish_message(at + 4)
            return FIN_LINE_BYTES
        if not self.magic_seen:
            return self.step_magic(at, size_bytes)
        scan = scan_line(at, size_bytes, &line)
        if scan == SCAN_NEED_MORE:
            return 0
        if scan != SCAN_READY:
            self.close_because("its command line is too long")
            return 0
        used = self.execute(&line, at + line.line_bytes, size_bytes - line.line_bytes)
        return 0 if used < 0 else used + line.line_bytes

    cdef int64_t execute(self, CommandLine* line, const char* body, uint64_t size_bytes) except -1:
        """Execute a command. body: what follows its line. Returns: the bytes of the body, or -2 for more."""
        if self.open_topic is not None and line.command != COMMAND_MPUB:
            self.close_batches()
        if self.tls_needed and line.command != COMMAND_IDENTIFY:
            raise ClientError("E_INVALID", b"cannot " + text_of(&line.name) + b" in current state (TLS required)")
        if line.command == COMMAND_PUB:
            return self.publish(line, body, size_bytes, False)
        if line.command == COMMAND_MPUB:
            return self.publish_batch(line, body, size_bytes)
        if line.command == COMMAND_FIN:
            self.require_subscribed("FIN")
            if line.param_count < 1:
                raise ClientError("E_INVALID", "FIN insufficient number of params")
            self.require_id(text_of(&line.params[0]))
            self.finish_message(line.params[0].at)
            return 0
        if line.command == COMMAND_RDY:
            self.set_ready(line)
            return 0
        if line.command == COMMAND_REQ:
            self.requeue_message(line)
            return 0
        if line.command == COMMAND_TOUCH:
            self.touch_message(line)
            return 0
        if line.command == COMMAND_DPUB:
            return self.publish(line, body, size_bytes, True)
        if line.command == COMMAND_DMPUB:
            return self.publish_deferred_batch(line, body, size_bytes)
        if line.command == COMMAND_NOP:
            return 0
        if line.command == COMMAND_IDENTIFY or line.command == COMMAND_AUTH:
            return self.with_body(line, body, size_bytes)
        params = [text_of(&line.params[index]) for index in range(min(line.param_count, 2))]
        self.slow_call = (text_of(&line.name), params, None)
        return 0

    def require_subscribed(self, name):
        """Raise unless the client is subscribed or closing."""
        if self.state != STATE_SUBSCRIBED and self.state != STATE_CLOSING:
            raise ClientError("E_INVALID", f"cannot {name} in current state")

    def require_id(self, text):
        """Raise unless the text has the length of a message id."""
        if len(text) != ID_BYTES:
            raise ClientError("E_INVALID", "invalid message ID")

    cdef int finish_message(self, const char* id16) except -1:
        """FIN. Source: docs/nsq/tcp-protocol.md, "FIN"."""
        cdef uint64_t guid = 0
        cdef int answer = NOT_IN_FLIGHT
        if hex_to_id(id16, &guid) == 0:
            answer = self.channel.finish(self, guid)
        if answer == BEYOND_LEDGER:
            self.finish_with_growth(guid, id16[:ID_BYTES])
        elif answer != DONE:
            self.refuse_answer("FIN", id16[:ID_BYTES], answer)
        return 0

    def finish_with_growth(self, uint64_t guid, message_id):
        """FIN of a message for which the ledger has to grow; where it cannot, the message stays in flight."""
        try:
            self.channel.make_finishable(guid)
        except StorageError as error:
            self.refuse_for_storage("FIN", message_id, error)
        else:
            self.channel.finish(self, guid)

    def refuse_for_storage(self, name, message_id, error):
        """Answer a FIN or REQ that the disk has no room for; the message stays in flight, the connection goes on."""
        self.note_failed_write(error)
        self.refuse(ClientError(
            f"E_{name}_FAILED", b"%s %s failed %s" % (name.encode(), message_id, str(error).encode())))

    def refuse_answer(self, name, message_id, answer):
        """Answer a FIN, REQ or TOUCH that found no message of this client's; the connection goes on."""
        reason = b"ID not in flight" if answer == NOT_IN_FLIGHT else b"client does not own message"
        self.refuse(ClientError(f"E_{name}_FAILED", b"%s %s failed %s" % (name.encode(), message_id, reason)))

    cdef int requeue_message(self, CommandLine* line) except -1:
        """REQ. Source: docs/nsq/tcp-protocol.md, "REQ"."""
        cdef int64_t value = 0
        cdef int64_t delay_ns
        cdef uint64_t guid = 0
        cdef int answer = NOT_IN_FLIGHT
        self.require_subscribed("REQ")
        if line.param_count < 2:
            raise ClientError("E_INVALID", "REQ insufficient number of params")
        self.require_id(text_of(&line.params[0]))
        if not parse_digits(line.params[1].at, line.params[1].size_bytes, &value):
            raise ClientError("E_INVALID", b"REQ could not parse timeout " + text_of(&line.params[1]))
        delay_ns = <int64_t> (<uint64_t> value * <uint64_t> NS_PER_MS)
        if delay_ns < 0 or delay_ns > self.limits.max_req_timeout_ns:
            self.log_clamped(value)
            delay_ns = 0 if delay_ns < 0 else self.limits.max_req_timeout_ns
        if hex_to_id(line.params[0].at, &guid) == 0:
            try:
                answer = self.channel.requeue(self, guid, delay_ns)
            except StorageError as error:
                self.refuse_for_storage("REQ", text_of(&line.params[0]), error)
                return 0
        if answer != DONE:
            self.refuse_answer("REQ", text_of(&line.params[0]), answer)
        return 0

    cdef int touch_message(self, CommandLine* line) except -1:
        """TOUCH. Source: docs/nsq/tcp-protocol.md, "TOUCH"."""
        cdef uint64_t guid = 0
        cdef int answer = NOT_IN_FLIGHT
        self.require_subscribed("TOUCH")
        if line.param_count < 1:
            raise ClientError("E_INVALID", "TOUCH insufficient number of params")
        self.require_id(text_of(&line.params[0]))
        if hex_to_id(line.params[0].at, &guid) == 0:
            answer = self.channel.touch(self, guid, mono_ns())
        if answer != DONE:
            self.refuse_answer("TOUCH", text_of(&line.params[0]), answer)
        return 0

    cdef int set_ready(self, CommandLine* line) except -1:
        """RDY. Source: docs/nsq/tcp-protocol.md, "RDY"."""
        cdef int64_t value = 1
        if self.state == STATE_CLOSING:
            return 0
        if self.state != STATE_SUBSCRIBED:
            raise ClientError("E_INVALID", "cannot RDY in current state")
        if line.param_count > 0 and not parse_digits(line.params[0].at, line.params[0].size_bytes, &value):
            raise ClientError("E_INVALID", b"RDY could not parse count " + text_of(&line.params[0]))
        if value < 0 or value > self.limits.max_rdy_count:
            raise ClientError("E_INVALID", f"RDY count {value} out of range 0-{self.limits.max_rdy_count}")
        self.rdy = value
        return 0

    cdef int64_t with_body(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1:
        """IDENTIFY and AUTH: wait for the body, then leave the rest to the Python half.

        Source: docs/nsq/tcp-protocol.md, "IDENTIFY", "AUTH".
        """
        cdef int32_t size
        name = text_of(&line.name)
        text = name.decode("ascii")
        if self.state != STATE_INIT:
            raise ClientError("E_INVALID", f"cannot {text} in current state")
        if line.command == COMMAND_AUTH and line.param_count != 0:
            raise ClientError("E_INVALID", "AUTH invalid number of parameters")
        if size_bytes < 4:
            return self.incomplete(line, "E_BAD_BODY", "failed to read body size")
        size = read_be32(at)
        if size > self.limits.max_body_bytes or size <= 0:
            self.refuse_size("E_BAD_BODY", name, "body", "body", size, self.limits.max_body_bytes)
        if size_bytes - 4 < <uint64_t> size:
            return self.incomplete(line, "E_BAD_BODY", "failed to read body")
        self.slow_call = (name, [], at[4:4 + size])
        return 4 + size

    def begin(self):
        raise NotImplementedError("the connection knows what follows the magic")

    def command(self, name, params, body):
        raise NotImplementedError("the connection executes what is not hot")

    def tell_durable(self, dict topics, told):
        """Have told(error) called when the topics are on stable storage, or cannot be. Switches: no."""
        raise NotImplementedError("the connection knows who syncs")

    def wait_durable(self, topics):
        raise NotImplementedError("the connection knows who syncs")

    def finished(self):
        raise NotImplementedError("the connection knows what to clean up")

    def log_refusal(self, error):
        raise NotImplementedError("the connection logs")

    def log_clamped(self, value_ms):
        raise NotImplementedError("the connection logs")
