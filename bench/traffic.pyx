"""Publish, consume and answer heartbeats in one epoll loop without a Python object per message.

A publisher owns one output buffer with as many prebuilt commands as may be unanswered at once (`outstanding`):

    | PUB topic LF | size | counter filler |  PUB topic LF ...                        batch = 1
    | MPUB topic LF | size | count | { size | counter filler } * batch |  MPUB ...    batch > 1

A publisher over HTTP is the same with requests for commands, and differs in how it reads what answers them.

To send n commands it stamps fresh counters into the first n and hands them to send() in one piece. A consumer writes
one FIN per message behind the other and sends them once per read. When the last counter has come back every consumer
sends CLS: its CLOSE_WAIT comes after all earlier FINs were executed, so the time until then contains their cost.

Invariants
1. A command is stamped only when the output buffer is empty: 0 <= output_start <= output_end <= output_max.
2. A consumer reads only when its output is empty. A frame of a message is longer than a FIN, so one full input buffer
   never overfills the output, which has CONTROL_BYTES more for RDY, NOP and CLS.
3. outstanding <= outstanding_max for each publisher; confirmed = messages when all are answered.
4. Counters are given out once, in order, over all publishers of a load.

Rejected: edge-triggered epoll (it saves the epoll_ctl of a partial send, but then a consumer that stopped reading has
to remember that input waits, and one connection can starve the others); a thread per connection (more than the one
core the generator has); Python's socket objects in the loop (1 us a call).
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove, strerror

from bench.sockets cimport (
    EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL,
    epoll_event, epoll_wait, monotonic_ns, recv, send, ssize_t, watch,
)
from bench.httpwire cimport HTTP_BAD, HTTP_MORE, http_response_bytes
from bench.tally cimport tally_add
from bench.wire cimport (
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
    """Send what is unsent; 1 when all left, 0 when the socket is full, -1 on failure."""
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


cdef int publish_more(Traffic* traffic, Connection* connection) noexcept nogil:
    """Stamp and send as many commands as may be outstanding; the caller saw an empty output buffer."""
    cdef uint64_t command_count = (traffic.messages - traffic.next_counter) // traffic.batch
    cdef uint64_t counter = traffic.next_counter
    cdef uint64_t command_end
    cdef uint32_t room = traffic.outstanding_max - connection.outstanding
    cdef uint32_t command_index
    cdef char* target
    if command_count > room:
        command_count = room
    if command_count == 0:
        return 0
    for command_index in range(<uint32_t>command_count):
        target = connection.output + <size_t>command_index * traffic.command_bytes + traffic.counter_offset
        command_end = counter + traffic.batch
        while counter < command_end:
            if traffic.text_counters:
                put_text_u56(target, counter)
            else:
                put_u64(target, counter)
            counter += 1
            target += traffic.counter_stride
    traffic.next_counter = counter
    connection.outstanding += <uint32_t>command_count
    connection.output_start = 0
    connection.output_end = <uint32_t>command_count * traffic.command_bytes
    return flush(traffic, connection)


cdef int on_response(Traffic* traffic, Connection* connection, const char* data, uint32_t size) noexcept nogil:
    if size == 2 and memcmp(data, b"OK", 2) == 0:
        if connection.outstanding == 0:
            return fail(traffic, b"an OK that answers nothing", b"", 0)
        connection.outstanding -= 1
        traffic.confirmed += traffic.batch
        return 0
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
    if frame_type == FRAME_MESSAGE:
        if connection.role != CONSUMER or size < MESSAGE_HEADER_BYTES + COUNTER_BYTES:
            return fail(traffic, b"unexpected message frame", b"", 0)
        tally_add(&traffic.tally, get_u64(data + MESSAGE_HEADER_BYTES))
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
        if connection.outstanding == 0:
            return fail(traffic, b"a response that answers nothing", b"", 0)
        connection.outstanding -= 1
        traffic.confirmed += traffic.batch
        position += used
    connection.input_end = <uint32_t>(end - position)
    if connection.input_end == connection.input_max:
        return fail(traffic, b"a response that does not end", b"", 0)
    if connection.input_end and position != connection.input:
        memmove(connection.input, position, connection.input_end)
    return 0


cdef int parse_input(Traffic* traffic, Connection* connection) noexcept nogil:
    """Take all whole frames out of the input buffer and move a torn one to its front."""
    cdef const char* position = connection.input
    cdef const char* end = connection.input + connection.input_end
    cdef uint32_t size
    if connection.role == HTTP_PUBLISHER:
        return parse_http(traffic, connection)
    while end - position >= FRAME_HEADER_BYTES:
        size = get_u32(position)
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
    return 0


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
            # Still full: a publisher may read its answers meanwhile, a consumer may not (invariant 2).
            if connection.role == CONSUMER:
                return 0
        elif connection.role in (PUBLISHER, HTTP_PUBLISHER) and publish_more(traffic, connection) < 0:
            return -1
    # EPOLLERR and EPOLLHUP come unasked; recv tells what they mean.
    if events & ~(<uint32_t>EPOLLOUT):
        return on_readable(traffic, connection)
    return 0


cdef int ask_to_close(Traffic* traffic) noexcept nogil:
    """Send CLS on every consumer, behind the FINs that may still wait there."""
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


cdef int look_for_end(Traffic* traffic, int64_t now_ns) noexcept nogil:
    """Note what was reached in this pass; 1 when the load is complete, else 0, or -1 on failure."""
    if traffic.publisher_count and not traffic.published_ns and traffic.confirmed == traffic.messages:
        traffic.published_ns = now_ns
    if traffic.consumer_count:
        if not traffic.drained and traffic.tally.unique == traffic.tally.expected:
            if ask_to_close(traffic) < 0:
                return -1
        if traffic.finished_count == traffic.consumer_count and not traffic.consumed_ns:
            traffic.consumed_ns = now_ns
    if not traffic.publisher_count and not traffic.consumer_count:
        return 0
    return (
        (traffic.publisher_count == 0 or traffic.published_ns != 0)
        and (traffic.consumer_count == 0 or traffic.consumed_ns != 0))


cdef int turn(Traffic* traffic, int64_t end_ns) noexcept nogil:
    """Serve events until end_ns; 1 when the load is complete, 0 when the time is over, -1 on failure."""
    cdef epoll_event[EVENT_COUNT_MAX] events
    cdef int64_t now_ns = monotonic_ns()
    cdef int64_t begin_ns
    cdef int count, position, state, timeout_ms
    while now_ns < end_ns:
        timeout_ms = 0 if traffic.spinning else <int>((end_ns - now_ns) // 1_000_000 + 1)
        count = epoll_wait(traffic.epoll_fd, events, EVENT_COUNT_MAX, timeout_ms)
        if count < 0:
            if errno == EINTR:
                return 0
            return fail_errno(traffic, b"epoll_wait: ", errno)
        begin_ns = monotonic_ns()
        for position in range(count):
            if on_event(traffic, &traffic.connections[events[position].data.u32], events[position].events) < 0:
                return -1
        now_ns = monotonic_ns()
        traffic.worked_ns += now_ns - begin_ns
        state = look_for_end(traffic, now_ns)
        if state != 0:
            return state
    return 0
