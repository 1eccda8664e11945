"""Start of a log: finds the segments of an earlier run, puts them in order, and finds where their records end.

    file's header says      sealed: believed until it is read, or verified after a power failure
                            open, the last one: walked to its end
                            spare: one is kept
                            damaged: moved to `damaged/`, its records are a hole
                        rewritten: files with the same records that were rewritten less often are removed

Apart from pyx/diskqueue/log.pyx, which runs per message: these functions run once, before there is a log.
"""

cimport cython
from libc.stdint cimport UINT64_MAX, uint64_t

from pyqd.hot.diskqueue.segment cimport Segment, SegmentHeader
from pyqd.hot.primitives.releases cimport PAGE_BYTES, whole_pages
from pyqd.hot.wire.record cimport ORDINAL_MASK, RECORD_ALIGN_BYTES

from pyqd.primitives.errors import CorruptionError, LaterFormatError, StorageError

SUFFIX = ".seg"
HALF_MADE = ".making"


def segment_place(Segment segment not None) -> tuple[int, int]:
    """Return the key by which recovery sorts: a segment's place in its log, and how often it was rewritten."""
    return segment.number, segment.rewrites


@cython.final
cdef class FoundSegments:
    """Segments of an earlier run in a log's directory, in order.

    files: the operating system. damage: receives the damage found. power_failed: segments are believed only as far as
    they say they were synced. known: (end, id of the last record) that the log had, as another file says; an end or id
    of 0 is unknown. Raises: LaterFormatError, StorageError.
    """

    def __init__(self, files, directory, damage, bint power_failed, tuple known=(0, 0)):
        self.files = files
        self.directory = directory
        self.damage = damage
        self.power_failed = power_failed
        self.known_end, self.last_guid = known
        self.spares = []
        self.holes = []
        self.replaced_files = []
        self.load_segments()

    cdef int load_segments(self) except -1:
        """Find the segments of an earlier run, put them in order and find the end of the last."""
        cdef Segment segment
        assert not self.spares and not self.holes
        segments = []
        for name in sorted(self.files.list_directory(self.directory)):
            if name.endswith(HALF_MADE):
                # A kill came before the file had all that belongs into it, and its name.
                self.files.remove(f"{self.directory}/{name}")
            if not name.endswith(SUFFIX):
                continue
            segment = self.load_segment(name)
            if segment is None:
                continue
            if segment.number != 0:
                segments.append(segment)
                continue
            self.end_of_spares = max(self.end_of_spares, segment.header().first_seq & ORDINAL_MASK)
            if self.spares or not self.make_spare_durable(segment):
                self.files.remove(segment.mapping.path)
            else:
                self.spares.append(segment)
        segments.sort(key=segment_place)
        self.chain(self.without_superseded(segments))
        return self.report_end()

    cdef list without_superseded(self, list segments):
        """Return segments without those whose place a rewritten one has; their files are removed.

        A kill, or a failed sync of the directory, has left them. Until such a sync a power failure would take the name
        of the rewritten file away.
        """
        cdef Segment segment
        cdef Segment rewritten = None
        cdef list kept = []
        cdef list left = []
        for segment in reversed(segments):
            if rewritten is not None and segment.number >= rewritten.first_number and (
                    segment.rewrites < rewritten.rewrites):
                left.append(segment)
                continue
            kept.append(segment)
            if segment.rewrites != 0:
                rewritten = segment
        for segment in left:
            segment.mapping.file_removed()
            self.replaced_files.append(segment.mapping.path)
        if left:
            try:
                self.files.sync_directory(self.directory)
                while self.replaced_files:
                    self.files.remove(self.replaced_files[0])
                    del self.replaced_files[0]
            except StorageError:
                # The log tries again.
                pass
        return kept[::-1]

    cdef Segment load_segment(self, str name):
        """Return the segment in a file of an earlier run; None for one that is set aside. Raises: LaterFormatError."""
        cdef Segment segment
        cdef str path = f"{self.directory}/{name}"
        cdef str number = name.removesuffix(SUFFIX)
        if number.isascii() and number.isdigit():
            self.file_counter = max(self.file_counter, min(int(number), <uint64_t> 1 << 63) + 1)
        try:
            segment = Segment(self.files.open_mapped(path))
            # The header would bring in as much as the device reads ahead.
            segment.mapping.stop_read_ahead()
            segment.load()
            segment.mapping.read_ahead()
        except LaterFormatError:
            raise
        except CorruptionError as error:
            self.damage.file_set_aside(path, error)
            self.renumber = True
            return None
        if segment.version_mended:
            self.damage.report(path, 8, 4, 0, "the version of the segment's format was damaged; its checksum tells it")
        if self.power_failed and segment.number and segment.header().synced_bytes < segment.tail:
            segment.unverified = True
        return segment

    cdef int open_segment(self, Segment segment, Segment following) except -1:
        """Find the records of a segment of an earlier run. following: the next one; None: it is the last.

        The header of a sealed one is believed until it is read, but after a power failure only as far as it was synced.
        """
        cdef bint last = following is None
        cdef uint64_t count_max = UINT64_MAX
        cdef uint64_t count_known = 0
        cdef SegmentHeader* header = segment.header()
        assert segment.number != 0, "a spare has no records"
        if header.synced_bytes > segment.capacity_bytes:
            header.synced_bytes = segment.capacity_bytes
            segment.cut = True
        if not last and self.continues(segment, following):
            count_max = following.first_ordinal - segment.first_ordinal
        if segment.rewrites != 0 and segment.count > count_max:
            segment.count = count_max
            segment.cut = True
        if header.sealed_bytes == 0:
            if last:
                count_known = self.end_known_from(segment) - segment.first_ordinal
            segment.walk(self.power_failed, count_max, count_known, self.damage.reporter(segment.mapping.path))
        elif last or segment.cut or (self.power_failed and header.synced_bytes < segment.tail):
            if segment.cut:
                self.damage.report(segment.mapping.path, segment.tail, 0, 0, "the file is shorter than its header says")
            # The records that no range stands for are a hole, or behind the end that another number tells.
            segment.mend(
                self.damage.reporter(segment.mapping.path),
                last and self.end_known_from(segment) == segment.first_ordinal)
        if last and segment.cut:
            self.renumber = True
        return 0

    cdef uint64_t end_known_from(self, Segment segment) noexcept:
        """Return the end that the log had at least, as its last segment or another file says."""
        return max(segment.first_ordinal + segment.header().synced_count, self.known_end, segment.first_ordinal)

    cdef int report_end(self) except -1:
        """Report the records that an earlier run had behind the end found, unless that was done."""
        cdef uint64_t known_end = self.known_end
        cdef uint64_t found_end = max(self.end, self.end_of_spares)
        assert self.last is None or self.end == self.last.end_ordinal()
        if self.last is not None:
            known_end = self.end_known_from(self.last)
            found_end = self.end
            if self.last_guid != 0 and self.last.highest_guid >= self.last_guid:
                # The last record is here: a number in another file is damaged.
                return 0
            if found_end + self.last.lost_count >= known_end:
                return 0
        if known_end > found_end:
            self.damage.missing(found_end, known_end)
            self.renumber = True
        return 0

    cdef bint continues(self, Segment segment, Segment following) noexcept:
        """Return whether a segment was begun where another one ended. A copy of it, or one set aside, was not."""
        return (
            following.number != segment.number and following.first_ordinal >= segment.first_ordinal
            and following.header().first_seq >= segment.header().first_seq
        )

    cdef bint make_spare_durable(self, Segment segment) except -1:
        """Sync the header of a spare, so that it is one after a power failure too. Returns: whether that succeeded."""
        assert segment.number == 0 and segment.next is None
        try:
            if segment.mapping.failed_syncs:
                self.files.dirty_again(segment.mapping, 0, PAGE_BYTES)
            self.files.sync(segment.mapping, 0, PAGE_BYTES)
        except StorageError:
            return False
        return True

    cdef int chain(self, list segments) except -1:
        cdef Segment segment
        cdef Segment previous = None
        assert self.first is None and self.last is None, "a log starts once"
        for segment, following in zip(segments, [*segments[1:], None]):
            self.open_segment(segment, following)
            if previous is None:
                self.first = segment
            elif segment.first_ordinal < previous.end_ordinal() or segment.number == previous.number:
                self.damage.file_set_aside(segment.mapping.path, CorruptionError(
                    segment.mapping.path, 16, "another segment holds the same records"))
                continue
            else:
                if segment.first_ordinal > previous.end_ordinal():
                    self.holes.append((previous.end_ordinal(), segment.first_ordinal))
                assert segment.number > previous.number, "segments are in order"
                previous.seal()
                previous.next = segment
            previous = segment
        if previous is not None:
            self.last = previous
            # Behind a rewritten one the log goes on in another: readers by position begin there.
            if previous.rewrites == 0 and previous.is_tail_readable():
                previous.set_checked(whole_pages(previous.tail + RECORD_ALIGN_BYTES))
            else:
                previous.leave()
            if previous.header().sealed_bytes != 0:
                previous.header().sealed_bytes = 0
            # All records of it have been read just now.
            previous.mapping.stop_read_ahead()
            previous.unverified = False
            self.end = previous.end_ordinal()
        assert (self.first is None) == (self.last is None)
        return 0
