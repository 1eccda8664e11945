"""Waits of a channel: for threads, for disk space and for tokens. The end of each wakes the channel.

    a thread reads pages                  of the cursor, of a message for redelivery, of a due message
    a thread syncs a larger ledger file   before a record beyond the ledger's window is handed out
    a thread syncs the file of a reset    deliveries wait until the reset is made
    no disk space, or a failed run        a timer retries
    no tokens of the rate limit           a timer, when there are some

The reads are noted where they are needed: `reads` of LogCursor and Presence.

Invariants: 1. `growths` counts the ledgers that grow, and a reset. 2. `prepares_reset` implies `resets`.
"""

cimport cython

from pyqd.hot.primitives.clock cimport NS_PER_S, mono_ns


@cython.final
cdef class ChannelWaits:
    """Waits of one channel. files: its ChannelFiles, which have the threads."""

    def __cinit__(self, Scheduled channel not None, Scheduler scheduler not None, files):
        self.channel = channel
        self.scheduler = scheduler
        self.files = files
        self.retry_ns = INT64_MAX

    cdef int end(self) except -1:
        """Wake nothing any more: the channel is deleted."""
        self.channel = None
        return 0

    cdef int wake_channel(self) except -1:
        return 0 if self.channel is None else self.scheduler.request_wake(self.channel)

    cdef int retry_soon(self) except -1:
        """Set a timer that retries: there may be no other sign that the disk has space again."""
        self.retry_ns = mono_ns() + NS_PER_S
        return 0 if self.channel is None else self.scheduler.set_timer(self.channel, self.retry_ns)

    def read_in(self, reader, Segment segment not None, uint64_t start, uint64_t end, *, bint due=False):
        """Read pages of a segment in a thread. reader: the LogCursor or Presence that waits for them.

        due: the pages are of the message that is due first. The timer of due messages is not set meanwhile.
        """
        assert start < end and not reader.reads, "one read at a time"

        def ended():
            reader.reads = False
            reader.note_read(segment, start, end)
            self.due_was_read |= due
            self.wake_channel()

        reader.reads = True
        try:
            self.files.read_in(segment.mapping, start, end, ended)
        except BaseException:
            reader.reads = False
            raise

    cdef int read_absent(self, Presence presence, bint due=False) except -1:
        """Read the pages that were found absent in a thread. due: as for `read_in`."""
        cdef Segment segment = presence.absent
        assert segment is not None, "no page was found absent"
        presence.absent = None
        self.read_in(presence, segment, presence.absent_start, presence.absent_end, due=due)
        return 0

    def grow(self, Ledger ledger not None, uint64_t ordinal, after=None):
        """Grow a ledger until it reaches an ordinal, with the sync of its larger file in a thread.

        after: called at the end, with whether the ledger has grown.
        """
        assert ledger.path is not None, "a ledger in memory grows without a sync"

        def ended(has_grown):
            self.note_growth_ended()
            if after is not None:
                after(has_grown)

        self.growths += 1
        try:
            self.files.grow(ledger, ordinal, ended)
        except BaseException:
            self.growths -= 1
            raise

    def begin_reset(self, Ledger ledger not None, uint64_t target, uint64_t reached):
        """Prepare a reset in a thread, with `prepares_reset` until that has ended. See `Ledger.begin_reset`."""
        assert not self.resets

        def ended(_prepared):
            self.prepares_reset = False

        assert self.growths == 0, "a reset is begun while a ledger grows"
        self.growths = 1
        self.resets = self.prepares_reset = True
        try:
            self.files.prepare_reset(ledger, target, reached, ended)
        except BaseException:
            self.end_reset()
            raise

    def end_reset(self):
        """Deliver again after `begin_reset`, with or without a reset."""
        assert self.resets, "no reset was begun"
        self.resets = self.prepares_reset = False
        self.note_growth_ended()

    cdef int note_growth_ended(self) except -1:
        """Wake the channel after a growth: deliveries have waited."""
        assert self.growths != 0, "a growth has ended twice"
        self.growths -= 1
        return self.wake_channel()
