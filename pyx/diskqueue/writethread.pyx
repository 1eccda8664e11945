"""A thread that writes one commit of the journal at a time, without the interpreter.

A commit is short, and many wait for it. Handing it to a thread of Python's costs the interpreter's lock twice, and on a
busy core as much time as a good part of the write. This thread takes a request from one eventfd, writes it with
pwritev2(2) and RWF_DSYNC, and wakes the loop by another one.

Rejected: Linux AIO and io_uring, which need no thread here. Their write is completed, and then flushed, by a worker of
the kernel on whatever core took the disk's interrupt; where another process keeps that core busy, it waits for the end
of a time slice, 4 ms and more. A write in a call is completed by the thread that waits for it. The loop itself must not
wait: a flush may take seconds.

Sources: eventfd(2), pwritev2(2), pthread_sigmask(3).
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.signal cimport SIG_SETMASK, sigfillset
from posix.types cimport sigset_t
from posix.uio cimport RWF_DSYNC, iovec, pwritev2
from posix.unistd cimport read, write
from pyqd.hot.primitives.debug cimport debug_require

cdef extern from *:
    """
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <unistd.h>
    #ifndef RWF_DSYNC
    /* musl before 1.2.5 has neither. */
    #define RWF_DSYNC 2
    static ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t offset, int flags) {
        return syscall(SYS_pwritev2, fd, pieces, count, (long) offset, 0L, flags);
    }
    #endif
    """

cdef extern from "pthread.h":
    ctypedef unsigned long pthread_t

# Fields shared by the loop and the thread: the loop stores before it counts `asked_fd` up, the thread before `done_fd`.
cdef struct Request:
    int asked_fd                         # eventfds, owned; -1: none
    int done_fd
    int fd                               # of the file
    int failed                           # errno of the last write, 0: none
    bint stopping                        # the thread ends after the requested write
    char* at                             # NULL: there is nothing to write
    uint64_t length
    uint64_t offset

cdef extern from "pthread.h" nogil:
    int pthread_create(pthread_t* thread, const void* attributes, void* (*start)(void*) noexcept nogil, void* argument)
    int pthread_join(pthread_t thread, void** result)

cdef extern from "signal.h" nogil:
    int pthread_sigmask(int how, const sigset_t* signals, sigset_t* before)

cdef extern from "sys/eventfd.h" nogil:
    const int EFD_NONBLOCK
    const int EFD_CLOEXEC
    int eventfd(unsigned int initial, int flags)


cdef int write_all(int fd, char* at, uint64_t length, uint64_t offset) noexcept nogil:
    """Write a whole buffer to stable storage. Returns: 0, or an errno; after an error any part may be written."""
    cdef iovec piece
    cdef ssize_t written
    debug_require(length != 0)
    while length:
        piece.iov_base = at
        piece.iov_len = length
        written = pwritev2(fd, &piece, 1, <int64_t> offset, RWF_DSYNC)
        if written < 0:
            if errno == EINTR:
                continue
            return errno
        if written == 0:
            return EIO
        at += written
        offset += <uint64_t> written
        length -= <uint64_t> written
    return 0


cdef void wake(int event_fd) noexcept nogil:
    """Count an eventfd up by one."""
    cdef uint64_t one = 1
    while write(event_fd, &one, sizeof(one)) < 0 and errno == EINTR:
        pass


cdef void* run(void* argument) noexcept nogil:
    cdef Request* request = <Request*> argument
    cdef uint64_t count
    while True:
        # An eventfd orders the stores before the count.
        if read(request.asked_fd, &count, sizeof(count)) < 0 and (errno == EINTR or errno == EAGAIN):
            continue
        if request.at != NULL:
            request.failed = write_all(request.fd, request.at, request.length, request.offset)
            request.at = NULL
            wake(request.done_fd)
        if request.stopping:
            return NULL


cdef class WriteThread:
    """Writes to files, each write on stable storage at its end; one at a time. Raises, as it is made: OSError."""

    cdef Request* request                # owned
    cdef pthread_t thread
    cdef bint runs
    cdef object content                  # of the write under way, so that it stays; None: there is none

    def __cinit__(self):
        self.request = <Request*> calloc(1, sizeof(Request))
        if self.request == NULL:
            raise MemoryError
        self.request.asked_fd = self.request.done_fd = -1

    def __init__(self):
        cdef sigset_t every, before
        cdef int failed
        self.request.asked_fd = eventfd(0, EFD_CLOEXEC)
        self.request.done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.request.asked_fd < 0 or self.request.done_fd < 0:
            raise OSError(errno, os.strerror(errno))
        # Signals are for the loop's thread.
        sigfillset(&every)
        pthread_sigmask(SIG_SETMASK, &every, &before)
        failed = pthread_create(&self.thread, NULL, run, self.request)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if failed:
            raise OSError(failed, os.strerror(failed))
        self.runs = True

    def __dealloc__(self):
        # A thread that still runs, as in a process that ends, keeps the memory it uses.
        if self.request != NULL and not self.runs:
            free(self.request)

    def close(self):
        """End the thread when the write under way has ended, and wait for that."""
        if not self.runs:
            return
        self.request.stopping = True
        wake(self.request.asked_fd)
        with nogil:
            pthread_join(self.thread, NULL)
        self.runs = False
        assert self.request.at == NULL, "the write under way has not ended"
        self.content = None
        os.close(self.request.asked_fd)
        os.close(self.request.done_fd)

    def submit(self, int fd, content not None, uint64_t offset):
        """Begin to write. content: one byte or more, kept as it is until `collect` returns an outcome."""
        cdef Py_buffer view
        assert self.runs and self.content is None, "one write at a time"
        PyObject_GetBuffer(content, &view, PyBUF_SIMPLE)
        self.request.fd = fd
        self.request.at = <char*> view.buf
        self.request.length = <uint64_t> view.len
        self.request.offset = offset
        PyBuffer_Release(&view)
        self.content = content
        wake(self.request.asked_fd)

    def collect(self):
        """Return the errno of the write that has ended, 0 if all of it is on stable storage; -1: it has not ended."""
        cdef uint64_t count
        if self.content is None or read(self.request.done_fd, &count, sizeof(count)) < 0:
            return -1
        self.content = None
        return self.request.failed

    @property
    def fileno(self):
        """The eventfd that is readable when a write has ended."""
        return self.request.done_fd
