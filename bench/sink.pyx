"""Serve with minimal work per message, to show that the load generator is never the limit.

The sink knows one topic. It swallows PUB, MPUB and DPUB and answers OK; the subscribers of a channel get as many
made-up messages as were published, with the counters 0, 1, 2 ... in the order of sending, and their FINs are only
counted. Nothing is stored, so what the generator reaches against the sink is an upper bound of what it can measure.
Asked to, it appends all that it receives to a file: then it is the upper bound of a server that keeps its messages.

    published  messages taken so far
    emitted    messages sent so far, over all subscribers of a channel; emitted <= published

Deferred messages are answered and forgotten. With many publishers counter n stands for the n-th message that came, not always for the one it was sent in.

Invariants
1. A connection reads only when its replies have left; a reply (10 bytes) is shorter than the command it answers, so
   one input buffer of commands never overfills the replies.
2. Frames and replies never mix: frames leave first, and new ones are built only when both areas are empty.
3. in_flight <= rdy on each connection.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

from pyqd.hot.tools.load_sockets cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL,
    IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, TCP_NODELAY, accept4, close, epoll_create1, epoll_event, epoll_wait,
    recv, send, setsockopt, ssize_t, watch,
)
from pyqd.hot.tools.wire cimport (
    COUNTER_BYTES, FIN_BYTES, FRAME_ERROR, FRAME_HEADER_BYTES, FRAME_MESSAGE, MESSAGE_HEADER_BYTES, MESSAGE_ID_BYTES,
    MESSAGE_ID_OFFSET, get_u32, put_response, put_u32, put_u64,
)

cdef extern from "<unistd.h>" nogil:
    ssize_t write(int fd, const void* data, size_t size_bytes)

cdef enum:
    INPUT_BYTES = 262144
    REPLY_BYTES = 262144 + 64
    FRAMES_BYTES = 131072
    FRAME_COUNT_MIN = 8            # of large messages FRAMES_BYTES would hold a single one
    BODY_BYTES_MAX = 65536
    CONNECTION_COUNT_MAX = 16384
    EVENT_COUNT_MAX = 256
    EMPTY_PASSES_MAX = 10000       # polls in vain before the sink sleeps, some milliseconds
    SLEEP_MS = 200
    LISTENER = CONNECTION_COUNT_MAX
    CHANNEL_COUNT_MAX = 64
    LINE_BYTES_MAX = 256           # of a SUB

cdef struct Client:
    int fd                         # owned
    bint write_armed
    bint greeted                   # the magic came
    uint32_t body_left             # bytes of a PUB or MPUB body still to be swallowed
    uint32_t messages_due          # counted as published when body_left reaches 0
    uint32_t channel               # that it is subscribed to
    uint32_t rdy
    uint32_t in_flight
    uint32_t input_end
    uint32_t reply_start
    uint32_t reply_end
    uint32_t frames_start
    uint32_t frames_end
    char* input                    # owned, as the next two
    char* replies
    char* frames                   # NULL until the first message leaves
    uint32_t frame_bytes           # number of messages for which frames was prebuilt

cdef struct Sink:
    int epoll_fd
    int listener_fd                # borrowed
    int store_fd                   # file for all received bytes; -1: none
    uint32_t client_count          # slots used; a slot is not used again
    uint32_t body_bytes            # of the messages given out: that of the last one published
    uint32_t empty_passes          # since the last event
    uint64_t published
    uint32_t channel_count
    uint64_t[CHANNEL_COUNT_MAX] emitted
    char[CHANNEL_COUNT_MAX][LINE_BYTES_MAX] channels       # each as the SUB that named it
    uint64_t finished
    Client** clients               # CONNECTION_COUNT_MAX pointers, NULL for a closed client


cdef void drop(Sink* sink, uint32_t index) noexcept nogil:
    cdef Client* client = sink.clients[index]
    close(client.fd)
    free(client.input)
    free(client.replies)
    free(client.frames)
    free(client)
    sink.clients[index] = NULL


cdef int accept_all(Sink* sink, int listener_fd) noexcept nogil:
    """Take every connection that waits at a listener; -1 when memory or slots are used up."""
    cdef Client* client
    cdef int fd
    cdef int on = 1
    while True:
        fd = accept4(listener_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if fd < 0:
            return 0
        client = <Client*>calloc(1, sizeof(Client))
        if client == NULL or sink.client_count == CONNECTION_COUNT_MAX:
            close(fd)
            free(client)
            return -1
        client.fd = fd
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on))
        # The margin lets the first bytes of a command be compared without asking how many there are.
        client.input = <char*>malloc(INPUT_BYTES + FIN_BYTES)
        client.replies = <char*>malloc(REPLY_BYTES)
        sink.clients[sink.client_count] = client
        sink.client_count += 1
        if client.input == NULL or client.replies == NULL:
            return -1
        if watch(sink.epoll_fd, EPOLL_CTL_ADD, fd, sink.client_count - 1, EPOLLIN) < 0:
            return -1


cdef int send_area(Client* client, char* area, uint32_t* start, uint32_t* end) noexcept nogil:
    """Send area[start:end]; 1 when it is empty, 0 when the socket is full, -1 when the client is gone."""
    cdef ssize_t sent
    while start[0] < end[0]:
        sent = send(client.fd, area + start[0], end[0] - start[0], MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent >= 0:
            start[0] += <uint32_t>sent
        elif errno == EAGAIN:
            return 0
        elif errno != EINTR:
            return -1
    start[0] = end[0] = 0
    return 1


cdef int flush(Sink* sink, Client* client, uint32_t index) noexcept nogil:
    cdef int state = send_area(client, client.frames, &client.frames_start, &client.frames_end)
    if state == 1:
        state = send_area(client, client.replies, &client.reply_start, &client.reply_end)
    if state >= 0 and client.write_armed == (state == 1):
        client.write_armed = state == 0
        watch(sink.epoll_fd, EPOLL_CTL_MOD, client.fd, index, EPOLLOUT if state == 0 else EPOLLIN)
    return state


cdef uint32_t frames_max(uint32_t frame_bytes) noexcept nogil:
    cdef uint32_t count = FRAMES_BYTES // frame_bytes
    return count if count > FRAME_COUNT_MIN else FRAME_COUNT_MIN


cdef int prebuild(Client* client, uint32_t frame_bytes) noexcept nogil:
    """Make the area of frames and fill it with message frames that lack only their counters."""
    cdef uint32_t position = 0
    cdef uint32_t size = frames_max(frame_bytes) * frame_bytes
    cdef char* data
    free(client.frames)
    client.frames = <char*>malloc(size)
    if client.frames == NULL:
        return -1
    client.frame_bytes = frame_bytes
    memset(client.frames, b"x", size)
    while position < size:
        data = client.frames + position + FRAME_HEADER_BYTES
        put_u32(client.frames + position, frame_bytes - 4)
        put_u32(client.frames + position + 4, FRAME_MESSAGE)
        memset(data, 0, MESSAGE_ID_OFFSET)
        memset(data + MESSAGE_ID_OFFSET, b"0", MESSAGE_ID_BYTES)
        position += frame_bytes
    return 0


cdef int emit(Sink* sink, Client* client, uint32_t index) noexcept nogil:
    """Deliver messages while the client's RDY permits it and messages remain; -1 if the client is gone."""
    cdef uint32_t frame_bytes = FRAME_HEADER_BYTES + MESSAGE_HEADER_BYTES + sink.body_bytes
    cdef uint64_t count
    cdef char* target
    cdef int state = 1
    while state == 1 and client.frames_end == 0 and client.reply_end == 0:
        count = sink.published - sink.emitted[client.channel]
        if count > client.rdy - client.in_flight:
            count = client.rdy - client.in_flight
        if count > frames_max(frame_bytes):
            count = frames_max(frame_bytes)
        if count == 0:
            return 0
        if client.frame_bytes != frame_bytes and prebuild(client, frame_bytes) < 0:
            return -1
        client.in_flight += <uint32_t>count
        client.frames_end = <uint32_t>count * frame_bytes
        target = client.frames + FRAME_HEADER_BYTES + MESSAGE_HEADER_BYTES
        while count:
            put_u64(target, sink.emitted[client.channel])
            sink.emitted[client.channel] += 1
            target += frame_bytes
            count -= 1
        state = flush(sink, client, index)
    return state


