"""Input of a client's connection: nsqd's IOLoop.

    wait readable -> receive -> step ... step -> flush -> save the rest

A *pass* is one receive of at most 256 KiB and the execution of the complete commands in it. The receive goes to a
scratch buffer that all connections share; an incomplete command at its end moves to a buffer of the connection's own,
which grows with the received bytes and never with the value of a size field. Commands are executed in order by C code,
and the bodies of messages are copied once, into a log. The answers of a pass leave in one send. Channels with new
messages are run by the scheduler after the pass.

A pass runs in the callback of the event loop that reports the socket. The greenlet is switched to only if something may
wait: a command of the Python half, a sync, a full socket, a transport, the end. So a connection that publishes or
finishes one message at a time costs no greenlet switch, which would take a tenth of the time of the message.

IDENTIFY, AUTH, SUB and CLS are rare and are executed by the Python half (`client.command`). They may switch greenlets,
so the rest of the pass is saved first: no pointer into the scratch survives a switch.

A pass takes a millisecond or two, unless its commands do more than their bytes tell: a REQ with a delay may make a file
of notes, a PUB may make a topic, a refusal is a line in the log. So the pass looks at the clock behind each of these,
and behind some dozens of others. After PASS_NS_MAX it saves the rest and waits for another turn, in the queue in which
all long work of the loop waits.

The parts of a connection call each other in one direction: IoLoop -> Publisher -> ClientOutput. The publishing commands
are in pyx/tcp/publisher.pyx, everything that is sent goes through pyx/tcp/output.pyx.

Checks and their order, codes and texts follow nsqd: docs/nsq/tcp-protocol.md, "Commands".

Invariants: 1. `partial_bytes <= partial_capacity`. 2. One command is executed at a time. 3. The watcher is active only
while the greenlet waits in `wait_readable`, or runs; so no other wait of the greenlet is ended by the watcher.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove

from pyqd.hot.broker.channel cimport BEYOND_LEDGER, DONE, NOT_IN_FLIGHT, ChannelCore
from pyqd.hot.broker.intake cimport QueuedBatch
from pyqd.hot.broker.slots cimport LOADED_AT_ONCE
from pyqd.hot.net.buffers cimport buffer_freed, buffer_grown
from pyqd.hot.net.sockets cimport READ_EVENT, RECEIVE_BROKEN, receive_some
from pyqd.hot.net.transport cimport CodecTransport
from pyqd.hot.primitives.clock cimport NS_PER_MS, mono_ns, wall_ns
from pyqd.hot.primitives.guid cimport hex_to_id
from pyqd.hot.tcp.output cimport ClientOutput
from pyqd.hot.tcp.publisher cimport (
    NEEDS_BYTES,
    NEEDS_PERMISSION,
    ProtocolLimits,
    Publisher,
    size_error,
    truncation_error,
)
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
    PARAMS_KEPT,
    SCAN_NEED_MORE,
    SCAN_READY,
    CommandLine,
    Scan,
    Text,
    parse_digits,
    read_be32,
    scan_line,
    text_of,
)

from pyqd.hot.net.transport import TransportError
from pyqd.primitives.errors import CommandError, StorageError
from pyqd.primitives.goquote import go_quote

cdef enum Pending:
    # Reason for which the pass stopped, and the work of the greenlet before the next pass.
    PENDING_NOTHING = 0
    PENDING_COMMAND = 1                  # execute a command of the Python half
    PENDING_RENEWAL = 2                  # renew the client's permissions, then execute the command again
    PENDING_STORE = 3                    # wait until queued messages are stored, then answer them
    PENDING_TURN = 4                     # let the loop serve others, then execute the rest of the pass

cdef enum Stage:
    # AWAITS_MAGIC -> READING; from there and back: AWAITS_SYNC, PASS_DONE, or both in this order.
    AWAITS_MAGIC = 0
    READING = 1
    AWAITS_SYNC = 2                      # `on_durable` will be called; nothing is read before
    PASS_DONE = 3                        # a callback ran a pass, or its error is stored: the greenlet does the rest

cdef enum Input:
    # Only goes up.
    INPUT_OPEN = 0
    INPUT_ENDED = 1                      # the peer sends nothing more
    INPUT_REFUSED = 2                    # a fatal error was answered: the answers leave, nothing more is read

cdef enum ClientState:                   # nsqd's numbers; /stats shows them
    CLIENT_INIT = 0
    CLIENT_SUBSCRIBED = 3
    CLIENT_CLOSING = 4

# For the Python half.
STATE_INIT = CLIENT_INIT
STATE_SUBSCRIBED = CLIENT_SUBSCRIBED
STATE_CLOSING = CLIENT_CLOSING

cdef enum:
    FIN_LINE_BYTES = 21                  # FIN, space, 16 digits, LF
    ID_BYTES = 16
    MAGIC_BYTES = 4
    FIRST_COMMAND_COUNT = 2              # the magic counts as one
    PARTIAL_SMALL_BYTES = 64 << 10       # up to this size an incomplete command is copied back to the scratch
    LOOK_COMMANDS = 64                   # cheap commands between two looks at the clock, of a microsecond at most each

cdef const char* MAGIC = b"  V2"

cdef int64_t PASS_NS_MAX = 2 * NS_PER_MS
cdef tuple NO_COMMAND = (b"", [], None)

cdef uint64_t SCRATCH_BYTES = 256 << 10
cdef char* scratch = <char*> malloc(SCRATCH_BYTES)
if scratch == NULL:
    raise MemoryError


def set_pass_limit_for_tests(int64_t pass_ns_max):
    """Set the time after which a pass ends. 0: at its second look at the clock, or behind its first slow command.

    Returns: the former.
    """
    global PASS_NS_MAX
    former, PASS_NS_MAX = PASS_NS_MAX, pass_ns_max
    return former


cdef int require_id(const Text* text) except -1:
    if text.size_bytes != ID_BYTES:
        raise CommandError("E_INVALID", "invalid message ID")
    return 0


@cython.final
cdef class IoLoop:
    """Receiving half of a connection. client: Python half of the connection."""

    cdef object client                   # Python half of the connection; None after its end
    cdef object hub                      # gevent's
    cdef ClientOutput output
    cdef Publisher publisher
    cdef ProtocolLimits limits
    cdef public object greenlet          # runs `io_loop`
    cdef public int state                # a ClientState
    cdef public bint tls_needed          # IDENTIFY is the only command before TLS
    cdef Input input
    cdef readonly uint64_t command_count # the magic counts as one

    # Received bytes.
    cdef int fd
    cdef CodecTransport transport             # None: bytes come from the socket unchanged
    cdef char* partial                   # own buffer with an incomplete command; NULL: there is none
    cdef uint64_t partial_bytes
    cdef uint64_t partial_capacity
    cdef int64_t partial_since_ns        # when the wait for the client began; nothing was received before
    cdef int64_t connected_ns

    # The current pass.
    cdef int until_look                  # commands before the next look at the clock; 0: it comes behind this one
    cdef int64_t pass_end_ns             # monotonic; 0: neither a look nor a slow command yet

    # Waits.
    cdef object read_watcher
    cdef Stage stage
    cdef object pass_error               # raised by the pass of a callback; it ends the greenlet
    cdef Pending pending
    cdef tuple pending_command           # (name, parameters, body)

    def __init__(
        self, ClientOutput output not None, Publisher publisher not None, ProtocolLimits limits not None, client,
    ):
        self.output = output
        self.publisher = publisher
        self.limits = limits
        self.client = client
        self.fd = output.fd
        self.hub = output.hub
        self.connected_ns = mono_ns()

    def __dealloc__(self):
        free(self.partial)
        buffer_freed(self.partial_capacity)

    # The loop.

    def io_loop(self):
        """Run as a greenlet for the life of the connection. Switches: yes."""
        self.read_watcher = self.hub.loop.io(self.fd, READ_EVENT)
        try:
            self.read_watcher.start(self.on_readable)
            while not self.output.gone and self.input == INPUT_OPEN:
                self.serve_once()
            self.wait_until_drained()
        except BaseException as error:
            self.client.failed(error)
        finally:
            self.read_watcher.stop()
            self.read_watcher.close()
            self.publisher.note_published()
            self.publisher.drop_queued()
            self.client.finished()
            self.save_partial(NULL, 0)
            self.output.discard()
            # The references between the connection and its parts are a cycle, which the collector finds late.
            self.publisher.end()
            self.client = None

    def on_readable(self):
        """Run a pass in the event loop's callback; wake the greenlet if work remains that may wait."""
        if self.stage == AWAITS_SYNC:
            # Commands that arrive before the answers are sent are read after them.
            self.read_watcher.stop()
            return
        if self.stage == READING and self.transport is None and not self.output.gone:
            try:
                self.receive_and_run()
                if self.is_at_rest():
                    return
                if self.publisher.unsynced and not self.output.gone and (
                    self.input == INPUT_OPEN and self.pending == PENDING_NOTHING
                ):
                    self.notify_when_durable()
                    return
            except BaseException as error:
                self.pass_error = error
            self.stage = PASS_DONE
        self.greenlet.switch()

    cdef int notify_when_durable(self) except -1:
        """Arrange that `on_durable` runs when the published messages are on stable storage; read nothing before."""
        # The watcher stays active: a client that waits for its OK sends nothing, and a stop costs two calls.
        self.stage = AWAITS_SYNC
        self.client.notify_when_durable(self.publisher.take_unsynced(), self.on_durable)
        return 0

    def on_durable(self, error):
        """Send the answers, or refuse the publishes, and read again; wake the greenlet if work remains for it."""
        assert self.stage == AWAITS_SYNC
        self.stage = READING
        try:
            self.end_withholding(error)
            if self.is_at_rest():
                if not self.read_watcher.active:
                    self.read_watcher.start(self.on_readable)
                self.partial_since_ns = mono_ns()
                return
        except BaseException as failed:
            self.pass_error = failed
        self.stage = PASS_DONE
        self.greenlet.switch()

    cdef bint is_at_rest(self) noexcept:
        """Return whether the connection has nothing to do before it receives more."""
        return not (
            self.output.gone or self.input != INPUT_OPEN or self.output.blocked or self.publisher.unsynced
            or self.pending != PENDING_NOTHING)

    cdef bint is_served(self) noexcept:
        return not self.output.gone and self.input != INPUT_REFUSED

    cdef int serve_once(self) except -1:
        """Wait for the client and serve it. Switches: yes."""
        self.wait_readable()
        if self.stage == PASS_DONE:
            self.stage = READING
            if self.pass_error is not None:
                error, self.pass_error = self.pass_error, None
                raise error
        elif self.output.gone or not self.receive_and_run():
            return 0
        self.wait_until_synced()
        # A failed sync refuses the publishes before the command, so the command is not executed.
        while self.pending != PENDING_NOTHING and self.is_served():
            self.run_pending()
            self.wait_until_synced()
            if self.is_served() and (self.partial_bytes != 0 or self.input == INPUT_ENDED):
                self.run_pass(self.partial, self.partial_bytes)
                self.wait_until_synced()
        self.wait_until_drained()
        return 0

    cdef int wait_readable(self) except -1:
        """Wait until the client has sent something. Switches: yes."""
        if self.transport is not None and self.transport.has_more():
            # The socket does not report these bytes. Other connections are served first, as with a readable socket.
            self.read_watcher.stop()
            self.hub.loop.run_callback(self.greenlet.switch)
        elif not self.read_watcher.active:
            # The wait for the client begins only now.
            self.partial_since_ns = mono_ns()
            self.read_watcher.start(self.on_readable)
        self.hub.switch()
        return 0

    cdef int wait_until_drained(self) except -1:
        """Execute no more commands until the answers are sent. Switches: if the socket is full."""
        if self.output.blocked and not self.output.gone:
            self.read_watcher.stop()
            self.output.wait_until_drained(self.greenlet)
        return 0

    cdef int wait_until_synced(self) except -1:
        """Withhold the answers of the pass until its messages are on stable storage. Switches: yes.

        All connections that wait share one sync. If the sync fails, the withheld answers are dropped, and the client
        gets the error and is closed. Bytes queued before them are sent first: they may be the rest of a message.
        """
        if not self.publisher.unsynced:
            return 0
        failed = None
        self.read_watcher.stop()
        try:
            self.client.wait_durable(self.publisher.take_unsynced())
        except StorageError as error:
            failed = error
        return self.end_withholding(failed)

    cdef int end_withholding(self, error) except -1:
        """Send the withheld answers, or, after an error, drop them and refuse the publishes.

        Raises: an error that is no StorageError.
        """
        if error is not None:
            if not isinstance(error, StorageError):
                raise error
            self.output.drop_withheld()
            self.refuse(CommandError("E_PUB_FAILED", f"PUB failed {error}"))
        return self.output.end_withholding()

    cdef int run_pending(self) except -1:
        """Execute the command, or the wait, that stopped the pass. Switches: possibly."""
        cdef Pending pending = self.pending
        (name, params, body), self.pending_command = self.pending_command, None
        self.pending = PENDING_NOTHING
        self.read_watcher.stop()
        self.output.executing = True
        try:
            if pending == PENDING_TURN:
                self.client.wait_for_turn()
            elif pending == PENDING_STORE:
                self.wait_stored()
                self.publisher.finish_queued(name)
            elif pending == PENDING_RENEWAL:
                self.client.renew_permissions(name)
            else:
                self.client.command(name, params, body)
        except CommandError as error:
            self.refuse(error)
        finally:
            self.output.executing = False
        return self.output.flush_or_block()

    cdef int wait_stored(self) except -1:
        """Wait until the publisher's queued messages are stored or refused. Switches: yes."""
        cdef QueuedBatch queued = self.publisher.queued
        queued.on_done = self.wake_stored
        while not queued.finished:
            self.hub.switch()
        return 0

    def wake_stored(self):
        """Wake the greenlet, which waits for the queued messages."""
        self.hub.loop.run_callback(self.switch_stored, self.publisher.queued)

    def switch_stored(self, queued):
        """Switch to the greenlet unless it has stopped waiting for these messages."""
        if queued is not None and queued is self.publisher.queued:
            self.greenlet.switch()

    def drain(self):
        """Send all queued bytes. Switches: if the socket is full."""
        self.output.flush_or_block()
        self.wait_until_drained()

    def timeout_reason(self, int64_t now_ns, int64_t first_ns, int64_t rest_ns):
        """Return why the client has taken too long to send something, or None.

        first_ns: bound for its first command. rest_ns: bound for the rest of an incomplete command. 0: no bound.
        """
        if self.output.gone or self.stage == AWAITS_SYNC or self.read_watcher is None or not self.read_watcher.active:
            return None
        if self.command_count < FIRST_COMMAND_COUNT:
            return "no first command in time" if first_ns and now_ns - self.connected_ns > first_ns else None
        if rest_ns and self.partial_bytes and (
            now_ns - max(self.partial_since_ns, self.output.command_ns) > rest_ns
        ):
            return "the rest of a command did not come in time"
        return None

    # Receive.

    cdef bint receive_and_run(self) except -1:
        """Receive once and run a pass over the result. Returns: whether a pass was run. Switches: no."""
        cdef char* buffer = NULL
        cdef uint64_t size_bytes = 0
        cdef ssize_t received = self.receive(&buffer, &size_bytes)
        if received < 0:
            return False
        if received == 0:
            self.input = INPUT_ENDED
        self.run_pass(buffer, size_bytes)
        return True

    cdef ssize_t receive(self, char** buffer, uint64_t* size_bytes) except -2:
        """Receive behind the rest of the last pass. Returns: bytes; 0 at the end; -1 if there are none yet.

        buffer, size_bytes: become the place and size of the rest and the received bytes together.
        """
        cdef ssize_t received
        cdef char* base = scratch
        cdef uint64_t capacity = SCRATCH_BYTES
        assert self.partial_bytes <= self.partial_capacity
        if self.partial_bytes > PARTIAL_SMALL_BYTES:
            if self.partial_capacity < 2 * self.partial_bytes:
                self.grow_partial(2 * self.partial_bytes)
            base = self.partial
            capacity = self.partial_capacity
        elif self.partial_bytes != 0:
            memcpy(scratch, self.partial, self.partial_bytes)
        if self.transport is None:
            received = receive_some(self.fd, base + self.partial_bytes, capacity - self.partial_bytes)
        else:
            received = self.receive_through(base + self.partial_bytes, capacity - self.partial_bytes)
        if received < 0:
            if received == RECEIVE_BROKEN:
                self.output.broken = True
                self.input = INPUT_ENDED
            return -1
        buffer[0] = base
        size_bytes[0] = self.partial_bytes + <uint64_t> received
        return received

    cdef ssize_t receive_through(self, char* into, uint64_t capacity) except -3:
        """Receive through the transport. Returns: as receive_some. Bytes that cannot be decoded end the connection."""
        try:
            return self.transport.receive(into, capacity)
        except TransportError as error:
            self.client.close_because(f"failed to read command - {error}")
            return RECEIVE_BROKEN

    def upgrade(self, CodecTransport transport not None):
        """Receive and send everything through a transport from now on."""
        self.output.upgrade(transport)
        self.transport = transport

    cdef int grow_partial(self, uint64_t capacity) except -1:
        """Give the buffer for an incomplete command this capacity. Raises: MemoryError."""
        cdef char* grown = <char*> realloc(self.partial, capacity)
        if grown == NULL:
            raise MemoryError
        self.partial = grown
        buffer_grown(capacity - self.partial_capacity)
        self.partial_capacity = capacity
        return 0

    cdef int save_partial(self, const char* at, uint64_t size_bytes) except -1:
        """Save an incomplete command until its rest arrives; free the buffer if there is none (size 0)."""
        if size_bytes == 0:
            free(self.partial)
            buffer_freed(self.partial_capacity)
            self.partial = NULL
            self.partial_capacity = 0
        elif self.partial != NULL and self.partial <= at < self.partial + self.partial_capacity:
            memmove(self.partial, at, size_bytes)
        else:
            if self.partial_capacity < size_bytes:
                self.grow_partial(size_bytes)
            memcpy(self.partial, at, size_bytes)
        if self.partial_bytes == 0:
            self.partial_since_ns = mono_ns()
        self.partial_bytes = size_bytes
        assert self.partial_bytes <= self.partial_capacity
        return 0

    cdef int save_queued(self, char* buffer, uint64_t end) except -1:
        """Save the publisher's queued messages, which end at this offset of the pass's buffer, beyond the pass.

        The buffer of the connection's own becomes their block: a large batch is not copied.
        """
        if buffer == self.partial:
            self.publisher.adopt_block(self.partial, self.partial_capacity)
            self.partial = NULL
            self.partial_capacity = 0
            return 0
        return self.publisher.copy_queued(buffer + end)

    def take_partial(self):
        """Return the received bytes that were not executed, and drop them here."""
        partial = self.partial[:self.partial_bytes] if self.partial_bytes else b""
        self.save_partial(NULL, 0)
        return partial

    @property
    def buffer_bytes(self):
        """Memory of the connection's own buffers, those of its transports included."""
        return self.partial_capacity + self.publisher.queued_block_bytes + self.output.owned_bytes()

    # Execute.

    cdef int run_pass(self, char* buffer, uint64_t size_bytes) except -1:
        """Execute every complete command of the buffer, send the answers, save the rest."""
        cdef uint64_t at = 0
        cdef int64_t used
        cdef uint64_t commands = self.command_count
        cdef Publisher publisher = self.publisher
        assert self.pending == PENDING_NOTHING
        self.output.acted_ns = wall_ns()
        self.until_look = LOOK_COMMANDS
        self.pass_end_ns = 0
        publisher.begin_pass(self.output.acted_ns, self.input == INPUT_ENDED)
        try:
            while at < size_bytes or self.input == INPUT_ENDED:
                used = self.step(buffer + at, size_bytes - at)
                if used == 0:
                    break
                at += <uint64_t> used
                self.command_count += 1
                if self.output.gone or self.pending != PENDING_NOTHING:
                    break
                self.until_look -= 1
                if self.until_look < 0 and at < size_bytes and self.is_over_time():
                    self.pending = PENDING_TURN
                    self.pending_command = NO_COMMAND
                    break
            if publisher.open_topic is not None:
                publisher.close_batches()
        except CommandError as error:
            self.refuse_after_batches(error)
        except BaseException:
            publisher.drop_batches()
            raise
        assert at <= size_bytes
        if self.command_count != commands:
            self.note_commands()
        self.output.flush_or_block()
        if publisher.queued is not None:
            self.save_queued(buffer, at)
        if self.is_served():
            self.save_partial(buffer + at, size_bytes - at)
        return 0

    cdef int note_commands(self) except -1:
        """Handle the end of a pass with commands: the client is alive, and may take more messages than before."""
        cdef ChannelCore channel = self.output.channel
        self.output.command_ns = mono_ns()
        if channel is not None and self.output.can_take() and channel.dispatcher.available() != 0:
            self.output.request_delivery()
        return 0

    cdef int note_more(self, uint32_t count) noexcept:
        """Count commands that were executed together with one that `run_pass` counts."""
        self.command_count += count
        self.until_look -= <int> count
        return 0

    cdef int note_slow(self) noexcept:
        """Let the pass look at the clock behind the command that is about to be executed."""
        self.until_look = 0
        if self.pass_end_ns == 0:
            self.pass_end_ns = mono_ns() + PASS_NS_MAX
        return 0

    cdef bint is_over_time(self) noexcept:
        """Look at the clock. Returns: whether PASS_NS_MAX has passed since the first look or the first slow command."""
        cdef int64_t now_ns = mono_ns()
        self.until_look = LOOK_COMMANDS
        if self.pass_end_ns == 0:
            self.pass_end_ns = now_ns + PASS_NS_MAX
            return False
        return now_ns >= self.pass_end_ns

    cdef int64_t step(self, char* at, uint64_t size_bytes) except -1:
        """Execute the command at `at`. Returns: the bytes it took, or 0 if it is incomplete."""
        cdef CommandLine line
        cdef Scan scan
        cdef int64_t used
        # Most commands are a FIN of one form. Any other form takes the general way.
        if at[0] == c"F" and self.state >= CLIENT_SUBSCRIBED and self.publisher.open_topic is None:
            used = self.finish_run(at, size_bytes)
            if used != 0:
                return used
        if self.stage == AWAITS_MAGIC:
            return self.step_magic(at, size_bytes)
        scan = scan_line(at, size_bytes, &line)
        if scan == SCAN_NEED_MORE:
            return 0
        if scan != SCAN_READY:
            self.client.close_because("its command line is too long")
            return 0
        used = self.execute(&line, at + line.line_bytes, size_bytes - line.line_bytes)
        return 0 if used < 0 else used + line.line_bytes

    cdef int64_t finish_run(self, const char* at, uint64_t size_bytes) except -1:
        """Execute the complete FINs at `at`, up to the first that is refused or not of the usual form.

        Returns: the bytes they take, 0 for none. Source: docs/nsq/tcp-protocol.md, "FIN".
        """
        cdef uint64_t[LOADED_AT_ONCE] guids
        cdef ChannelCore channel = self.output.channel
        cdef uint32_t count = 0
        cdef uint32_t index
        cdef int answer
        while (
            count < LOADED_AT_ONCE and size_bytes >= FIN_LINE_BYTES and memcmp(at, <const char*> b"FIN ", 4) == 0
            and at[FIN_LINE_BYTES - 1] == c"\n" and hex_to_id(at + 4, &guids[count]) == 0
        ):
            at += FIN_LINE_BYTES
            size_bytes -= FIN_LINE_BYTES
            count += 1
        if count == 0:
            return 0
        if count > 1:
            channel.slots.load_slots_ahead(guids, count)
        at -= count * FIN_LINE_BYTES
        for index in range(count):
            answer = channel.finish(self.output, guids[index])
            if answer != DONE:
                count = index + 1
                self.finish_refused(guids[index], (at + index * FIN_LINE_BYTES + 4)[:ID_BYTES], answer)
                break
        self.note_more(count - 1)
        return count * FIN_LINE_BYTES

    cdef int64_t step_magic(self, const char* at, uint64_t size_bytes) except -1:
        if size_bytes < MAGIC_BYTES:
            return 0
        if memcmp(at, MAGIC, MAGIC_BYTES) != 0:
            raise CommandError("E_BAD_PROTOCOL") from ValueError(f"magic {go_quote(at[:MAGIC_BYTES]).decode()}")
        self.stage = READING
        self.client.begin()
        return MAGIC_BYTES

    cdef int64_t execute(self, CommandLine* line, const char* body, uint64_t size_bytes) except -1:
        """Execute a command. body: the bytes behind its line. Returns: the bytes of its body, or a negative number."""
        cdef int64_t used
        cdef uint32_t commands = 1
        cdef Publisher publisher = self.publisher
        cdef void* topic = <void*> publisher.topic
        if publisher.open_topic is not None and line.command != publisher.open_command:
            publisher.close_batches()
        if self.tls_needed and line.command != COMMAND_IDENTIFY:
            raise CommandError("E_INVALID", b"cannot " + text_of(&line.name) + b" in current state (TLS required)")
        if line.command == COMMAND_PUB:
            used = publisher.publish(line, body, size_bytes, False, &commands)
            self.note_more(commands - 1)
        elif line.command == COMMAND_MPUB:
            used = publisher.publish_batch(line, body, size_bytes)
        elif line.command == COMMAND_DPUB:
            used = publisher.publish(line, body, size_bytes, True, &commands)
            self.note_more(commands - 1)
        elif line.command == COMMAND_DMPUB:
            self.note_slow()
            used = publisher.publish_deferred_batch(line, body, size_bytes)
        else:
            return self.execute_other(line, body, size_bytes)
        if <void*> publisher.topic != topic:
            self.until_look = 0
        if used == NEEDS_PERMISSION:
            self.set_pending(PENDING_RENEWAL, line, None)
        elif publisher.queued is not None:
            self.set_pending(PENDING_STORE, line, None)
        return used

    cdef int64_t execute_other(self, CommandLine* line, const char* body, uint64_t size_bytes) except -1:
        """Execute a command that does not publish. Returns: as `execute`."""
        if line.command == COMMAND_FIN:
            self.require_subscribed("FIN")
            if line.param_count < 1:
                raise CommandError("E_INVALID", "FIN insufficient number of params")
            require_id(&line.params[0])
            self.finish_message(line.params[0].at)
        elif line.command == COMMAND_RDY:
            self.set_ready(line)
        elif line.command == COMMAND_REQ:
            self.requeue_message(line)
        elif line.command == COMMAND_TOUCH:
            self.touch_message(line)
        elif line.command == COMMAND_IDENTIFY or line.command == COMMAND_AUTH:
            return self.with_body(line, body, size_bytes)
        elif line.command != COMMAND_NOP:
            self.set_pending(PENDING_COMMAND, line, None)
        return 0

    cdef int set_pending(self, Pending pending, CommandLine* line, body) except -1:
        """Stop the pass for something that the greenlet does, with the name and the parameters of the command."""
        assert self.pending == PENDING_NOTHING
        params = [text_of(&line.params[index]) for index in range(min(line.param_count, <uint32_t> PARAMS_KEPT))]
        self.pending = pending
        self.pending_command = (text_of(&line.name), params, body)
        return 0

    cdef int64_t with_body(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1:
        """IDENTIFY and AUTH: wait for the body, then leave the command to the Python half. Returns: as `execute`.

        Source: docs/nsq/tcp-protocol.md, "IDENTIFY", "AUTH".
        """
        cdef int32_t size
        cdef bint has_size = size_bytes >= 4
        name = text_of(&line.name)
        if self.state != CLIENT_INIT:
            raise CommandError("E_INVALID", b"cannot " + name + b" in current state")
        if line.command == COMMAND_AUTH and line.param_count != 0:
            raise CommandError("E_INVALID", "AUTH invalid number of parameters")
        size = read_be32(at) if has_size else 0
        if has_size and (size <= 0 or size > self.limits.max_body_bytes):
            raise size_error(line, "E_BAD_BODY", "body", "body", size, self.limits.max_body_bytes)
        if not has_size or size_bytes - 4 < <uint64_t> size:
            if self.input == INPUT_ENDED:
                raise truncation_error(
                    line, "E_BAD_BODY", "failed to read body" if has_size else "failed to read body size")
            return NEEDS_BYTES
        self.set_pending(PENDING_COMMAND, line, at[4:4 + size])
        return 4 + size

    cdef int finish_message(self, const char* id16) except -1:
        """FIN. Source: docs/nsq/tcp-protocol.md, "FIN"."""
        cdef uint64_t guid = 0
        cdef int answer = NOT_IN_FLIGHT
        if hex_to_id(id16, &guid) == 0:
            answer = self.output.channel.finish(self.output, guid)
        if answer != DONE:
            self.finish_refused(guid, id16[:ID_BYTES], answer)
        return 0

    cdef int finish_refused(self, uint64_t guid, message_id, int answer) except -1:
        """Refuse a FIN that the channel has not executed, or execute it with a larger ledger.

        If the ledger cannot grow, the message stays in flight.
        """
        if answer != BEYOND_LEDGER:
            return self.refuse_answer("FIN", message_id, answer)
        try:
            self.output.channel.make_finishable(guid)
        except StorageError as error:
            return self.refuse_for_storage("FIN", message_id, error)
        return self.output.channel.finish(self.output, guid)

    cdef int requeue_message(self, CommandLine* line) except -1:
        """REQ. Source: docs/nsq/tcp-protocol.md, "REQ"."""
        cdef int64_t value = 0
        cdef int64_t delay_ns
        cdef uint64_t guid = 0
        cdef int answer = NOT_IN_FLIGHT
        self.require_subscribed("REQ")
        if line.param_count < 2:
            raise CommandError("E_INVALID", "REQ insufficient number of params")
        require_id(&line.params[0])
        if not parse_digits(line.params[1].at, line.params[1].size_bytes, &value):
            raise CommandError("E_INVALID", b"REQ could not parse timeout " + text_of(&line.params[1]))
        delay_ns = <int64_t> (<uint64_t> value * <uint64_t> NS_PER_MS)
        if delay_ns < 0 or delay_ns > self.limits.max_req_timeout_ns:
            self.client.log_clamped(value)
            delay_ns = 0 if delay_ns < 0 else self.limits.max_req_timeout_ns
        if delay_ns != 0:
            self.note_slow()
        if hex_to_id(line.params[0].at, &guid) == 0:
            try:
                answer = self.output.channel.requeue(self.output, guid, delay_ns)
            except StorageError as error:
                return self.refuse_for_storage("REQ", text_of(&line.params[0]), error)
        if answer != DONE:
            self.refuse_answer("REQ", text_of(&line.params[0]), answer)
        return 0

    cdef int touch_message(self, CommandLine* line) except -1:
        """TOUCH. Source: docs/nsq/tcp-protocol.md, "TOUCH"."""
        cdef uint64_t guid = 0
        cdef int answer = NOT_IN_FLIGHT
        self.require_subscribed("TOUCH")
        if line.param_count < 1:
            raise CommandError("E_INVALID", "TOUCH insufficient number of params")
        require_id(&line.params[0])
        if hex_to_id(line.params[0].at, &guid) == 0:
            answer = self.output.channel.touch(self.output, guid, mono_ns())
        if answer != DONE:
            self.refuse_answer("TOUCH", text_of(&line.params[0]), answer)
        return 0

    cdef int set_ready(self, CommandLine* line) except -1:
        """RDY. Source: docs/nsq/tcp-protocol.md, "RDY"."""
        cdef int64_t value = 1
        if self.state == CLIENT_CLOSING:
            return 0
        if self.state != CLIENT_SUBSCRIBED:
            raise CommandError("E_INVALID", "cannot RDY in current state")
        if line.param_count > 0 and not parse_digits(line.params[0].at, line.params[0].size_bytes, &value):
            raise CommandError("E_INVALID", b"RDY could not parse count " + text_of(&line.params[0]))
        if value < 0 or value > self.limits.max_rdy_count:
            raise CommandError("E_INVALID", f"RDY count {value} out of range 0-{self.limits.max_rdy_count}")
        self.output.rdy = value
        return 0

    cdef int require_subscribed(self, name) except -1:
        if self.state != CLIENT_SUBSCRIBED and self.state != CLIENT_CLOSING:
            raise CommandError("E_INVALID", f"cannot {name} in current state")
        assert self.output.channel is not None
        return 0

    # Refuse.

    cdef int refuse(self, error) except -1:
        """Queue the error frame for a CommandError, to leave with the pass. A fatal one closes the connection then."""
        data = error.frame()
        self.output.put(FRAME_ERROR, data, <uint32_t> len(data))
        self.client.log_refusal(error)
        self.until_look = 0
        if error.fatal:
            self.input = INPUT_REFUSED
            # Nothing is delivered before the error is sent: a delivery would only count as an attempt.
            self.output.rdy = 0
        return 0

    cdef int refuse_after_batches(self, error) except -1:
        """Answer the open MPUBs first and then refuse the command behind them; if they fail, refuse them instead."""
        if self.publisher.open_topic is not None:
            try:
                self.publisher.close_batches()
            except CommandError as failure:
                error = failure
        return self.refuse(error)

    cdef int refuse_for_storage(self, name, message_id, error) except -1:
        """Refuse a FIN or REQ for a StorageError; the message stays in flight, the connection continues."""
        self.client.note_failed_write(error)
        return self.refuse(CommandError(
            f"E_{name}_FAILED", b"%s %s failed %s" % (name.encode(), message_id, str(error).encode())))

    cdef int refuse_answer(self, name, message_id, int answer) except -1:
        """Refuse a FIN, REQ or TOUCH for a message that this client does not have; the connection continues."""
        reason = b"ID not in flight" if answer == NOT_IN_FLIGHT else b"client does not own message"
        return self.refuse(CommandError(
            f"E_{name}_FAILED", b"%s %s failed %s" % (name.encode(), message_id, reason)))
