# send(2), sendmsg(2) and recv(2) on a non-blocking socket. All of it is inline, so there is no .pyx.
from libc.errno cimport EAGAIN, EFAULT, EINTR, errno
from libc.stdint cimport uint64_t
from libc.string cimport memset

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    ssize_t send(int fd, const void* data, size_t size_bytes, int flags)
    ssize_t recv(int fd, void* data, size_t size_bytes, int flags)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL

cdef enum:
    READ_EVENT = 1                       # libev's EV_READ, for a watcher of the loop; net/slice_queue.py for Python
    WRITE_EVENT = 2

cdef enum:
    RECEIVE_NONE = -1                    # no bytes yet
    RECEIVE_BROKEN = -2                  # the connection is gone

# Send some bytes. Returns: how many; 0 if the socket is full; -1 if the peer is gone.
cdef inline ssize_t send_some(int fd, const char* data, uint64_t size_bytes) noexcept nogil:
    cdef ssize_t sent
    while True:
        sent = send(fd, data, size_bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent >= 0 or errno != EINTR:
            break
    if sent < 0:
        return 0 if errno == EAGAIN else -1
    return sent

cdef extern from *:
    """
    static inline void pyqd_touch(const char *at) { (void) *(const volatile char *) at; }
    """
    # Reads a byte, which maps the file of its page.
    void touch "pyqd_touch" (const char* at) noexcept nogil

# Send some bytes of two consecutive pieces. Returns: as send_some. The second piece may lie in a file whose mapping is
# currently released: the call then fails, and touching a byte maps the file again (see pyx/diskqueue/arena.pyx).
cdef inline ssize_t send_two(
    int fd, const char* first, uint64_t first_bytes, const char* second, uint64_t second_bytes,
) noexcept nogil:
    cdef iovec[2] pieces
    cdef msghdr message
    cdef ssize_t sent
    cdef int faults = 0
    memset(&message, 0, sizeof(message))
    pieces[0].iov_base = <void*> first
    pieces[0].iov_len = first_bytes
    pieces[1].iov_base = <void*> second
    pieces[1].iov_len = second_bytes
    message.msg_iov = pieces
    message.msg_iovlen = 2
    while True:
        sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent < 0 and errno == EFAULT and faults < 3:
            faults += 1
            touch(second)
        elif sent >= 0 or errno != EINTR:
            break
    if sent < 0:
        return 0 if errno == EAGAIN else -1
    return sent

# Receive some bytes. Returns: how many; 0 at the end; RECEIVE_NONE, RECEIVE_BROKEN.
cdef inline ssize_t receive_some(int fd, char* into, uint64_t capacity) noexcept nogil:
    cdef ssize_t received
    while True:
        received = recv(fd, into, capacity, MSG_DONTWAIT)
        if received >= 0 or errno != EINTR:
            break
    if received < 0:
        return RECEIVE_NONE if errno == EAGAIN else RECEIVE_BROKEN
    return received
