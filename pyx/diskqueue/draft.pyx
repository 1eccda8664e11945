"""A batch of a log set aside between two turns of the loop, so that a large MPUB is stored in slices.

    begin_batch, append ... append | set_batch_aside   (the loop runs)   resume_batch | append ... append, commit_batch

While a batch is set aside, the log's tail, count and end are those from before `begin_batch`: readers, syncs and counts
see nothing of the batch, and its first word has not been stored, so a kill leaves nothing of it. The positions that the
batch has reached stand in the log's `batch_tail`, `batch_count`, `batch_end` and `batch_staged_bytes` meanwhile.

The caller sees to it that nothing else is appended to the log until the batch is committed or forgotten. The log may go
on in another segment all the same, as it does for an unreadable page or to shrink: then the batch has to begin again.

Invariants: 1. `log.set_aside` is None or the segment in which the batch lies. 2. No batch is under way while one is set
aside.

Source: docs/storage.md, "Batch".
"""

from libc.stdint cimport uint64_t

from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.staging cimport Staging, shared_staging

cdef Staging staging = shared_staging()


cdef int exchange(Log log) noexcept:
    """Exchange the positions of the log and of its batch."""
    cdef uint64_t tail = log.active.tail
    cdef uint64_t count = log.active.count
    cdef uint64_t end = log.end
    cdef uint64_t staged_bytes = log.staged_bytes
    log.active.tail, log.active.count, log.end = log.batch_tail, log.batch_count, log.batch_end
    log.staged_bytes = log.batch_staged_bytes
    log.batch_tail, log.batch_count, log.batch_end = tail, count, end
    log.batch_staged_bytes = staged_bytes
    return 0


cdef int set_batch_aside(Log log) except -1:
    """Set the batch under way aside. Raises: StorageError (the batch is dropped)."""
    assert log.in_batch and log.set_aside is None and log.batch_at != NULL
    if log.staged:
        try:
            staging.flush_last(log.active.capacity_bytes)
        except BaseException:
            log.abort_batch()
            raise
        staging.finish()
    log.set_aside = log.active
    log.set_aside_staged = log.staged
    log.in_batch = log.staged = False
    exchange(log)
    return 0


cdef bint resume_batch(Log log) except -1:
    """Go on with the batch that is set aside.

    Returns: False if the log has gone on in another segment meanwhile; nothing is left of the batch then.
    """
    assert not log.in_batch and log.set_aside is not None
    if log.set_aside is not log.active or log.closed:
        forget_batch(log)
        return False
    log.set_aside = None
    exchange(log)
    log.in_batch = True
    log.staged = log.set_aside_staged and log.stage()
    return True


cdef int forget_batch(Log log) noexcept:
    """Drop the batch that is set aside: the word that would make it valid has not been written."""
    log.set_aside = None
    log.batch_at = NULL
    return 0
