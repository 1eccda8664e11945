"""Event loop of the load generator: publishes, consumes and answers heartbeats without a Python object per message.

A publisher owns one output buffer with as many prebuilt commands as may be unanswered at once (`outstanding`):

    | PUB topic LF | size | counter filler |  PUB topic LF ...                        batch = 1
    | MPUB topic LF | size | count | { size | counter filler } * batch |  MPUB ...    batch > 1

A publisher over HTTP is the same with requests for commands, and differs in how it reads what answers them. One that
defers writes DPUB for PUB.

Without a rate a connection sends as soon as answers made room (closed loop). With a rate (open loop) message n is
intended for start + n * interval, and goes out then on the next connection whose socket takes it, whatever is still
unanswered. A batch is intended for the time of its first message. Latencies begin at the intended time: what a stalled
server keeps waiting is counted with its wait, also where the generator itself could not send (no coordinated omission).
So no message carries a time.

To send n commands it stamps fresh counters into the first n and hands them to send() in one piece. A consumer writes
one FIN per message behind the other and sends them once per read. When the last counter has come back every consumer
sends CLS: its CLOSE_WAIT comes after all earlier FINs were executed, so the time until then contains their cost.

Invariants
1. A command is stamped only when the output buffer is empty: 0 <= output_start <= output_end <= output_max.
2. A consumer reads only when its output is empty. A frame of a message is longer than a FIN, so one full input buffer
   never overfills the output, which has CONTROL_BYTES more for RDY, NOP and CLS.
3. outstanding <= outstanding_max for each publisher; confirmed = messages when all are answered. Answers come in the
   order of commands, so the times in begun_ns are a ring: the oldest belongs to the next answer.
4. Counters are given out once, in order, over all publishers of a load.

Rejected: edge-triggered epoll (it saves the epoll_ctl of a partial send, but then a consumer that stopped reading has
to remember that input waits, and one connection can starve the others); a thread per connection (more than the one
core the generator has); Python's socket objects in the loop (1 us a call).
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcmp, memcpy, memmove, strerror

from pyqd.hot.tools.load_sockets cimport (
    EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL,
    epoll_event, epoll_wait_ns, monotonic_ns, recv, send, ssize_t, watch,
)
from pyqd.hot.tools.histogram cimport histogram_add
from pyqd.hot.tools.httpwire cimport HTTP_BAD, HTTP_MORE, http_response_bytes
from pyqd.hot.tools.tally cimport tally_add
from pyqd.hot.tools.wire cimport (
    COUNTER_BYTES, FRAME_ERROR, FRAME_HEADER_BYTES, FRAME_MESSAGE, FRAME_RESPONSE, MESSAGE_HEADER_BYTES,
    MESSAGE_ID_OFFSET, get_u32, get_u64, put_fin, put_text_u56, put_u64,
)

cdef enum:
    EVENT_COUNT_MAX = 256


cdef int fail(Traffic* traffic, const char* what, const char* detail, size_t detail_bytes) noexcept nogil:
    """Keep the first failure of the load and return -1."""
    cdef size_t used = 0
    if traffic.failed:
        return -1
    traffic.failed = True
    while what[used] and used < ERROR_TEXT_BYTES - 1:
        traffic.error_text[used] = what[used]
        used += 1
    if detail_bytes > ERROR_TEXT_BYTES - 1 - used:
        detail_bytes = ERROR_TEXT_BYTES - 1 - used
    memcpy(traffic.error_text + used, detail, detail_bytes)
    traffic.error_text[used + detail_bytes] = 0
    return -1


cdef int fail_errno(Traffic* traffic, const char* what, int number) noexcept nogil:
    cdef const char* text = strerror(number)
    cdef size_t text_bytes = 0
    while text[text_bytes]:
        text_bytes += 1
    return fail(traffic, what, text, text_bytes)


cdef int fail_send(Traffic* traffic, Connection* connection) noexcept nogil:
    """Prefer the error frame that the server sent before it closed to the errno of send()."""
    cdef int number = errno
    cdef ssize_t count
    if connection.role != CONSUMER:
        count = recv(
            connection.fd, connection.input + connection.input_end, connection.input_max - connection.input_end,
            MSG_DONTWAIT)
        if count > 0:
            connection.input_end += <uint32_t>count
            parse_input(traffic, connection)
    return fail_errno(traffic, b"send: ", number)


cdef int arm(Traffic* traffic, Connection* connection, bint writing) noexcept nogil:
    cdef uint32_t events = EPOLLIN
    if writing:
        # Invariant 2: a consumer with unsent FINs must not read.
        events = EPOLLOUT if connection.role == CONSUMER else EPOLLIN | EPOLLOUT
    if watch(traffic.epoll_fd, EPOLL_CTL_MOD, connection.fd, connection.index, events) < 0:
        return fail_errno(traffic, b"epoll_ctl: ", errno)
    connection.write_armed = writing
    return 0


cdef int flush(Traffic* traffic, Connection* connection) noexcept nogil:
    """Send the unsent bytes; 1 if all are sent, 0 if the socket is full, -1 on failure."""
    cdef ssize_t sent
    while connection.output_start < connection.output_end:
        sent = send(
            connection.fd, connection.output + connection.output_start,
            connection.output_end - connection.output_start, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent >= 0:
            connection.output_start += <uint32_t>sent
        elif errno == EAGAIN:
            if not connection.write_armed:
                return arm(traffic, connection, True)
            return 0
        elif errno != EINTR:
            return fail_send(traffic, connection)
    connection.output_start = connection.output_end = 0
    if connection.write_armed and arm(traffic, connection, False) < 0:
        return -1
    return 1


cdef inline int64_t intended_ns(Traffic* traffic, uint64_t counter) noexcept nogil:
    return traffic.start_ns + <int64_t>(<double>counter * traffic.interval_ns)


cdef void note_sending(Traffic* traffic, Connection* connection, uint32_t command_count, int64_t now_ns) noexcept nogil:
    """Keep when the next commands begin, for the latencies of their answers and messages."""
    cdef uint64_t counter = traffic.next_counter
    cdef uint64_t counter_end = counter + <uint64_t>command_count * traffic.batch
    cdef uint32_t place = connection.oldest + connection.outstanding
    cdef int64_t begun_ns = now_ns
    if place >= traffic.outstanding_max:
        place -= traffic.outstanding_max
    while counter < counter_end:
        if traffic.interval_ns != 0:
            begun_ns = intended_ns(traffic, counter)
            histogram_add(&traffic.behind, now_ns - begun_ns)
        connection.begun_ns[place] = begun_ns
        place = place + 1 if place + 1 < traffic.outstanding_max else 0
        if traffic.sent_ns != NULL:
            traffic.sent_ns[counter // traffic.batch] = now_ns
        counter += traffic.batch


cdef int publish(Traffic* traffic, Connection* connection, uint32_t command_count) noexcept nogil:
    """Stamp and send so many commands; there is space for them, and the output buffer is empty."""
    cdef uint64_t counter = traffic.next_counter
    cdef uint64_t command_end
    cdef uint32_t command_index
    cdef char* target
    for command_index in range(command_count):
        target = connection.output + <size_t>command_index * traffic.command_bytes + traffic.counter_offset
        command_end = counter + traffic.batch
        while counter < command_end:
            if traffic.text_counters:
                put_text_u56(target, counter)
            else:
                put_u64(target, counter)
            counter += 1
            target += traffic.counter_stride
    traffic.last_sent_ns = monotonic_ns()
    note_sending(traffic, connection, command_count, traffic.last_sent_ns)
    traffic.next_counter = counter
    connection.outstanding += command_count
    connection.output_start = 0
    connection.output_end = command_count * traffic.command_bytes
    return flush(traffic, connection)


cdef int publish_more(Traffic* traffic, Connection* connection) noexcept nogil:
    cdef uint64_t command_count = (traffic.messages - traffic.next_counter) // traffic.batch
    cdef uint32_t room = traffic.outstanding_max - connection.outstanding
    if traffic.interval_ns != 0:
        return 0
    if command_count > room:
        command_count = room
    if command_count == 0:
        return 0
    return publish(traffic, connection, <uint32_t>command_count)


cdef Connection* next_free_publisher(Traffic* traffic) noexcept nogil:
    """Return the next publisher, round robin, that can send; NULL if no socket accepts more."""
    cdef uint32_t left = traffic.publisher_count
    cdef Connection* connection
    while left:
        left -= 1
        connection = &traffic.connections[traffic.first_publisher + traffic.next_publisher]
        traffic.next_publisher += 1
        if traffic.next_publisher == traffic.publisher_count:
            traffic.next_publisher = 0
        if connection.output_start == connection.output_end and connection.outstanding < traffic.outstanding_max:
            return connection
    return NULL


cdef int publish_due(Traffic* traffic) noexcept nogil:
    """Send every message whose intended time has come: round robin, and in larger pieces only if late."""
    cdef uint64_t due_count = <uint64_t>(<double>(monotonic_ns() - traffic.start_ns) / traffic.interval_ns) + 1
    cdef uint64_t command_count
    cdef Connection* connection
    if due_count > traffic.messages:
        due_count = traffic.messages
    while traffic.next_counter < due_count:
        connection = next_free_publisher(traffic)
        if connection == NULL:
            return 0
        command_count = (due_count - traffic.next_counter) // traffic.batch // traffic.publisher_count
        if command_count == 0:
            command_count = 1
        if command_count > traffic.burst_max:
            command_count = traffic.burst_max
        if command_count > traffic.outstanding_max - connection.outstanding:
            command_count = traffic.outstanding_max - connection.outstanding
        if publish(traffic, connection, <uint32_t>command_count) < 0:
            return -1
    return 0


cdef int on_answer(Traffic* traffic, Connection* connection) noexcept nogil:
    """Take the answer to the oldest command of a publisher."""
    if connection.outstanding == 0:
        return fail(traffic, b"an answer to nothing", b"", 0)
    histogram_add(&traffic.answers, traffic.now_ns - connection.begun_ns[connection.oldest])
    connection.oldest = connection.oldest + 1 if connection.oldest + 1 < traffic.outstanding_max else 0
    connection.outstanding -= 1
    traffic.confirmed += traffic.batch
    return 0


cdef void on_delivery(Traffic* traffic, uint64_t counter) noexcept nogil:
    """Record how long a message took, or how late it is when it was deferred."""
    cdef int64_t begun_ns
    if counter >= traffic.next_counter:
        return
    if traffic.sent_ns != NULL:
        begun_ns = traffic.sent_ns[counter // traffic.batch] + traffic.defer_ns
        if traffic.now_ns < begun_ns:
            traffic.early += 1
    elif traffic.interval_ns != 0:
        begun_ns = intended_ns(traffic, counter - counter % traffic.batch)
    else:
        return
    histogram_add(&traffic.deliveries, traffic.now_ns - begun_ns)


cdef int on_response(Traffic* traffic, Connection* connection, const char* data, uint32_t size) noexcept nogil:
    if size == 2 and memcmp(data, b"OK", 2) == 0:
        return on_answer(traffic, connection)
    if size == 11 and memcmp(data, b"_heartbeat_", 11) == 0:
        traffic.heartbeats += 1
        if connection.role == CONSUMER:
            memcpy(connection.output + connection.output_end, b"NOP\n", 4)
            connection.output_end += 4
        elif connection.output_start == connection.output_end:
            # Past the buffer, whose prebuilt commands must stay. A publisher with unsent commands needs no NOP.
            if send(connection.fd, b"NOP\n", 4, MSG_DONTWAIT | MSG_NOSIGNAL) != 4:
                return fail_errno(traffic, b"send of NOP: ", errno)
        return 0
    if size == 10 and memcmp(data, b"CLOSE_WAIT", 10) == 0 and connection.closing:
        connection.finished = True
        traffic.finished_count += 1
        return 0
    return fail(traffic, b"unexpected response: ", data, size)


cdef int on_frame(
        Traffic* traffic, Connection* connection, uint32_t frame_type, const char* data, uint32_t size) noexcept nogil:
    cdef uint64_t counter
    if frame_type == FRAME_MESSAGE:
        if connection.role != CONSUMER or size < MESSAGE_HEADER_BYTES + (COUNTER_BYTES if traffic.tallied else 0):
            return fail(traffic, b"unexpected message frame", b"", 0)
        traffic.received += 1
        traffic.received_bytes += size - MESSAGE_HEADER_BYTES
        if traffic.tallied:
            counter = get_u64(data + MESSAGE_HEADER_BYTES)
            tally_add(&traffic.tallies[connection.channel], counter)
            on_delivery(traffic, counter)
        connection.output_end += put_fin(connection.output + connection.output_end, data + MESSAGE_ID_OFFSET)
        return 0
    if frame_type == FRAME_RESPONSE:
        return on_response(traffic, connection, data, size)
    if frame_type == FRAME_ERROR:
        return fail(traffic, b"error frame: ", data, size)
    return fail(traffic, b"unknown frame type", b"", 0)


cdef int parse_http(Traffic* traffic, Connection* connection) noexcept nogil:
    """Take all whole responses out of the input buffer and move a torn one to its front."""
    cdef const char* position = connection.input
    cdef const char* end = connection.input + connection.input_end
    cdef int64_t used
    while position < end:
        used = http_response_bytes(position, end - position)
        if used == HTTP_MORE:
            break
        if used < 0:
            return fail(traffic, b"no response: " if used == HTTP_BAD else b"refused: ", position, end - position)
        if on_answer(traffic, connection) < 0:
            return -1
        position += used
    connection.input_end = <uint32_t>(end - position)
    if connection.input_end == connection.input_max:
        return fail(traffic, b"a response that does not end", b"", 0)
    if connection.input_end and position != connection.input:
        memmove(connection.input, position, connection.input_end)
    return 0


cdef int enlarge(Traffic* traffic, Connection* connection, uint32_t frame_bytes) noexcept nogil:
    """Let the buffers of a consumer hold two frames of that size. The output grows too, for invariant 2."""
    cdef char* grown = <char*>realloc(connection.input, 2 * frame_bytes)
    if grown != NULL:
        connection.input = grown
        connection.input_max = 2 * frame_bytes
        grown = <char*>realloc(connection.output, 2 * frame_bytes + CONTROL_BYTES)
    if grown == NULL:
        return fail(traffic, b"no memory for a message", b"", 0)
    connection.output = grown
    connection.output_max = 2 * frame_bytes + CONTROL_BYTES
    return 0


cdef int parse_input(Traffic* traffic, Connection* connection) noexcept nogil:
    """Take all whole frames out of the input buffer and move a torn one to its front."""
    cdef const char* position = connection.input
    cdef const char* end = connection.input + connection.input_end
    cdef uint32_t size
    cdef uint32_t large_bytes = 0
    if connection.role == HTTP_PUBLISHER:
        return parse_http(traffic, connection)
    while end - position >= FRAME_HEADER_BYTES:
        size = get_u32(position)
        if size > connection.input_max - 4 and connection.role == CONSUMER and size <= FRAME_BYTES_MAX:
            large_bytes = size + 4
            break
        if size < 4 or size > connection.input_max - 4:
            return fail(traffic, b"frame size out of range", b"", 0)
        if <size_t>(end - position) < <size_t>size + 4:
            break
        if on_frame(traffic, connection, get_u32(position + 4), position + FRAME_HEADER_BYTES, size - 4) < 0:
            return -1
        position += size + 4
    connection.input_end = <uint32_t>(end - position)
    if connection.input_end and position != connection.input:
        memmove(connection.input, position, connection.input_end)
    return enlarge(traffic, connection, large_bytes) if large_bytes else 0


cdef int on_readable(Traffic* traffic, Connection* connection) noexcept nogil:
    cdef ssize_t count = recv(
        connection.fd, connection.input + connection.input_end, connection.input_max - connection.input_end,
        MSG_DONTWAIT)
    if count < 0:
        if errno == EAGAIN or errno == EINTR:
            return 0
        return fail_errno(traffic, b"recv: ", errno)
    if count == 0:
        return fail(traffic, b"connection closed by the server", b"", 0)
    connection.input_end += <uint32_t>count
    traffic.now_ns = monotonic_ns()
    if parse_input(traffic, connection) < 0:
        return -1
    if connection.role == CONSUMER:
        return flush(traffic, connection)
    if connection.role in (PUBLISHER, HTTP_PUBLISHER) and connection.output_start == connection.output_end:
        return publish_more(traffic, connection)
    return 0


cdef int on_event(Traffic* traffic, Connection* connection, uint32_t events) noexcept nogil:
    cdef int state
    if events & EPOLLOUT:
        state = flush(traffic, connection)
        if state < 0:
            return -1
        if state == 0:
            # Still full: a publisher may read its answers now, a consumer may not (invariant 2).
            if connection.role == CONSUMER:
                return 0
        elif connection.role in (PUBLISHER, HTTP_PUBLISHER) and publish_more(traffic, connection) < 0:
            return -1
    # EPOLLERR and EPOLLHUP are always reported; recv returns the error.
    if events & ~(<uint32_t>EPOLLOUT):
        return on_readable(traffic, connection)
    return 0


cdef int ask_to_close(Traffic* traffic) noexcept nogil:
    cdef uint32_t index
    cdef Connection* connection
    traffic.drained = True
    for index in range(traffic.connection_count):
        connection = &traffic.connections[index]
        if connection.role == CONSUMER:
            memcpy(connection.output + connection.output_end, b"CLS\n", 4)
            connection.output_end += 4
            connection.closing = True
            if flush(traffic, connection) < 0:
                return -1
    return 0


cdef bint received_all(Traffic* traffic) noexcept nogil:
    cdef uint32_t channel
    if not traffic.tallied:
        return traffic.received >= traffic.messages
    for channel in range(traffic.channel_count):
        if traffic.tallies[channel].unique != traffic.tallies[channel].expected:
            return False
    return True


cdef bint sent_all(Traffic* traffic) noexcept nogil:
    """Return whether no connection has unsent bytes: a FIN that is not sent leaves its message in flight."""
    cdef uint32_t index
    for index in range(traffic.connection_count):
        if traffic.connections[index].output_start != traffic.connections[index].output_end:
            return False
    return True


cdef int look_for_end(Traffic* traffic, int64_t now_ns) noexcept nogil:
    """Record the milestones reached in this pass; 1 if the load is complete, else 0, or -1 on failure."""
    if traffic.publisher_count and not traffic.published_ns and traffic.confirmed == traffic.messages:
        traffic.published_ns = now_ns
    if traffic.consumer_count:
        if not traffic.drained and received_all(traffic) and ask_to_close(traffic) < 0:
            return -1
        if traffic.finished_count == traffic.consumer_count and not traffic.consumed_ns and sent_all(traffic):
            traffic.consumed_ns = now_ns
    if not traffic.publisher_count and not traffic.consumer_count:
        return 0
    return (
        (traffic.publisher_count == 0 or traffic.published_ns != 0)
        and (traffic.consumer_count == 0 or traffic.consumed_ns != 0))


cdef int64_t sleep_ns(Traffic* traffic, int64_t now_ns, int64_t end_ns) noexcept nogil:
    """Return the time to wait for events: to end_ns, but with a rate no longer than to the next intended time."""
    cdef int64_t until_ns = end_ns
    cdef int64_t next_ns
    if traffic.spinning:
        return 0
    if traffic.interval_ns != 0 and traffic.next_counter < traffic.messages:
        next_ns = intended_ns(traffic, traffic.next_counter)
        if next_ns < until_ns:
            until_ns = next_ns
    return max(until_ns - now_ns, <int64_t> 0)


cdef int turn(Traffic* traffic, int64_t end_ns) noexcept nogil:
    """Serve events until end_ns; 1 when the load is complete, 0 when the time is over, -1 on failure."""
    cdef epoll_event[EVENT_COUNT_MAX] events
    cdef int64_t now_ns = monotonic_ns()
    cdef int64_t begin_ns
    cdef int count, position, state
    while now_ns < end_ns:
        count = epoll_wait_ns(traffic.epoll_fd, events, EVENT_COUNT_MAX, sleep_ns(traffic, now_ns, end_ns))
        if count < 0:
            if errno == EINTR:
                return 0
            return fail_errno(traffic, b"epoll_wait: ", errno)
        begin_ns = monotonic_ns()
        for position in range(count):
            if on_event(traffic, &traffic.connections[events[position].data.u32], events[position].events) < 0:
                return -1
        if traffic.interval_ns != 0 and publish_due(traffic) < 0:
            return -1
        now_ns = monotonic_ns()
        traffic.worked_ns += now_ns - begin_ns
        state = look_for_end(traffic, now_ns)
        if state != 0:
            return state
    return 0
