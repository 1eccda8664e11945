"""Load generator over connected sockets: publishers, consumers, idle subscribers, in any mixture.

The sockets come in connected and subscribed (pyqd.tools.bench.connections does that part); pyqd.hot.tools.traffic moves
the bytes.
"""

from libc.errno cimport errno
from libc.stdint cimport UINT64_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from pyqd.hot.tools.histogram cimport Histogram, copy_of
from pyqd.hot.tools.load_sockets cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLLIN, PR_SET_TIMERSLACK, close, epoll_create1, monotonic_ns, prctl, watch,
)
from pyqd.hot.tools.tally cimport Tally, tally_close, tally_open
from pyqd.hot.tools.traffic cimport (
    CONSUMER, CONTROL_BYTES, HTTP_PUBLISHER, IDLER, PUBLISHER, Connection, Role, Traffic, ask_to_close, flush,
    publish_more, turn,
)
from pyqd.hot.tools.wire cimport COUNTER_BYTES

from pyqd.tools.bench.outcome import ChannelCount, LoadCounts, LoadReport

cdef enum:
    SMALL_INPUT_BYTES = 4096       # publishers and idle connections read short responses only
    CONSUMER_INPUT_BYTES = 131072  # fits the second-level cache together with the FINs
    BODY_BYTES_MAX = 1048576
    COMMAND_BYTES_MAX = 67108864
    CHANNEL_COUNT_MAX = 1024
    OPEN_OUTSTANDING_MAX = 65536   # of a connection with a rate: more than the buffers of two sockets hold

cdef double RATE_MAX_PER_S = 1e9
cdef int64_t SLICE_NS = 20_000_000     # after so long `advance` looks whether it was interrupted


class LoadError(Exception):
    """The server sent an error frame, closed a connection or broke the protocol; the text says which."""


