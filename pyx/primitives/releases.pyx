"""Thread that drops references to removed files, and frees large memory, beside the event loop.

Problem: the last munmap(2) or close(2) of a removed file frees its blocks before the call returns. On ext4 with
`discard` that took up to 250 ms, most of it a wait. The arrays and the id table of a channel with a million messages in
flight have 100 MB, and freeing them took 12 ms of CPU time.

Each reference is a *release*: a function and the data that it needs, in one queue. One thread runs the releases in
order, without the interpreter. `run_later` runs a release on the spot if there is no thread: in tools, in a forked
child, and after the last `stop`. It does the same when PENDING_MAX releases are pending, because each of them keeps a
mapping of the process.

The event loop does not wait for a release. The kernel holds the lock of the process's mappings while it removes page
table entries, and frees the blocks later, on the way out of the system call.

A caller that needs the space of removed files at once calls `settle`, which waits for the pending releases.

Invariants:
1. `pending` counts the releases in the queue and the one that runs.
2. No code runs a release while it holds the mutex.

Rejected: a second descriptor of each removed file, closed by the thread that removes it (limits descriptors, and that
thread would have to learn when the last mapping is gone); the broker's pool of threads (a release would wait behind
syncs).

Sources: munmap(2), madvise(2), close(2); fput() and task_work_run() in Linux.
"""

from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

from pyqd.hot.primitives.arrays cimport ARRAY_MAPPED_MIN, array_release

import os

cdef extern from *:
    """
    #include <pthread.h>
    #include <signal.h>
    #include <stdlib.h>
    static pthread_mutex_t pyqd_releases_mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t pyqd_releases_wanted = PTHREAD_COND_INITIALIZER;
    static pthread_cond_t pyqd_releases_done = PTHREAD_COND_INITIALIZER;
    static inline void pyqd_releases_lock(void) { pthread_mutex_lock(&pyqd_releases_mutex); }
    static inline void pyqd_releases_unlock(void) { pthread_mutex_unlock(&pyqd_releases_mutex); }
    static inline void pyqd_releases_wait_wanted(void) {
        pthread_cond_wait(&pyqd_releases_wanted, &pyqd_releases_mutex);
    }
    static inline void pyqd_releases_wake_thread(void) { pthread_cond_signal(&pyqd_releases_wanted); }
    static inline void pyqd_releases_wait_done(void) { pthread_cond_wait(&pyqd_releases_done, &pyqd_releases_mutex); }
    static inline void pyqd_releases_wake_waiting(void) { pthread_cond_broadcast(&pyqd_releases_done); }
    static inline void pyqd_releases_reserve_heap(void) {
        /* Else the compiler leaves out both calls. */
        void *volatile block = malloc(1);
        free(block);
    }
    /* Signals are for the loop's thread. */
    static int pyqd_releases_create(pthread_t *thread, void *(*start)(void *)) {
        sigset_t every, before;
        int failed;
        sigfillset(&every);
        pthread_sigmask(SIG_SETMASK, &every, &before);
        failed = pthread_create(thread, NULL, start, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (!failed)
            pthread_setname_np(*thread, "pyqd-releases");
        return failed;
    }
    """
    ctypedef unsigned long pthread_t
    void lock "pyqd_releases_lock" () noexcept nogil
    void unlock "pyqd_releases_unlock" () noexcept nogil
    void wait_wanted "pyqd_releases_wait_wanted" () noexcept nogil
    void wake_thread "pyqd_releases_wake_thread" () noexcept nogil
    void wait_done "pyqd_releases_wait_done" () noexcept nogil
    void wake_waiting "pyqd_releases_wake_waiting" () noexcept nogil
    void reserve_heap "pyqd_releases_reserve_heap" () noexcept nogil
    int create "pyqd_releases_create" (pthread_t* thread, void* (*start)(void*) noexcept nogil)
    int pthread_join(pthread_t thread, void** result) nogil

cdef extern from "<sys/mman.h>" nogil:
    int munmap(void* address, size_t length)
    int madvise(void* address, size_t length, int advice)
    const int MADV_DONTNEED

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    int getpid()
    long sysconf(int name)
    const int _SC_PAGESIZE

cdef enum:
    PENDING_MAX = 4096
    # Descriptors that wait to be closed count among the daemon's own (pyqd/broker/capacity.py).
    CLOSING_MAX = 16
    PIECE_BYTES = 1 << 19

cdef struct FileRelease:
    Release release                      # first, so that its address is that of the whole
    void* base                           # NULL: no mapping
    size_t size_bytes
    int fd                               # -1: none

cdef struct MemoryRelease:
    Release release                      # first, as above
    char* base
    size_t size_bytes
    bint is_mapped                       # else it is of malloc(3)

cdef Release* first = NULL
cdef Release* last = NULL
cdef uint64_t pending = 0
cdef uint64_t closing = 0                # of the pending ones
cdef uint64_t users = 0                  # calls of `start` without their `stop`
cdef bint running = False                # the thread takes releases
cdef bint begun = False                  # the thread has its memory
cdef bint held = False                   # for tests
cdef int owner = 0                       # process that the thread belongs to
cdef pthread_t thread


cdef bint has_thread() noexcept nogil:
    """Return whether a thread may run releases. A forked child has none, and must not wait for the mutex."""
    return running and getpid() == owner


