# A thread that writes commits of the journal, without the interpreter. Design notes: pyx/diskqueue/writethread.pyx.
from libc.stdint cimport int64_t, uint64_t

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

cdef class WriteThread:
    cdef Request* request                # owned
    cdef pthread_t thread
    cdef bint runs
    cdef object content                  # of the write under way, so that it stays; None: there is none
