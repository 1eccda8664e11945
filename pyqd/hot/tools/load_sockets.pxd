# C library calls for non-blocking sockets: send, recv, epoll, the monotonic clock. See epoll(7).
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "<sys/types.h>" nogil:
    ctypedef long ssize_t

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
        SOCK_NONBLOCK
        SOCK_CLOEXEC
    ssize_t recv(int fd, void* target, size_t size, int flags)
    ssize_t send(int fd, const void* source, size_t size, int flags)
    int accept4(int fd, void* address, void* address_bytes, int flags)
    int setsockopt(int fd, int level, int option, const void* value, unsigned int value_bytes)

cdef extern from "<netinet/in.h>" nogil:
    enum:
        IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    enum:
        TCP_NODELAY

cdef extern from "<unistd.h>" nogil:
    int close(int fd)

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLLET
        EPOLL_CTL_ADD
        EPOLL_CTL_MOD
        EPOLL_CTL_DEL
        EPOLL_CLOEXEC
    union epoll_data_t "epoll_data":
        uint32_t u32
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event* event)
    int epoll_wait(int epoll_fd, epoll_event* events, int event_count_max, int timeout_ms)

# As epoll_wait with nanoseconds, which the kernel has since 5.11 and the C library since 2.35.
cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <sys/epoll.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    #ifndef SYS_epoll_pwait2
    #define SYS_epoll_pwait2 441
    #endif
    static inline int bench_epoll_wait_ns(int epoll_fd, struct epoll_event* events, int count_max, int64_t timeout_ns) {
        struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
        long count = syscall(SYS_epoll_pwait2, epoll_fd, events, count_max, &timeout, NULL, (size_t) 0);
        if (count < 0 && errno == ENOSYS)
            return epoll_wait(epoll_fd, events, count_max, (int) (timeout_ns / 1000000));
        return (int) count;
    }
    """
    int epoll_wait_ns "bench_epoll_wait_ns" (
        int epoll_fd, epoll_event* events, int event_count_max, int64_t timeout_ns) nogil

cdef extern from "<sys/prctl.h>" nogil:
    enum:
        PR_SET_TIMERSLACK
    int prctl(int option, unsigned long argument)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec* now)

cdef inline int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec

cdef inline int watch(int epoll_fd, int operation, int fd, uint32_t index, uint32_t events) noexcept nogil:
    # Register (EPOLL_CTL_ADD) or change (EPOLL_CTL_MOD) the events of fd; they arrive with this index.
    cdef epoll_event event
    event.events = events
    event.data.u32 = index
    return epoll_ctl(epoll_fd, operation, fd, &event)