cdef bint enqueue(Release* release, bint closes) noexcept nogil:
    """Add a release to the queue. Returns: False if the caller has to run it."""
    global first, last, pending, closing
    cdef bint added
    if not has_thread():
        return False
    lock()
    added = running and pending < PENDING_MAX and (not closes or closing < CLOSING_MAX)
    if added:
        release.following = NULL
        release.closes = closes
        if last == NULL:
            first = release
        else:
            last.following = release
        last = release
        pending += 1
        closing += closes
        wake_thread()
    unlock()
    return added


cdef void run_later(Release* release) noexcept nogil:
    if not enqueue(release, False):
        release.run(release)


cdef void close_later(int fd) noexcept nogil:
    cdef FileRelease* made = new_release(NULL, 0, fd)
    if made == NULL:
        close(fd)
    elif not enqueue(&made.release, True):
        drop(&made.release)


cdef void unmap_later(void* base, size_t size_bytes) noexcept nogil:
    """Unmap a range that the caller has mapped."""
    cdef FileRelease* made = new_release(base, size_bytes, -1)
    if made == NULL:
        munmap(base, size_bytes)
    else:
        run_later(&made.release)


cdef void free_later(void* block, size_t size_bytes) noexcept nogil:
    """Free a block of malloc(3) with at least this many bytes."""
    release_memory(<char*> block, size_bytes, False)


cdef void array_release_later(Array* array) noexcept nogil:
    """Free the memory of an array, which is empty then. A small array is freed on the spot."""
    if array.bytes < ARRAY_MAPPED_MIN:
        array_release(array)
        return
    release_memory(<char*> array.base, array.bytes, True)
    array.base = NULL
    array.bytes = 0


cdef void release_memory(char* base, size_t size_bytes, bint is_mapped) noexcept nogil:
    cdef MemoryRelease* made = <MemoryRelease*> malloc(sizeof(MemoryRelease))
    if made != NULL:
        made[0] = MemoryRelease(
            release=Release(run=drop_memory, following=NULL, closes=False),
            base=base, size_bytes=size_bytes, is_mapped=is_mapped)
        run_later(&made.release)
    elif is_mapped:
        munmap(base, size_bytes)
    else:
        free(base)


cdef FileRelease* new_release(void* base, size_t size_bytes, int fd) noexcept nogil:
    cdef FileRelease* made = <FileRelease*> malloc(sizeof(FileRelease))
    if made != NULL:
        made.release.run = drop
        made.base = base
        made.size_bytes = size_bytes
        made.fd = fd
    return made


cdef void drop(Release* release) noexcept nogil:
    cdef FileRelease* dropped = <FileRelease*> release
    if dropped.base != NULL:
        munmap(dropped.base, dropped.size_bytes)
    if dropped.fd >= 0:
        close(dropped.fd)
    free(dropped)


cdef void drop_memory(Release* release) noexcept nogil:
    """Free the memory, and the release.

    Pages go in pieces. One munmap(2) of all would lock the process's mappings for as long as it frees pages, 12 ms for
    100 MB, and the event loop's next mmap(2) or munmap(2) would wait.
    """
    cdef MemoryRelease* dropped = <MemoryRelease*> release
    # Only whole pages: malloc(3) uses the bytes before and after a block.
    cdef uint64_t page_bytes = <uint64_t> sysconf(_SC_PAGESIZE)
    cdef uintptr_t at = kernel_page_start(<uintptr_t> dropped.base + page_bytes - 1)
    cdef uintptr_t end = kernel_page_start(<uintptr_t> dropped.base + dropped.size_bytes)
    while at < end:
        madvise(<void*> at, min(end - at, <uintptr_t> PIECE_BYTES), MADV_DONTNEED)
        at += PIECE_BYTES
    if dropped.is_mapped:
        munmap(dropped.base, dropped.size_bytes)
    else:
        free(dropped.base)
    free(dropped)


cdef void* work(void* argument) noexcept nogil:
    """Run releases until the last `stop`, then those that are pending. Runs in the thread."""
    global first, last, pending, closing, begun
    cdef Release* release
    cdef bint closes
    # At a thread's first malloc or free, the C library reserves 64 MiB of addresses. With a limit of the address space
    # (ulimit -v), that must happen before topics are accepted up to the limit.
    reserve_heap()
    lock()
    begun = True
    wake_waiting()
    while True:
        while running and (first == NULL or held):
            wait_wanted()
        if first == NULL:
            unlock()
            return NULL
        release = first
        first = release.following
        if first == NULL:
            last = NULL
        closes = release.closes
        unlock()
        release.run(release)
        lock()
        pending -= 1
        closing -= closes
        wake_waiting()


def start():
    """Run releases in a thread until `stop` has been called as often as this. Raises: OSError."""
    global users, running, owner, begun
    cdef int failed
    if users == 0:
        running = True
        begun = False
        owner = getpid()
        failed = create(&thread, work)
        if failed:
            running = False
            raise OSError(failed, os.strerror(failed))
        with nogil:
            lock()
            while not begun:
                wait_done()
            unlock()
    users += 1


def stop():
    """Run what is pending, and end the thread with the last user."""
    global users, running
    assert users > 0, "stop without start"
    users -= 1
    if users > 0 or not has_thread():
        return
    with nogil:
        lock()
        running = False
        wake_thread()
        unlock()
        pthread_join(thread, NULL)


def settle():
    """Wait until no release is pending, so that the space of removed files is free."""
    if not has_thread():
        return
    with nogil:
        lock()
        while pending > 0:
            wait_done()
        unlock()


def pending_count():
    """Return how many releases are pending."""
    return pending


def hold_for_tests(bint wanted):
    """Keep the thread from running releases, for tests; `stop` runs them nevertheless."""
    global held
    with nogil:
        lock()
        held = wanted
        wake_thread()
        unlock()