cdef uint32_t number(const char* text, const char* end) noexcept nogil:
    cdef uint32_t value = 0
    while text < end and b"0" <= text[0] <= b"9":
        value = value * 10 + <uint32_t>(text[0] - 48)
        text += 1
    return value


cdef int reply(Client* client, const char* text, uint32_t text_bytes) noexcept nogil:
    client.reply_end += put_response(client.replies + client.reply_end, text, text_bytes)
    return 0


cdef int subscribe(Sink* sink, Client* client, const char* line, const char* end) noexcept nogil:
    """Give the client the channel of that line; -1 when there are too many."""
    cdef uint32_t channel = 0
    cdef size_t size = end - line + 1
    if size > LINE_BYTES_MAX:
        return -1
    while channel < sink.channel_count and memcmp(sink.channels[channel], line, size) != 0:
        channel += 1
    if channel == CHANNEL_COUNT_MAX:
        return -1
    if channel == sink.channel_count:
        memcpy(sink.channels[channel], line, size)
        sink.channel_count += 1
    client.channel = channel
    return reply(client, b"OK", 2)


cdef int on_line(Sink* sink, Client* client, const char* line, const char* end) noexcept nogil:
    """Execute one command without a body; end points at the LF. -1 closes the connection."""
    if memcmp(line, b"RDY ", 4) == 0:
        client.rdy = number(line + 4, end)
        return 0
    if memcmp(line, b"NOP", 3) == 0:
        return 0
    if memcmp(line, b"SUB ", 4) == 0:
        return subscribe(sink, client, line, end)
    if memcmp(line, b"CLS", 3) == 0:
        if client.in_flight == 0:
            return reply(client, b"CLOSE_WAIT", 10)
        reply(client, b"E_INVALID messages are not finished", 35)
        put_u32(client.replies + client.reply_end - 39, FRAME_ERROR)
        return 0
    return -1


