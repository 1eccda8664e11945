# Writes past the page cache that neither block nor need a thread. Design notes: pyx/aio.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "linux/aio_abi.h":
    ctypedef unsigned long aio_context_t
    const int IOCB_CMD_PWRITE
    const int IOCB_FLAG_RESFD

    struct iocb:
        uint64_t aio_data
        int aio_rw_flags
        int aio_lio_opcode
        uint32_t aio_fildes
        uint64_t aio_buf
        uint64_t aio_nbytes
        int64_t aio_offset
        uint32_t aio_flags
        uint32_t aio_resfd

    struct io_event:
        int64_t res

cdef class AsyncWriter:
    cdef aio_context_t context           # 0: closed
    cdef int event_fd                    # owned; -1: closed
    cdef iocb block                      # of the write under way
    cdef object content                  # of the write under way, so that it stays
    cdef uint64_t length                 # of the write under way; 0: there is none
