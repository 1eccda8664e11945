from libc.stdint cimport int64_t, uint64_t

cdef struct Answers:
    char* at                             # filled from its start
    uint64_t size_bytes
    uint64_t used_bytes

cdef class ShortPath:
    cdef uint64_t answer(self, const char* at, uint64_t size_bytes, Answers* answers) except? 0xFFFFFFFFFFFFFFFF

cdef class HttpFront:
    cdef int fd
    cdef object hub
    cdef object watcher
    cdef object greenlet
    cdef ShortPath short_path            # None: every request goes to the routes
    cdef bint short_path_open            # no request is half read, and no answer waits
    cdef bint arrived                    # the greenlet has work: one of the three below
    cdef uint64_t rest_at                # the unanswered part of the shared buffer
    cdef uint64_t rest_end
    cdef object error
    cdef public bytes unsent             # answers of the short path that the full socket did not take; None for none
    cdef public double deadline_s
    cdef public double idle_s            # added to the time of an answer, gives the next deadline

    cdef bint take(self) except -1
    cdef int64_t read(self) except -2
    cdef uint64_t answer_short(self, const char* at, uint64_t size_bytes) except? 0xFFFFFFFFFFFFFFFF
    cdef int send_answers(self, const char* at, uint64_t size_bytes) except -1