cdef const char* on_body_command(
        Sink* sink, Client* client, const char* line, const char* body, const char* end) noexcept nogil:
    """Begin a PUB, MPUB, DPUB or IDENTIFY whose body starts at `body`.

    Returns the end of its counted header, NULL if more bytes are needed; sets body_left to the bytes that follow.
    """
    cdef bint many = line[0] == b"M"
    if end - body < (12 if many else 4):
        return NULL
    client.body_left = get_u32(body)
    client.messages_due = 0
    if many:
        client.messages_due = get_u32(body + 4)
        sink.body_bytes = get_u32(body + 8)
        client.body_left -= 8
        body += 8
    elif line[0] == b"P":
        client.messages_due = 1
        sink.body_bytes = client.body_left
    return body + 4


cdef int is_body_command(const char* line) noexcept nogil:
    return (
        memcmp(line, b"PUB ", 4) == 0 or memcmp(line, b"MPUB", 4) == 0 or memcmp(line, b"DPUB", 4) == 0
        or memcmp(line, b"IDEN", 4) == 0)


cdef int parse_input(Sink* sink, Client* client) noexcept nogil:
    """Execute all whole commands of the input; -1 closes the connection."""
    cdef const char* position = client.input
    cdef const char* end = client.input + client.input_end
    cdef const char* line_end
    cdef const char* body
    if not client.greeted and client.input_end >= 4:
        client.greeted = True
        position += 4
    while client.greeted and position < end:
        if client.body_left:
            if client.body_left > <size_t>(end - position):
                client.body_left -= <uint32_t>(end - position)
                position = end
                break
            position += client.body_left
            client.body_left = 0
            sink.published += client.messages_due
            reply(client, b"OK", 2)
            continue
        if end - position >= FIN_BYTES and memcmp(position, b"FIN ", 4) == 0 and position[FIN_BYTES - 1] == b"\n":
            if client.in_flight == 0:
                return -1
            client.in_flight -= 1
            sink.finished += 1
            position += FIN_BYTES
            continue
        line_end = <const char*>memchr(position, b"\n", end - position)
        if line_end == NULL:
            break
        if is_body_command(position):
            body = on_body_command(sink, client, position, line_end + 1, end)
            if body == NULL:
                break
            if sink.body_bytes > BODY_BYTES_MAX:
                return -1
            position = body
            continue
        if on_line(sink, client, position, line_end) < 0:
            return -1
        position = line_end + 1
    client.input_end = <uint32_t>(end - position)
    if client.input_end and position != client.input:
        memmove(client.input, position, client.input_end)
    return 0


