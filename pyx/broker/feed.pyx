"""What a topic shows its channels: its log, and how far into it they may read.

Fan-out costs no copy: every channel is a cursor over the same log. Pausing a topic holds `end` where it is while the
log goes on growing behind it. The topic is the subclass; a channel knows no more of it than this.

Invariant: `end <= log.end`, and equal unless the topic is paused or has no channel.
"""

from pyqd.hot.diskqueue.log cimport Position
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES


cdef class Feed(Scheduled):
    """A log and the ordinal up to which it is handed to channels."""

    def __init__(self, Log log not None, Scheduler scheduler not None):
        self.log = log
        self.watched = log.first
        self.parking = set()
        self.scheduler = scheduler

    cdef int note_held(self) except -1:
        """Remember where `end` is in the log: from now on it stays there, and messages are held behind it."""
        self.held = self.log.end_position()
        return 0

    def end_position(self):
        """Return the Position of `end`. Cost: O(1), but for the first call after a start, which may walk a segment."""
        if self.end == self.log.end:
            return self.log.end_position()
        if self.held is None:
            self.held = self.log.locate(self.end)
        self.leave_drained_held()
        return Position(self.held.segment, self.held.offset, self.end)

    def leave_drained_held(self):
        """Move the noted position on from the end of a segment, which may be trimmed."""
        if self.held is not None:
            while self.held.offset == self.held.segment.tail and self.held.segment.next is not None:
                self.held = Position(self.held.segment.next, SEGMENT_HEADER_BYTES, self.end)
