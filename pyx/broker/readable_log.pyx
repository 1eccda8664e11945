"""Readable part of a topic's log: the log and `end`, the ordinal up to which channels may read.

Fan-out costs no copy, as every channel is a cursor over the same log. A topic that is paused or awaits channels keeps
`end` where it is, while the log grows behind it: those messages are *held*. The topic and its channels share one
ReadableLog; a channel knows no more of its topic than this.

The due times of deferred messages are a second sequence beside the log, which channels read as well: `dues`, up to
`due_end`.

Invariants: 1. `end <= log.end`; they are equal unless the topic is paused, awaits channels or has none. 2. The entries
of `dues` below `due_end` are those of the records below `end`.
"""

cimport cython

from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES
from pyqd.hot.primitives.debug cimport debug_require


@cython.final
cdef class ReadableLog:
    """Readable part of a log. dues: of the log. topic: woken when the log can be trimmed; None once it is deleted.

    end: ordinal.
    """

    def __init__(
        self, Log log not None, Dues dues not None, Scheduler scheduler not None, Scheduled topic not None,
        uint64_t end,
    ):
        assert end <= log.end
        self.dues = dues
        self.dues_stored = dues.end
        self.due_end = dues.lower_bound(end)
        self.log = log
        self.scheduler = scheduler
        self.topic = topic
        self.end = end
        self.oldest_unfinished = log.first

    cdef int note_passed(self, Ledger ledger) except -1:
        """Like `note_floor`, for a floor that has passed the segment: exceptions below it may still be in there."""
        debug_require(self.oldest_unfinished is not self.log.active)
        return self.request_trim() if ledger.oldest_unfinished() >= self.oldest_unfinished.end_ordinal() else 0

    cdef int request_trim(self) except -1:
        if self.topic is None:
            return 0
        self.trim_wanted = True
        return self.scheduler.request_wake(self.topic)

    cdef int advance_end(self) except -1:
        assert self.end <= self.log.end, "channels were given records that the log does not have"
        self.end = self.log.end
        self.due_end = self.dues_stored
        return 0

    cdef int move_end(self, uint64_t end) except -1:
        """Let the channels read up to an ordinal, at a start. Cost: O(log dues)."""
        assert end <= self.log.end
        self.end = end
        self.due_end = self.dues.lower_bound(end)
        return 0

    cdef int note_held(self) except -1:
        """Remember the place of `end` in the log: it stays there, and the messages behind it are held."""
        assert self.end == self.log.end, "messages are held already"
        self.held = self.log.end_position()
        return 0

    cdef int forget_held(self) except -1:
        """Forget the remembered place: no message is held any more."""
        self.held = None
        return 0

    cdef Position end_position(self):
        """Return the Position of `end`. Cost: O(1); the first call after a start may walk a segment."""
        assert self.end <= self.log.end
        if self.end == self.log.end:
            return self.log.end_position()
        if self.held is None:
            self.held = self.log.locate(self.end)
        self.leave_drained_held()
        return Position(self.held.segment, self.held.offset, self.end)

    cdef int leave_drained_held(self) except -1:
        """Move the remembered place on from the end of a segment, which may be trimmed."""
        if self.held is not None:
            while self.held.offset == self.held.segment.tail and self.held.segment.next is not None:
                self.held = Position(self.held.segment.next, SEGMENT_HEADER_BYTES, self.end)
        return 0
