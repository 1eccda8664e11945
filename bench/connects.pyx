"""Connections that are closed as soon as they are established, many in one call: for `scripts/handover_flood.py`.

Sockets of Python take twice as long, and the broker under test accepts more connections than they begin.
"""

from libc.errno cimport EALREADY, EINPROGRESS, errno
from libc.stdint cimport uint16_t, uint32_t
from libc.string cimport memset

from pyqd.hot.tools.load_sockets cimport SOCK_CLOEXEC, SOCK_NONBLOCK, close, setsockopt

cdef extern from "<sys/socket.h>" nogil:
    enum:
        AF_INET, SOCK_STREAM, SOL_SOCKET, SO_LINGER
    struct sockaddr:
        pass
    struct linger:
        int l_onoff
        int l_linger
    int socket(int domain, int kind, int protocol)
    int bind(int fd, const sockaddr* address, uint32_t size_bytes)
    int connect(int fd, const sockaddr* address, uint32_t size_bytes)

cdef extern from "<netinet/in.h>" nogil:
    struct in_addr:
        uint32_t s_addr
    struct sockaddr_in:
        uint16_t sin_family
        uint16_t sin_port
        in_addr sin_addr
    uint16_t htons(uint16_t number)
    uint32_t htonl(uint32_t number)

cdef uint32_t LOOPBACK = 0x7F000000


cdef sockaddr_in address_of(uint32_t host, uint16_t port) noexcept nogil:
    """Return 127.0.0.`host`:`port`."""
    cdef sockaddr_in address
    memset(&address, 0, sizeof(address))
    address.sin_family = AF_INET
    address.sin_port = htons(port)
    address.sin_addr.s_addr = htonl(LOOPBACK | host)
    return address


cdef int begin(const sockaddr_in* target, const sockaddr_in* source, int* fd) noexcept nogil:
    """Begin to connect. fd: set to the socket, -1 if there is none. Returns: 0 if it is established, or the errno."""
    # Ends a connection without leaving its port in TIME_WAIT.
    cdef linger at_once = linger(1, 0)
    fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)
    if fd[0] < 0:
        return errno
    setsockopt(fd[0], SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once))
    if source != NULL and bind(fd[0], <const sockaddr*> source, sizeof(source[0])) != 0:
        return errno
    if connect(fd[0], <const sockaddr*> target, sizeof(target[0])) == 0:
        return 0
    # On loopback most connections are established by now, which a second call tells.
    if errno == EINPROGRESS and connect(fd[0], <const sockaddr*> target, sizeof(target[0])) == 0:
        return 0
    return errno


def connect_many(uint16_t port, int count, uint32_t source=0):
    """Connect `count` times to a port of 127.0.0.1, and close what is established at once.

    source: last number of the loopback address to connect from; 0: the system selects it.
    Returns: (number established, descriptors of sockets that are connecting, errno of each that failed).
    """
    cdef sockaddr_in target = address_of(1, port)
    cdef sockaddr_in origin = address_of(source, 0)
    cdef int fd, failed
    cdef int established = 0
    cdef list connecting = []
    cdef list errors = []
    for _ in range(count):
        failed = begin(&target, &origin if source else NULL, &fd)
        if failed == 0:
            established += 1
        elif failed == EALREADY or failed == EINPROGRESS:
            connecting.append(fd)
            continue
        else:
            errors.append(failed)
        if fd >= 0:
            close(fd)
    return established, connecting, errors
