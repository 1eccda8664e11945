"""Writes past the page cache that neither block nor need a thread: submitted, and told of by an eventfd.

A commit of the journal is short, and many wait for it. A thread that made the write would cost two switches and the
interpreter's lock each time, on a busy core as much as a good part of the write itself. The kernel starts the write in
the call and tells its end by a counter that the event loop watches.

The flush belongs to the write (RWF_DSYNC). Where starting it would have to wait, as for a free slot of the disk's
queue, the kernel says so (RWF_NOWAIT) and the caller gives it to a thread.

Linux AIO and not io_uring, which many containers forbid. For one write at a time they cost the same.

Sources: io_submit(2), io_getevents(2), eventfd(2), pwritev2(2).
"""

import errno
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport errno as c_errno
from libc.string cimport memset

cdef extern from "unistd.h" nogil:
    long syscall(long number, ...)

cdef extern from "sys/syscall.h" nogil:
    const long SYS_io_setup
    const long SYS_io_destroy
    const long SYS_io_submit
    const long SYS_io_getevents

cdef extern from "sys/eventfd.h" nogil:
    const int EFD_NONBLOCK
    const int EFD_CLOEXEC
    int eventfd(unsigned int initial, int flags)

cdef extern from "linux/fs.h":
    const int RWF_DSYNC
    const int RWF_NOWAIT

cdef enum:
    WRITES_MAX = 1


cdef class AsyncWriter:
    """One write at a time, of whole blocks. Raises, as it is made: OSError where the system has no such writes."""

    def __cinit__(self):
        self.context = 0
        self.event_fd = -1
        memset(&self.block, 0, sizeof(iocb))

    def __init__(self):
        if syscall(SYS_io_setup, <long> WRITES_MAX, &self.context) != 0:
            raise OSError(c_errno, os.strerror(c_errno))
        self.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.event_fd < 0:
            raise OSError(c_errno, os.strerror(c_errno))

    def close(self):
        """Let go of the kernel's side; waits for a write that is under way."""
        if self.context != 0:
            syscall(SYS_io_destroy, self.context)
            self.context = 0
        if self.event_fd >= 0:
            os.close(self.event_fd)
            self.event_fd = -1

    def submit(self, int fd, content not None, uint64_t offset):
        """Start to write whole blocks, with a flush. fd: open with O_DIRECT. content: aligned, and kept as it is.

        Returns: False if it would have to wait, or cannot be done like this.
        """
        cdef Py_buffer view
        cdef iocb* blocks = &self.block
        assert self.context != 0 and self.length == 0, "one write at a time"
        PyObject_GetBuffer(content, &view, PyBUF_SIMPLE)
        memset(&self.block, 0, sizeof(iocb))
        self.block.aio_fildes = <uint32_t> fd
        self.block.aio_lio_opcode = IOCB_CMD_PWRITE
        self.block.aio_buf = <uint64_t> view.buf
        self.block.aio_nbytes = <uint64_t> view.len
        self.block.aio_offset = <int64_t> offset
        self.block.aio_flags = IOCB_FLAG_RESFD
        self.block.aio_resfd = <uint32_t> self.event_fd
        self.block.aio_rw_flags = RWF_DSYNC | RWF_NOWAIT
        self.content = content
        self.length = <uint64_t> view.len
        PyBuffer_Release(&view)
        if syscall(SYS_io_submit, self.context, <long> 1, &blocks) == 1:
            return True
        self.length = 0
        self.content = None
        return False

    def collect(self):
        """Return the errno of the write that has ended, 0 if all of it is on stable storage; -1: it has not ended."""
        cdef io_event event
        cdef uint64_t length = self.length
        if length == 0 or syscall(SYS_io_getevents, self.context, <long> 0, <long> 1, &event, NULL) != 1:
            return -1
        try:
            os.eventfd_read(self.event_fd)
        except BlockingIOError:
            pass
        self.length = 0
        self.content = None
        if event.res < 0:
            return -event.res
        # The disk is full, or a part of it cannot be written: the next write would say.
        return 0 if <uint64_t> event.res == length else errno.EIO

    @property
    def fileno(self):
        """The eventfd, readable when a write has ended."""
        return self.event_fd
