# Trace events of a channel's deliveries. Design notes: pyx/broker/channel_trace.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.broker.consumer cimport Consumer
from pyqd.hot.broker.slots cimport ReadyEntry, Slot, SlotTable
from pyqd.hot.broker.trace cimport TracePlace
from pyqd.hot.wire.trace_events cimport Kind

cdef class ChannelTrace:
    cdef readonly TracePlace place
    cdef int64_t mono_ns                 # this and the next: time of the last traced delivery, by both clocks
    cdef int64_t wall_ns

    cdef int sent(self, Consumer consumer, const ReadyEntry* entry, int64_t now_ns) except -1
    cdef int note(self, Kind kind, Consumer consumer, const Slot* held, uint32_t value) except -1
    cdef int requeued(self, Consumer consumer, const Slot* held, int64_t delay_ns) except -1
    cdef int timed_out(self, Consumer consumer, const Slot* held) except -1
    cdef int gone(self, Consumer consumer, SlotTable slots) except -1
    cdef int dropped(self, const ReadyEntry* entry, uint32_t reason) except -1
    cdef int dropped_many(self, uint32_t reason, uint64_t count) except -1
