from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t

from pyqd.hot.broker.rate_limit cimport RateLimit
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.schedule cimport Scheduled, Scheduler

cdef class ChannelWaits:
    cdef Scheduled channel               # None: it is deleted
    cdef Scheduler scheduler
    cdef object files                    # ChannelFiles
    cdef readonly uint32_t growths       # of its ledgers, and a reset
    cdef bint resets                     # deliveries wait for a reset
    cdef readonly bint prepares_reset    # whose file is being synced
    cdef bint due_was_read               # since the last run: the message that is due first waited for it
    cdef bint throttled                  # the last run left messages for want of tokens
    cdef int64_t retry_ns                # monotonic, after a full disk or a failed run; INT64_MAX: neither

    cdef inline bint blocks_delivery(self) noexcept:
        return self.resets

    cdef inline bint is_held_up(self) noexcept:
        # Return True if the disk was full, or a run failed, and the retry is still to come.
        return self.retry_ns != INT64_MAX

    cdef inline int64_t next_retry_ns(self, RateLimit rate_limit) noexcept:
        # Return the time at which the channel has to run to retry; INT64_MAX: it need not.
        return min(self.retry_ns, rate_limit.ready_ns()) if self.throttled else self.retry_ns

    cdef int end(self) except -1
    cdef int wake_channel(self) except -1
    cdef int retry_soon(self) except -1
    cdef int read_absent(self, Presence presence, bint due=*) except -1
    cdef int note_growth_ended(self) except -1
