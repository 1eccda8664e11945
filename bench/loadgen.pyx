"""Make load from connected sockets: publishers, consumers, idle subscribers, in any mixture.

The sockets come in connected and subscribed (bench.connections does that part); bench.traffic moves the bytes.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from bench.sockets cimport EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLLIN, close, epoll_create1, monotonic_ns, watch
from bench.tally cimport tally_close, tally_open
from bench.traffic cimport (
    CONSUMER, CONTROL_BYTES, HTTP_PUBLISHER, IDLER, PUBLISHER, Connection, Role, Traffic, flush, publish_more, turn,
)
from bench.wire cimport COUNTER_BYTES

from bench.outcome import LoadReport

cdef enum:
    SMALL_INPUT_BYTES = 4096       # publishers and idle connections read short responses only
    CONSUMER_INPUT_BYTES = 131072  # fits the second-level cache together with the FINs
    BODY_BYTES_MAX = 1048576
    COMMAND_BYTES_MAX = 67108864

cdef int64_t SLICE_NS = 100_000_000    # after so long the loop comes back to see whether a signal arrived


class LoadError(Exception):
    """The server sent an error frame, closed a connection or broke the protocol; the text says which."""


cdef class Load:
    """One run of load over connections that were opened before.

    messages: counters 0 .. messages - 1 are published, or expected by consumers, or both; 0 with idle ones alone.
    body_bytes: 8 to 1 MiB; the first 8 bytes are the counter. filler: what follows the counter, repeated and cut.

    The sockets stay the caller's, who keeps them open until `run` returned. A load runs once.
    """

    cdef Traffic traffic
    cdef uint32_t body_bytes
    cdef bytes filler
    cdef bint started

    def __cinit__(self, *, uint64_t messages, uint32_t body_bytes, bytes filler=b"x"):
        memset(&self.traffic, 0, sizeof(Traffic))
        self.traffic.epoll_fd = -1
        if body_bytes < COUNTER_BYTES or body_bytes > BODY_BYTES_MAX:
            raise ValueError(f"body_bytes must be {COUNTER_BYTES} to {BODY_BYTES_MAX}: {body_bytes}")
        self.body_bytes = body_bytes
        self.filler = filler * ((body_bytes - COUNTER_BYTES) // len(filler) + 1)
        self.traffic.messages = messages
        self.traffic.batch = 1
        if tally_open(&self.traffic.tally, messages) < 0:
            raise MemoryError
        self.traffic.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.traffic.epoll_fd < 0:
            raise OSError(errno, "epoll_create1")

    def __dealloc__(self):
        cdef uint32_t index
        for index in range(self.traffic.connection_count):
            free(self.traffic.connections[index].input)
            free(self.traffic.connections[index].output)
        free(self.traffic.connections)
        tally_close(&self.traffic.tally)
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

    cdef bytes build_command(self, bytes topic, uint32_t batch):
        """Return one command with zero counters and note where these stand."""
        cdef bytes body = bytes(COUNTER_BYTES) + self.filler[:self.body_bytes - COUNTER_BYTES]
        cdef bytes sized = self.body_bytes.to_bytes(4, "big") + body
        cdef bytes head
        cdef bytes command
        if batch == 1:
            head = b"PUB " + topic + b"\n"
            command = head + sized
        else:
            head = b"MPUB " + topic + b"\n" + (4 + len(sized) * batch).to_bytes(4, "big") + batch.to_bytes(4, "big")
            command = head + sized * batch
        self.traffic.counter_offset = <uint32_t>(len(head) + 4)
        self.traffic.counter_stride = self.body_bytes + 4
        self.traffic.command_bytes = <uint32_t>len(command)
        return command

    cdef bytes build_request(self, bytes topic, uint32_t batch, bint lines):
        """Return one request with zero counters and note where these stand."""
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

    def add_publishers(self, fds, *, str topic, uint32_t batch, uint32_t outstanding):
        """Let each of fds publish to topic, batch messages a command (1: PUB, more: MPUB).

        outstanding: commands sent but not answered on a connection, at most. The load's messages must be a multiple
        of batch, and all of one load's publishers have one topic and one batch.
        """
        self.check_publishers(batch, outstanding)
        self.fill_publishers(fds, PUBLISHER, self.build_command(topic.encode(), batch), batch, outstanding)

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
        self.traffic.outstanding_max = outstanding
        for fd in fds:
            connection = self.add(fd, role, SMALL_INPUT_BYTES, self.traffic.command_bytes * outstanding)
            for command_index in range(outstanding):
                memcpy(
                    connection.output + <size_t>command_index * self.traffic.command_bytes,
                    <const char*>command, self.traffic.command_bytes)
            self.traffic.publisher_count += 1
        return 0

    def add_consumers(self, fds, *, uint32_t rdy):
        """Let each of fds, subscribed, ask for rdy messages in flight and FIN what it receives."""
        cdef Connection* connection
        cdef bytes command = b"RDY %d\n" % rdy
        cdef uint32_t input_max = CONSUMER_INPUT_BYTES
        if input_max < 2 * self.body_bytes:
            input_max = 2 * self.body_bytes + CONTROL_BYTES
        for fd in fds:
            connection = self.add(fd, CONSUMER, input_max, input_max + CONTROL_BYTES)
            memcpy(connection.output, <const char*>command, len(command))
            connection.output_end = <uint32_t>len(command)
            self.traffic.consumer_count += 1

    def add_idlers(self, fds):
        """Let each of fds only answer heartbeats."""
        for fd in fds:
            self.add(fd, IDLER, SMALL_INPUT_BYTES, 1)

    def run(self, double deadline_s, *, bint spin=False):
        """Run until the load is complete, at the latest until deadline_s seconds have passed.

        spin: poll instead of sleeping while there is nothing to do. It costs the whole core and keeps the time of
        waking up out of the figures.

        A load of idle connections alone always lasts deadline_s, and that is no time-out.
        Returns: LoadReport. Raises: LoadError for an error frame, a closed connection or a broken protocol.
        """
        cdef int64_t end_ns, slice_ns
        cdef uint32_t index
        cdef int state = 0
        cdef Connection* connection
        if self.started:
            raise ValueError("a load runs once")
        self.started = True
        self.traffic.spinning = spin
        self.traffic.start_ns = monotonic_ns()
        end_ns = self.traffic.start_ns + <int64_t>(deadline_s * 1e9)
        for index in range(self.traffic.connection_count):
            connection = &self.traffic.connections[index]
            if connection.role == CONSUMER:
                state = flush(&self.traffic, connection)
            elif connection.role in (PUBLISHER, HTTP_PUBLISHER):
                state = publish_more(&self.traffic, connection)
            if state < 0:
                break
        else:
            state = 0
        while state == 0 and monotonic_ns() < end_ns:
            slice_ns = min(end_ns, monotonic_ns() + SLICE_NS)
            with nogil:
                state = turn(&self.traffic, slice_ns)
            PyErr_CheckSignals()
        if state < 0:
            raise LoadError((<bytes>self.traffic.error_text).decode("utf-8", "replace"))
        return self.report(state == 1, monotonic_ns())

    cdef object report(self, bint complete, int64_t now_ns):
        cdef Traffic* traffic = &self.traffic
        cdef bint loaded = traffic.publisher_count != 0 or traffic.consumer_count != 0
        return LoadReport(
            messages=traffic.messages,
            confirmed=traffic.confirmed,
            received=traffic.tally.unique + traffic.tally.duplicates + traffic.tally.foreign,
            unique=traffic.tally.unique,
            duplicates=traffic.tally.duplicates,
            foreign=traffic.tally.foreign,
            heartbeats=traffic.heartbeats,
            elapsed_s=(now_ns - traffic.start_ns) / 1e9,
            published_s=(traffic.published_ns - traffic.start_ns) / 1e9 if traffic.published_ns else 0.0,
            consumed_s=(traffic.consumed_ns - traffic.start_ns) / 1e9 if traffic.consumed_ns else 0.0,
            worked_s=traffic.worked_ns / 1e9,
            timed_out=loaded and not complete,
        )