cdef int on_readable(Sink* sink, Client* client) noexcept nogil:
    cdef ssize_t count = recv(
        client.fd, client.input + client.input_end, INPUT_BYTES - client.input_end, MSG_DONTWAIT)
    if count < 0:
        return 0 if errno == EAGAIN or errno == EINTR else -1
    if count == 0:
        return -1
    if sink.store_fd >= 0 and write(sink.store_fd, client.input + client.input_end, <size_t>count) != count:
        return -1
    client.input_end += <uint32_t>count
    return parse_input(sink, client)


cdef bint any_left(Sink* sink) noexcept nogil:
    cdef uint32_t channel
    for channel in range(sink.channel_count):
        if sink.emitted[channel] < sink.published:
            return True
    return False


cdef int turn(Sink* sink) noexcept nogil:
    """Serve one batch of events, then send the published messages; -1 if the sink cannot go on."""
    cdef epoll_event[EVENT_COUNT_MAX] events
    cdef Client* client
    cdef uint32_t index
    cdef int position, state
    cdef int timeout_ms = 0 if sink.empty_passes < EMPTY_PASSES_MAX else SLEEP_MS
    cdef int count = epoll_wait(sink.epoll_fd, events, EVENT_COUNT_MAX, timeout_ms)
    if count < 0:
        return 0 if errno == EINTR else -1
    sink.empty_passes = 0 if count else sink.empty_passes + (timeout_ms == 0)
    for position in range(count):
        index = events[position].data.u32
        if index == LISTENER:
            if accept_all(sink, sink.listener_fd) < 0:
                return -1
            continue
        client = sink.clients[index]
        if events[position].events & EPOLLOUT:
            state = flush(sink, client, index)
        else:
            state = on_readable(sink, client)
            if state == 0:
                state = flush(sink, client, index)
        if state < 0:
            drop(sink, index)
    if any_left(sink):
        for index in range(sink.client_count):
            client = sink.clients[index]
            if client != NULL and client.rdy and emit(sink, client, index) < 0:
                drop(sink, index)
    return 0


def serve(int listener_fd, int store_fd=-1):
    """Serve on a listening non-blocking socket until a signal ends the process.

    store_fd: a file to which all received bytes are appended, or -1. A failed write ends the connection it came from.
    Raises: MemoryError if memory or the 16384 slots of connections are used up; the exception of a signal handler.
    """
    cdef Sink sink
    cdef uint32_t index
    cdef int state = 0
    memset(&sink, 0, sizeof(Sink))
    sink.listener_fd = listener_fd
    sink.store_fd = store_fd
    sink.body_bytes = COUNTER_BYTES
    sink.clients = <Client**>calloc(CONNECTION_COUNT_MAX, sizeof(Client*))
    if sink.clients == NULL:
        raise MemoryError
    sink.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
    try:
        if sink.epoll_fd < 0:
            raise OSError(errno, "epoll_create1")
        if watch(sink.epoll_fd, EPOLL_CTL_ADD, listener_fd, LISTENER, EPOLLIN) < 0:
            raise OSError(errno, "epoll_ctl")
        while state == 0:
            with nogil:
                state = turn(&sink)
            PyErr_CheckSignals()
        raise MemoryError
    finally:
        for index in range(sink.client_count):
            if sink.clients[index] != NULL:
                drop(&sink, index)
        free(sink.clients)
        if sink.epoll_fd >= 0:
            close(sink.epoll_fd)