cdef class Load:
    """One run of load over connections that were opened before.

    messages: counters 0 .. messages - 1 are published, or expected by consumers, or both; 0 with idle ones alone. None:
    as many as there are until `finish`.
    tallied: each counter must come back. Otherwise consumers count messages of any origin, until there are as many;
    this is so without `messages`.
    body_bytes: 8 to 1 MiB; the first 8 bytes are the counter. filler: bytes after the counter, repeated and cut.
    channels: number of consumed channels, 1 to 1024; each must get every message.

    The sockets stay the caller's, who keeps them open until the last `advance` returned. A load runs once: by `start`
    and calls of `advance`, in any one thread. Only `interrupt` and `counts` may be called by another thread meanwhile.
    """

    cdef Traffic traffic
    cdef uint32_t body_bytes
    cdef bytes filler
    cdef bint started
    cdef bint complete
    cdef bint endless

    def __cinit__(
            self, *, messages, uint32_t body_bytes, bytes filler=b"x", uint32_t channels=1, bint tallied=True):
        cdef uint32_t channel
        memset(&self.traffic, 0, sizeof(Traffic))
        self.traffic.epoll_fd = -1
        if body_bytes < COUNTER_BYTES or body_bytes > BODY_BYTES_MAX:
            raise ValueError(f"body_bytes must be {COUNTER_BYTES} to {BODY_BYTES_MAX}: {body_bytes}")
        if channels < 1 or channels > CHANNEL_COUNT_MAX:
            raise ValueError(f"channels must be 1 to {CHANNEL_COUNT_MAX}: {channels}")
        self.body_bytes = body_bytes
        self.filler = filler * ((body_bytes - COUNTER_BYTES) // len(filler) + 1)
        self.endless = messages is None
        self.traffic.messages = UINT64_MAX if messages is None else messages
        self.traffic.tallied = tallied and not self.endless
        self.traffic.batch = 1
        self.traffic.tallies = <Tally*>calloc(channels, sizeof(Tally))
        if self.traffic.tallies == NULL:
            raise MemoryError
        for channel in range(channels):
            if tally_open(&self.traffic.tallies[channel], self.traffic.messages if self.traffic.tallied else 0) < 0:
                raise MemoryError
            self.traffic.channel_count += 1
        self.traffic.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.traffic.epoll_fd < 0:
            raise OSError(errno, "epoll_create1")

    def __dealloc__(self):
        cdef uint32_t index
        for index in range(self.traffic.connection_count):
            free(self.traffic.connections[index].input)
            free(self.traffic.connections[index].output)
            free(self.traffic.connections[index].begun_ns)
        free(self.traffic.connections)
        free(self.traffic.sent_ns)
        for index in range(self.traffic.channel_count):
            tally_close(&self.traffic.tallies[index])
        free(self.traffic.tallies)
        if self.traffic.epoll_fd >= 0:
            close(self.traffic.epoll_fd)

    cdef Connection* add(self, int fd, Role role, uint32_t input_max, uint32_t output_max) except NULL:
        """Append one connection; the pointer is good until the next call."""
        cdef uint32_t index = self.traffic.connection_count
        cdef Connection* grown
        cdef Connection* connection
        if self.started:
            raise ValueError("the load has begun")
        if index & (index - 1) == 0:
            # The array doubles whenever its length is a power of two.
            grown = <Connection*>realloc(self.traffic.connections, (2 * index if index else 1) * sizeof(Connection))
            if grown == NULL:
                raise MemoryError
            self.traffic.connections = grown
        connection = &self.traffic.connections[index]
        memset(connection, 0, sizeof(Connection))
        connection.fd = fd
        connection.role = role
        connection.index = index
        connection.input_max = input_max
        connection.output_max = output_max
        connection.input = <char*>malloc(input_max)
        connection.output = <char*>calloc(output_max, 1)
        if connection.input == NULL or connection.output == NULL:
            free(connection.input)
            free(connection.output)
            raise MemoryError
        self.traffic.connection_count += 1
        if watch(self.traffic.epoll_fd, EPOLL_CTL_ADD, fd, index, EPOLLIN) < 0:
            raise OSError(errno, "epoll_ctl")
        return connection

    cdef bytes build_command(self, bytes topic, uint32_t batch, uint32_t defer_ms):
        """Return one command with zero counters, and store the counters' offsets."""
        cdef bytes body = bytes(COUNTER_BYTES) + self.filler[:self.body_bytes - COUNTER_BYTES]
        cdef bytes sized = self.body_bytes.to_bytes(4, "big") + body
        cdef bytes head
        cdef bytes command
        if batch == 1:
            head = (b"DPUB %s %d\n" % (topic, defer_ms)) if defer_ms else b"PUB " + topic + b"\n"
            command = head + sized
        else:
            head = b"MPUB " + topic + b"\n" + (4 + len(sized) * batch).to_bytes(4, "big") + batch.to_bytes(4, "big")
            command = head + sized * batch
        self.traffic.counter_offset = <uint32_t>(len(head) + 4)
        self.traffic.counter_stride = self.body_bytes + 4
        self.traffic.command_bytes = <uint32_t>len(command)
        return command

    cdef bytes build_request(self, bytes topic, uint32_t batch, bint lines):
        """Return one request with zero counters, and store the counters' offsets."""
        cdef bytes body = bytes(COUNTER_BYTES) + self.filler[:self.body_bytes - COUNTER_BYTES]
        cdef bytes sized = self.body_bytes.to_bytes(4, "big") + body
        cdef bytes target = b"/pub?topic=" + topic
        cdef bytes content = body
        cdef bytes head
        cdef uint32_t before = 0
        self.traffic.counter_stride = self.body_bytes + 1
        if batch > 1 and lines:
            target = b"/mpub?topic=" + topic
            content = (body + b"\n") * batch
        elif batch > 1:
            target = b"/mpub?topic=" + topic + b"&binary=true"
            content = batch.to_bytes(4, "big") + sized * batch
            before = 8
            self.traffic.counter_stride = self.body_bytes + 4
        head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % (target, len(content))
        self.traffic.text_counters = lines
        self.traffic.counter_offset = <uint32_t>len(head) + before
        self.traffic.command_bytes = <uint32_t>(len(head) + len(content))
        return head + content

    def add_publishers(
            self, fds, *, str topic, uint32_t batch, uint32_t outstanding, double rate_per_s=0.0, uint32_t defer_ms=0):
        """Let each of fds publish to topic, batch messages a command (1: PUB, more: MPUB).

        outstanding: commands sent but not answered on a connection, at most. The load's messages must be a multiple
        of batch, and all of one load's publishers have one topic and one batch.
        rate_per_s: messages a second over all of fds, each command sent at its intended time, whatever is unanswered;
        outstanding is then how many are sent at once when the generator is late. 0: as answers come.
        defer_ms: how long the server is to keep each message (DPUB); 0: not at all.
        Raises: ValueError for a batch with a deferral.
        """
        self.check_publishers(batch, outstanding)
        if batch > 1 and defer_ms:
            raise ValueError("a load with a deferral has a batch of 1")
        if not 0 <= rate_per_s <= RATE_MAX_PER_S:
            raise ValueError(f"rate_per_s must be 0 to {RATE_MAX_PER_S:g}: {rate_per_s}")
        if rate_per_s:
            self.traffic.interval_ns = 1e9 / rate_per_s
        self.traffic.defer_ns = <int64_t>defer_ms * 1_000_000
        self.fill_publishers(fds, PUBLISHER, self.build_command(topic.encode(), batch, defer_ms), batch, outstanding)

    def add_http_publishers(self, fds, *, str topic, uint32_t batch, uint32_t outstanding, bint lines=False):
        """As add_publishers, over HTTP with kept connections (1: /pub, more: /mpub).

        lines: an /mpub has a message in each line, and its counters are written so that they have no LF. Otherwise it
        is a binary one.
        """
        self.check_publishers(batch, outstanding)
        self.fill_publishers(fds, HTTP_PUBLISHER, self.build_request(topic.encode(), batch, lines), batch, outstanding)

    cdef int check_publishers(self, uint32_t batch, uint32_t outstanding) except -1:
        if self.traffic.publisher_count:
            raise ValueError("the publishers of a load are added at once")
        if self.endless and batch:
            self.traffic.messages -= self.traffic.messages % batch
        if batch < 1 or outstanding < 1 or self.traffic.messages % batch:
            raise ValueError("batch and outstanding must be at least 1, and messages a multiple of batch")
        return 0

    cdef int fill_publishers(self, fds, Role role, bytes command, uint32_t batch, uint32_t outstanding) except -1:
        """Add the connections, each with as many commands as may be outstanding."""
        cdef Connection* connection
        cdef uint32_t command_index
        if <uint64_t>self.traffic.command_bytes * outstanding > COMMAND_BYTES_MAX:
            raise ValueError(f"outstanding commands of a connection exceed {COMMAND_BYTES_MAX} bytes")
        self.traffic.batch = batch
        self.traffic.burst_max = outstanding
        self.traffic.outstanding_max = OPEN_OUTSTANDING_MAX if self.traffic.interval_ns != 0 else outstanding
        self.traffic.first_publisher = self.traffic.connection_count
        for fd in fds:
            connection = self.add(fd, role, SMALL_INPUT_BYTES, self.traffic.command_bytes * outstanding)
            connection.begun_ns = <int64_t*>calloc(self.traffic.outstanding_max, sizeof(int64_t))
            if connection.begun_ns == NULL:
                raise MemoryError
            for command_index in range(outstanding):
                memcpy(
                    connection.output + <size_t>command_index * self.traffic.command_bytes,
                    <const char*>command, self.traffic.command_bytes)
            self.traffic.publisher_count += 1
        return 0

    def add_consumers(self, fds, *, uint32_t rdy, uint32_t channel=0):
        """Add consumers: each of fds, subscribed, asks for rdy messages in flight and sends FIN for each message.

        channel: the number, from 0, of the channel that they are subscribed to. Raises: ValueError beyond the load's.
        """
        cdef Connection* connection
        cdef bytes command = b"RDY %d\n" % rdy
        cdef uint32_t input_max = CONSUMER_INPUT_BYTES
        if channel >= self.traffic.channel_count:
            raise ValueError(f"the load has channels 0 to {self.traffic.channel_count - 1}: {channel}")
        # Several frames a read, so that moving a torn one to the front costs little beside.
        if input_max < 8 * self.body_bytes:
            input_max = 8 * self.body_bytes + CONTROL_BYTES
        for fd in fds:
            connection = self.add(fd, CONSUMER, input_max, input_max + CONTROL_BYTES)
            memcpy(connection.output, <const char*>command, len(command))
            connection.output_end = <uint32_t>len(command)
            connection.channel = channel
            self.traffic.consumer_count += 1

    def add_idlers(self, fds):
        """Let each of fds only answer heartbeats."""
        for fd in fds:
            self.add(fd, IDLER, SMALL_INPUT_BYTES, 1)

    def start(self, *, bint spin=False):
        """Send the first commands. Raises: LoadError; ValueError if the load has begun.

        spin: poll instead of sleeping while there is nothing to do. It costs the whole core and keeps the time of
        waking up out of the figures.
        """
        cdef uint32_t index
        cdef int state = 0
        cdef Connection* connection
        if self.started:
            raise ValueError("a load runs once")
        self.started = True
        self.keep_sending_times()
        self.traffic.spinning = spin
        if not spin:
            # A thread that sleeps for 20 us is woken up to 50 us late by default.
            prctl(PR_SET_TIMERSLACK, 1)
        self.traffic.start_ns = monotonic_ns()
        for index in range(self.traffic.connection_count):
            connection = &self.traffic.connections[index]
            if connection.role == CONSUMER:
                state = flush(&self.traffic, connection)
            elif connection.role in (PUBLISHER, HTTP_PUBLISHER):
                state = publish_more(&self.traffic, connection)
            if state < 0:
                self.refuse()

    def advance(self, double seconds):
        """Serve the connections for so long, without the interpreter's lock; less if complete or interrupted.

        Returns: whether the load is complete. Raises: LoadError.
        """
        cdef Traffic* traffic = &self.traffic
        cdef int64_t now_ns = monotonic_ns()
        cdef int64_t end_ns = now_ns + <int64_t>(seconds * 1e9)
        cdef int state = 0
        with nogil:
            while state == 0 and now_ns < end_ns and not traffic.stopping:
                state = turn(traffic, now_ns + SLICE_NS if now_ns + SLICE_NS < end_ns else end_ns)
                now_ns = monotonic_ns()
        if state < 0:
            self.refuse()
        self.complete = state == 1
        return self.complete

    def interrupt(self):
        """Make `advance` return within some milliseconds, until `finish` or `leave`. For another thread."""
        self.traffic.stopping = True

    def finish(self):
        """Publish nothing more. The load is then complete when all that was published is answered and consumed."""
        cdef uint32_t channel
        self.traffic.stopping = False
        if self.traffic.publisher_count:
            self.traffic.messages = self.traffic.next_counter
            for channel in range(self.traffic.channel_count):
                self.traffic.tallies[channel].expected = self.traffic.messages if self.traffic.tallied else 0

    def leave(self):
        """Let the consumers leave: they finish all messages that are on their way. Raises: LoadError."""
        self.traffic.stopping = False
        if self.traffic.consumer_count and not self.traffic.drained and ask_to_close(&self.traffic) < 0:
            self.refuse()

    def reset_latencies(self):
        """Forget the latencies so far, at the end of a warm-up."""
        memset(&self.traffic.answers, 0, sizeof(Histogram))
        memset(&self.traffic.deliveries, 0, sizeof(Histogram))
        memset(&self.traffic.behind, 0, sizeof(Histogram))

    def counts(self):
        """Return the counters so far."""
        return LoadCounts(
            elapsed_s=self.since_start_s(monotonic_ns()) if self.traffic.start_ns else 0.0,
            worked_s=self.traffic.worked_ns / 1e9,
            sent=self.traffic.next_counter,
            confirmed=self.traffic.confirmed,
            received=self.traffic.received,
            received_bytes=self.traffic.received_bytes,
        )

    def answers(self):
        """Return the latencies of answers so far, as a LatencyHistogram."""
        return copy_of(&self.traffic.answers)

    def deliveries(self):
        """Return the latencies of messages so far, as a LatencyHistogram."""
        return copy_of(&self.traffic.deliveries)

    def behind(self):
        """Return how much later than intended commands were sent so far, as a LatencyHistogram."""
        return copy_of(&self.traffic.behind)

    cdef int refuse(self) except -1:
        raise LoadError((<bytes>self.traffic.error_text).decode("utf-8", "replace"))

    cdef int keep_sending_times(self) except -1:
        """Reserve memory for the send time of each command, if deliveries are measured from it."""
        cdef uint64_t command_count = self.traffic.messages // self.traffic.batch
        cdef bint known = self.traffic.interval_ns != 0 and self.traffic.defer_ns == 0
        if known or not (self.traffic.publisher_count and self.traffic.consumer_count):
            return 0
        self.traffic.sent_ns = <int64_t*>calloc(command_count + 1, sizeof(int64_t))
        if self.traffic.sent_ns == NULL:
            raise MemoryError
        return 0

    cdef double since_start_s(self, int64_t then_ns):
        return (then_ns - self.traffic.start_ns) / 1e9 if then_ns else 0.0

    cdef tuple channel_counts(self):
        cdef list counts = []
        cdef uint32_t channel
        cdef Tally* tally
        for channel in range(self.traffic.channel_count):
            tally = &self.traffic.tallies[channel]
            counts.append(ChannelCount(unique=tally.unique, duplicates=tally.duplicates, foreign=tally.foreign))
        return tuple(counts)

    def report(self):
        """Return the outcome so far."""
        cdef int64_t now_ns = monotonic_ns()
        cdef Traffic* traffic = &self.traffic
        cdef bint loaded = traffic.publisher_count != 0 or traffic.consumer_count != 0
        channels = self.channel_counts()
        unique = sum([count.unique for count in channels])
        duplicates = sum([count.duplicates for count in channels])
        foreign = sum([count.foreign for count in channels])
        return LoadReport(
            messages=traffic.messages,
            confirmed=traffic.confirmed,
            received=unique + duplicates + foreign,
            unique=unique,
            duplicates=duplicates,
            foreign=foreign,
            heartbeats=traffic.heartbeats,
            elapsed_s=(now_ns - traffic.start_ns) / 1e9,
            published_s=self.since_start_s(traffic.published_ns),
            consumed_s=self.since_start_s(traffic.consumed_ns),
            worked_s=traffic.worked_ns / 1e9,
            timed_out=loaded and not self.complete,
            sent_s=self.since_start_s(traffic.last_sent_ns),
            answers=self.answers(),
            deliveries=self.deliveries(),
            behind=self.behind(),
            early=traffic.early,
            channels=channels,
        )
