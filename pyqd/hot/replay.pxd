# Moving a channel to another place of its topic's log. Design notes: pyx/replay.pyx.
from libc.stdint cimport uint64_t

from pyqd.hot.ledger cimport Ledger
from pyqd.hot.log cimport Log

cdef uint64_t finished_in(Ledger ledger, uint64_t start, uint64_t end) noexcept
cdef uint64_t missing_in(Log log, uint64_t start, uint64_t end) except? <uint64_t> -1
