"""What a topic shows its channels: its log, and how far into it they may read.

Fan-out costs no copy: every channel is a cursor over the same log. Pausing a topic holds `end` where it is while the
log goes on growing behind it. The topic is the subclass; a channel knows no more of it than this.

Invariant: `end <= log.end`, and equal unless the topic is paused or has no channel.
"""


cdef class Feed(Scheduled):
    """A log and the ordinal up to which it is handed to channels."""

    def __init__(self, Log log not None, Scheduler scheduler not None):
        self.log = log
        self.watched = log.first
        self.scheduler = scheduler
