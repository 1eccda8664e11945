"""Address range in which files are mapped on demand, so that idle files cost no mapping of the process.

Problem: Linux allows a process vm.max_map_count mappings, 65,530 by default, and a topic with one channel has three
files. Compiled code holds pointers into mapped files everywhere, so a file cannot move in memory.

    arena  | file A | no access ........ | file B | no access: file C, not mapped now | file D | ...
             slots of 64 KiB, 2**order of them for each file; a table leads from a slot to its extent

The arena is one reserved range without access rights. Each file has an *extent*, a fixed range of the arena. An idle
extent is unmapped in place, and the reserved pages that replace it merge with their neighbours to one mapping. An
access to it raises SIGSEGV; the handler maps the file again at the same address, and the access is repeated. So a
pointer stays valid for the life of its extent, and an access to a mapped file has no extra cost.

Extents are unmapped by the clock algorithm with two hands. When more than half of the budget is mapped, the extent that
was mapped first is *guarded*: it loses its access rights. An access restores them, and the extent counts as the newest.
When the budget is used up, the extent that has been guarded for the longest time is unmapped.

A start opens every file, and most stay idle. Between `begin_load` and `end_load` no extent is guarded. When half of the
budget is mapped, the oldest extents are unmapped, and neighbours in the arena by one system call.

If a page cannot be written back, the next sync of its file reports that, unless the kernel has forgotten the file. A
mapping keeps a file in the kernel's memory. Nothing can be stored to a guarded extent, so all of its content is on
stable storage after a complete sync that began later (`begin_sync`, `end_sync`). If an extent has to be unmapped before
such a sync, a descriptor keeps the file in the kernel's memory until the sync. There are up to KEPT_MAX of these.

A system call on an address of the arena does not raise SIGSEGV but fails with EFAULT. So the caller pins the extent
before. Threads pin as well, because the handler of another thread may unmap any extent that is not pinned.

A page that the disk cannot read raises SIGBUS. While the extent is not *verified*, a handler maps a page of zeros in
its place, which is *lost*, and pins the extent. The reader of an unverified file checks its content, asks whether the
page is lost, and treats it as damage. So a start continues, and needs no read or check ahead. In a verified extent the
signal ends the process, because no reader would check the zeros. A store to such a page ends it as well, because
the store would be in no file. The next start finds the damage.

An extent that is freed while it is mapped may hold the last reference to a removed file. The mapping is removed by the
thread of pyx/primitives/releases.pyx, and without the lock, because freeing the file's blocks takes up to 250 ms. The
extent leaves list and table before, and its slots are free afterwards. While a quarter of the budget is *leaving* in
that way, further extents are unmapped on the spot.

If a file cannot be mapped again, the process ends: a message on standard error names the file, then the previous
handler of SIGSEGV runs. All stored bytes are in the page cache, as after any kill.

Invariants:
1. `mapped` counts the extents that are not EXTENT_ABSENT; each of these is in the list of its state, or is leaving.
2. A pinned extent is EXTENT_PRESENT, and so is one with a lost page. A removed one that is present is never guarded,
   so it stays mapped for its life: to its file, or to memory of its own if it was absent.
3. Code that holds the lock touches no address of the arena, and the handlers neither allocate nor free memory.

Rejected: several files of one topic in one file (another format, and still a mapping for each topic); unloading idle
topics (every holder of a pointer would have to ask first); userfaultfd(2) (needs privileges, and a thread that answers
for each access).

Sources: mmap(2), sigaction(2), signal-safety(7), vm.max_map_count in the kernel's documentation of sysctl.
"""

from libc.errno cimport EEXIST, EINTR, EMFILE, ENFILE, ENOENT, ENOMEM, EOVERFLOW, ESTALE, errno
from libc.signal cimport SIGBUS, SIGSEGV
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset, strdup, strlen
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, O_RDWR, open
from posix.mman cimport MADV_DONTNEED, MADV_RANDOM, MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED
from posix.mman cimport PROT_NONE, PROT_READ, PROT_WRITE, madvise, mmap, mprotect
from posix.signal cimport SA_ONSTACK, SA_SIGINFO, sigaction, sigaction_t, sigemptyset, siginfo_t
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close, write

from pyqd.hot.primitives.releases cimport PAGE_BYTES, Release, close_later, kernel_page_start, run_later, whole_pages
from pyqd.hot.diskqueue.slottable cimport ORDER_MAX, SLOTS_MAX, ArenaSlots
from pyqd.hot.diskqueue.slottable cimport allocate_slots, free_slots, holder_of, prepare_slots, set_holder
from pyqd.hot.primitives.debug cimport PYQD_DEBUG, debug_require

cdef extern from "<signal.h>" nogil:
    enum:
        BUS_ADRERR

cdef extern from *:
    """
    #include <ucontext.h>
    /* Whether a fault was raised by a store; where that is not known, yes. */
    static inline int pyqd_is_store(void *context) {
    #if defined(__x86_64__)
        return (((ucontext_t *) context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
    #else
        (void) context;
        return 1;
    #endif
    }
    """
    bint is_store "pyqd_is_store" (void* context) noexcept nogil

cdef extern from *:
    """
    #include <pthread.h>
    /* Not a flag of our own: gcc sees that its functions store to no other variable of this file, and keeps the counts
       in registers from before the lock. */
    static pthread_mutex_t pyqd_arena_mutex = PTHREAD_MUTEX_INITIALIZER;
    static inline void pyqd_arena_lock(void) { pthread_mutex_lock(&pyqd_arena_mutex); }
    static inline void pyqd_arena_unlock(void) { pthread_mutex_unlock(&pyqd_arena_mutex); }
    """
    # A handler of SIGSEGV may take it: by invariant 3 the thread that it has interrupted does not hold it.
    void lock "pyqd_arena_lock" () noexcept nogil
    void unlock "pyqd_arena_unlock" () noexcept nogil

cdef enum:
    SLOT_BYTES = 64 << 10
    KEPT_MAX = 256
    # Number of extents unmapped if the kernel refuses a mapping, and the most that one call unmaps during a start.
    EVICTED_AT_ONCE = 64
    GUARDED_AT_ONCE = 16
    # One instruction may need two extents, in each of several threads: the newest ones are never guarded.
    RECENT_MIN = 16
    MAPPED_MIN = 32
    # Lost pages at a time; one more ends the process.
    LOST_MAX = 65536

cdef struct KeptFile:
    int fd
    uint64_t guarded_at                  # of its extent, when it was unmapped

cdef uint64_t ARENA_BYTES_MIN = <uint64_t> 64 << 30

cdef bint tried = False
cdef char* arena = NULL
cdef ArenaSlots slot_table                # of extents
cdef ExtentList present
cdef ExtentList guarded
cdef uint64_t extents = 0
cdef uint64_t mapped = 0
cdef uint64_t leaving = 0                # of the mapped ones
cdef uint64_t pinned = 0                 # of the mapped ones
cdef uint64_t budget = 16384
cdef bint is_loading = False
cdef uint64_t remapped = 0               # extents mapped again since the start
cdef uint64_t guard_counter = 0
cdef uint64_t synced_guard = 0           # extents guarded up to there hold nothing that is not on stable storage
cdef KeptFile[KEPT_MAX] kept
cdef uint32_t kept_count = 0
cdef uint32_t kept_max = KEPT_MAX
cdef int spare_fd = -1                   # closed to map a file when the process has no other descriptor
cdef sigaction_t previous_action
cdef sigaction_t previous_bus_action
cdef uint64_t recent_min = RECENT_MIN
cdef uint64_t mapped_min = MAPPED_MIN
cdef int told_fd = 2
cdef int64_t refused_skipped = 0         # mappings that are made before some are refused: for tests
cdef int64_t refused_left = 0
cdef const char** lost = NULL            # addresses of the lost pages
cdef uint64_t lost_count = 0

memset(&slot_table, 0, sizeof(slot_table))
memset(&present, 0, sizeof(present))
memset(&guarded, 0, sizeof(guarded))


cdef Extent* extent_at(const char* address) noexcept nogil:
    """Return the extent that an address lies in; NULL for none."""
    cdef Extent* extent
    if arena == NULL or address < arena:
        return NULL
    extent = <Extent*> holder_of(&slot_table, <uint64_t> (address - arena) // SLOT_BYTES)
    if extent == NULL or <uint64_t> (address - extent.base) >= whole_pages(extent.size_bytes):
        return NULL
    return extent


cdef bint reserve_arena() noexcept nogil:
    """Reserve the arena, once. Returns: whether there is one; not under a limit of the address space (RLIMIT_AS)."""
    global tried, arena, lost, spare_fd
    cdef uint64_t size_bytes = <uint64_t> SLOTS_MAX * SLOT_BYTES
    cdef void* at
    if tried:
        return arena != NULL
    tried = True
    lost = <const char**> calloc(LOST_MAX, sizeof(char*))
    if lost == NULL or not prepare_slots(&slot_table):
        return False
    while size_bytes >= ARENA_BYTES_MIN:
        at = mmap(NULL, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if <uintptr_t> at != ~<uintptr_t> 0:
            slot_table.slots = size_bytes // SLOT_BYTES
            arena = <char*> at
            spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC)
            return True
        size_bytes //= 2
    return False


cdef void install_handler() noexcept nogil:
    """Be the first to handle SIGSEGV and SIGBUS; handlers installed since, such as faulthandler's, come second."""
    install_for(SIGSEGV, on_fault, &previous_action)
    install_for(SIGBUS, on_unreadable, &previous_bus_action)


cdef void install_for(
    int number, void (*handler)(int, siginfo_t*, void*) noexcept nogil, sigaction_t* previous,
) noexcept nogil:
    cdef sigaction_t current
    cdef sigaction_t wanted
    if sigaction(number, NULL, &current) != 0 or current.sa_sigaction == handler:
        return
    memset(&wanted, 0, sizeof(wanted))
    wanted.sa_sigaction = handler
    wanted.sa_flags = SA_SIGINFO | SA_ONSTACK
    sigemptyset(&wanted.sa_mask)
    previous[0] = current
    sigaction(number, &wanted, NULL)


cdef void put_error(const char* text) noexcept nogil:
    if told_fd >= 0 and write(told_fd, text, strlen(text)) < 0:
        return


cdef void on_fault(int number, siginfo_t* info, void* context) noexcept nogil:
    """Handle SIGSEGV: map the file of an extent that was accessed; leave anything else to the previous handler."""
    cdef int before = errno
    cdef Extent* extent
    cdef int failed
    lock()
    extent = extent_at(<const char*> info.si_addr)
    failed = ESTALE if extent == NULL else make_present(extent)
    unlock()
    if failed == 0:
        (&errno)[0] = before
        return
    if extent != NULL:
        put_error(b"pyqd: cannot map ")
        put_error(extent.path)
        put_error(b" again: ")
        put_error(name_of(failed))
        put_error(b"; the process ends; accepted messages are in the files: remove the cause and start pyqd again\n")
    # The access is repeated, and then that handler sees it.
    sigaction(SIGSEGV, &previous_action, NULL)
    (&errno)[0] = before


cdef void on_unreadable(int number, siginfo_t* info, void* context) noexcept nogil:
    """Handle SIGBUS: replace an unreadable page by zeros if its readers check for that."""
    cdef int before = errno
    cdef Extent* extent
    cdef bint handled = False
    cdef uint64_t offset
    lock()
    extent = extent_at(<const char*> info.si_addr)
    if extent != NULL and not extent.verified and info.si_code == BUS_ADRERR and not is_store(context):
        offset = kernel_page_start(<uint64_t> (<const char*> info.si_addr - extent.base))
        handled = replace_page(extent, offset)
    unlock()
    if not handled:
        if extent != NULL:
            put_error(b"pyqd: cannot read ")
            put_error(extent.path)
            put_error(b": input/output error (EIO); the process ends, and the next start treats the page as damaged\n")
        sigaction(SIGBUS, &previous_bus_action, NULL)
    (&errno)[0] = before


cdef bint replace_page(Extent* extent, uint64_t offset) noexcept nogil:
    """Map a page of zeros over a page of an extent, under the lock. Returns: whether that succeeded."""
    global lost_count
    debug_require(offset == kernel_page_start(offset))
    debug_require(not extent.verified)
    if lost_count == LOST_MAX or make_present(extent) != 0:
        return False
    if <uintptr_t> mmap(
            extent.base + offset, PAGE_BYTES, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != <uintptr_t> (extent.base + offset):
        return False
    if extent.lost_pages == 0:
        pin(extent)
        put_error(b"pyqd: cannot read ")
        put_error(extent.path)
        put_error(b": input/output error (EIO); the unreadable part counts as damaged\n")
    extent.lost_pages += 1
    lost[lost_count] = extent.base + offset
    lost_count += 1
    return True


cdef bint extent_is_lost(Extent* extent, uint64_t start, uint64_t length) noexcept nogil:
    """Return whether a page of these bytes is lost. Cost: O(lost pages of all extents) if this extent has any."""
    cdef uint64_t index
    cdef bint found = False
    cdef const char* first = extent.base + kernel_page_start(start)
    debug_require(start <= extent.size_bytes)
    if extent.lost_pages == 0:
        return False
    lock()
    for index in range(lost_count):
        if first <= lost[index] < extent.base + start + length:
            found = True
            break
    unlock()
    return found


cdef void forget_lost(Extent* extent) noexcept nogil:
    """Remove the lost pages of an extent that is freed from the list, under the lock."""
    global lost_count
    cdef uint64_t index = 0
    debug_require(extent.lost_pages != 0)
    while index < lost_count:
        if extent.base <= lost[index] < extent.base + extent.size_bytes:
            lost_count -= 1
            lost[index] = lost[lost_count]
        else:
            index += 1


cdef const char* name_of(int failed) noexcept nogil:
    """Return an error's name; strerror(3) is not safe in a signal handler."""
    if failed == ENOENT:
        return b"no such file (ENOENT)"
    if failed == ESTALE:
        return b"another file has its name (ESTALE)"
    if failed == EMFILE or failed == ENFILE:
        return b"too many open files (EMFILE)"
    if failed == ENOMEM:
        return b"too many mappings (vm.max_map_count) or no memory (ENOMEM)"
    return b"open(2) or mmap(2) failed"


cdef int make_present(Extent* extent) noexcept nogil:
    """Map an extent if need be and make it accessible, under the lock. Returns: 0, or the error number."""
    cdef int failed
    if extent.state == EXTENT_PRESENT:
        return 0
    debug_require(extent.pin_count == 0)
    debug_require(extent.lost_pages == 0)
    if extent.state == EXTENT_GUARDED:
        if mprotect(extent.base, whole_pages(extent.size_bytes), PROT_READ | PROT_WRITE) != 0:
            return errno
        remove(&guarded, extent)
    else:
        failed = remap(extent)
        if failed != 0:
            return failed
    extent.state = EXTENT_PRESENT
    append(&present, extent)
    guard_oldest()
    return 0


cdef void pin(Extent* extent) noexcept nogil:
    global pinned
    debug_require((extent.state == EXTENT_PRESENT) | extent.removed)
    pinned += extent.pin_count == 0
    extent.pin_count += 1


cdef int remap(Extent* extent) noexcept nogil:
    """Map an extent's file at its former address. Returns: 0, or the error number."""
    global mapped, remapped
    cdef int fd, failed
    cdef struct_stat found
    debug_require(extent.state == EXTENT_ABSENT)
    if extent.removed:
        # The file is gone, and its former content matters to no reader.
        if not map_at(extent.base, extent.size_bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1):
            return errno
        pin(extent)
    else:
        fd = open_file(extent.path)
        if fd < 0:
            return errno
        failed = 0
        if fstat(fd, &found) != 0:
            failed = errno
        elif found.st_ino != extent.inode or found.st_dev != extent.device:
            failed = ESTALE
        elif <uint64_t> found.st_size < extent.size_bytes:
            failed = EOVERFLOW
        elif not map_at(extent.base, extent.size_bytes, MAP_SHARED, fd):
            failed = errno
        close(fd)
        open_spare()
        if failed != 0:
            return failed
        if extent.alone:
            madvise(extent.base, extent.size_bytes, MADV_RANDOM)
    mapped += 1
    remapped += 1
    return 0


cdef int open_file(const char* path) noexcept nogil:
    """Open a file for mapping, by the spare descriptor if there is no other. Returns: -1 with errno set if it fails."""
    global spare_fd
    cdef int fd
    while True:
        fd = open(path, O_RDWR | O_CLOEXEC)
        if fd >= 0 or (errno != EINTR and (errno != EMFILE or spare_fd < 0)):
            return fd
        if errno == EMFILE:
            close(spare_fd)
            spare_fd = -1


cdef void open_spare() noexcept nogil:
    global spare_fd
    debug_require(arena != NULL)
    if spare_fd < 0:
        spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC)


cdef bint map_at(char* base, uint64_t size_bytes, int flags, int fd) noexcept nogil:
    """Map an absent extent within the budget. Returns: False with errno set if the kernel refuses."""
    cdef int failed
    debug_require(size_bytes != 0)
    while is_loading and mapped >= budget // 2 and evict_loaded():
        pass
    while mapped >= budget and evict_oldest():
        pass
    for _ in range(2):
        if is_refused():
            failed = ENOMEM
        elif <uintptr_t> mmap(
                base, size_bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == <uintptr_t> base:
            return True
        else:
            failed = errno
        if failed != ENOMEM:
            break
        # The process has more other mappings than the budget allows for.
        for _ in range(EVICTED_AT_ONCE):
            if guarded.first == NULL:
                guard(present.count)
            evict_oldest()
    (&errno)[0] = failed
    return False


cdef bint is_refused() noexcept nogil:
    """Return whether a test wants this mapping to fail."""
    global refused_skipped, refused_left
    if refused_left != 0 and refused_skipped == 0:
        refused_left -= 1
        return True
    refused_skipped -= refused_skipped > 0
    return False


cdef bint unmap(Extent* extent) noexcept nogil:
    """Return an extent's range to the arena; its mapping is removed. Returns: whether that succeeded."""
    return unmap_range(extent.base, whole_pages(extent.size_bytes))


cdef bint unmap_range(char* start, uint64_t length_bytes) noexcept nogil:
    cdef int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED
    debug_require(start >= arena)
    return <uintptr_t> mmap(start, length_bytes, PROT_NONE, flags, -1, 0) == <uintptr_t> start


cdef void guard_oldest() noexcept nogil:
    """Guard the oldest extents while more than half of the budget can be accessed; a few at a time."""
    debug_require(pinned <= present.count)
    if present.count - pinned > budget // 2 and not is_loading:
        guard(min(present.count - pinned - budget // 2, <uint64_t> GUARDED_AT_ONCE))


cdef void guard(uint64_t count) noexcept nogil:
    """Guard up to `count` of the oldest extents, a few at a time; the newest ones are never guarded."""
    global guard_counter
    cdef int left = GUARDED_AT_ONCE
    cdef Extent* extent
    while count > 0 and present.count - pinned > recent_min and left > 0:
        count -= 1
        left -= 1
        extent = present.first
        remove(&present, extent)
        if extent.pin_count == 0 and not extent.removed and (
                mprotect(extent.base, whole_pages(extent.size_bytes), PROT_NONE) == 0):
            guard_counter += 1
            extent.guarded_at = guard_counter
            extent.state = EXTENT_GUARDED
            append(&guarded, extent)
        else:
            append(&present, extent)


cdef bint evict_oldest() noexcept nogil:
    """Unmap the extent that has been guarded for the longest time. Returns: whether there was one."""
    global mapped
    cdef Extent* extent = guarded.first
    if extent == NULL:
        return False
    debug_require(extent.state == EXTENT_GUARDED)
    debug_require(extent.pin_count == 0)
    if extent.guarded_at > synced_guard:
        keep_known(extent)
    if not unmap(extent):
        return False
    remove(&guarded, extent)
    extent.state = EXTENT_ABSENT
    mapped -= 1
    return True


cdef bint evict_loaded() noexcept nogil:
    """Unmap the oldest extents that can be accessed, as many as lie side by side. Returns: False if there are none."""
    global mapped, guard_counter
    cdef uint64_t left = min(max(budget // EVICTED_AT_ONCE, <uint64_t> 1), <uint64_t> EVICTED_AT_ONCE)
    cdef Extent* first = present.first
    cdef Extent* last = first
    cdef Extent* following
    debug_require(is_loading)
    if present.count <= pinned + recent_min:
        return False
    if first.pin_count > 0:
        remove(&present, first)
        append(&present, first)
        return True
    left = min(left, present.count - pinned - recent_min)
    while True:
        # As if it were guarded now: a sync that began before may have missed its content.
        guard_counter += 1
        last.guarded_at = guard_counter
        keep_known(last)
        left -= 1
        following = last.following
        if left == 0 or following == NULL or following.pin_count > 0 or (
                following.base != last.base + (<uint64_t> SLOT_BYTES << last.order)):
            break
        last = following
    if not unmap_range(first.base, <uint64_t> (last.base - first.base) + whole_pages(last.size_bytes)):
        return False
    while last.state == EXTENT_PRESENT:
        first = present.first
        debug_require(first.pin_count == 0)
        remove(&present, first)
        first.state = EXTENT_ABSENT
        mapped -= 1
    return True


cdef void keep_known(Extent* extent) noexcept nogil:
    """Keep a file in the kernel's memory until a complete sync that begins later, in case its write-back has failed."""
    global kept_count
    cdef int fd
    debug_require(kept_count <= KEPT_MAX)
    if kept_count < kept_max and not extent.removed:
        fd = open(extent.path, O_RDONLY | O_CLOEXEC)
        if fd >= 0:
            kept[kept_count].fd = fd
            kept[kept_count].guarded_at = extent.guarded_at
            kept_count += 1


cdef uint8_t order_for(uint64_t size_bytes) noexcept nogil:
    cdef uint8_t order = 0
    while (<uint64_t> SLOT_BYTES << order) < size_bytes:
        order += 1
    return order


cdef Extent* extent_new(int fd, uint64_t size_bytes, const char* path, bint private=False) noexcept nogil:
    """Map a whole file for reading and writing. path: used to map it again. private: stores do not reach the file.

    Returns: its extent; NULL with errno EEXIST if it has to be mapped outside the arena, or another error.
    """
    cdef struct_stat found
    if fstat(fd, &found) != 0:
        return NULL
    return extent_of(fd, size_bytes, path, found.st_dev, found.st_ino, private)


cdef Extent* extent_of(
    int fd, uint64_t size_bytes, const char* path, uint64_t device, uint64_t inode, bint private=False,
) noexcept nogil:
    """Like `extent_new`, for a caller that knows the file's device and inode."""
    global extents, mapped
    cdef Extent* extent
    cdef int64_t slot
    cdef int failed = EEXIST
    debug_require(size_bytes != 0)
    # A larger file is mapped outside the arena.
    if size_bytes > <uint64_t> SLOT_BYTES << ORDER_MAX or not reserve_arena():
        (&errno)[0] = EEXIST
        return NULL
    if not is_loading:
        install_handler()
    extent = <Extent*> calloc(1, sizeof(Extent))
    if extent == NULL:
        (&errno)[0] = ENOMEM
        return NULL
    extent.path = strdup(path)
    extent.size_bytes = size_bytes
    extent.device, extent.inode = device, inode
    extent.order = order_for(size_bytes)
    lock()
    slot = allocate_slots(&slot_table, extent.order) if extent.path != NULL else -1
    if slot >= 0:
        extent.base = arena + <uint64_t> slot * SLOT_BYTES
        if map_at(extent.base, size_bytes, MAP_PRIVATE | MAP_NORESERVE if private else MAP_SHARED, fd):
            set_holder(&slot_table, <uint64_t> slot, extent.order, extent)
            extent.state = EXTENT_PRESENT
            append(&present, extent)
            mapped += 1
            extents += 1
            if private:
                # Mapped again it would lack what was stored.
                pin(extent)
            guard_oldest()
            failed = 0
        else:
            failed = errno
            free_slots(&slot_table, <uint64_t> slot, extent.order)
    unlock()
    if failed != 0:
        free(extent.path)
        free(extent)
        (&errno)[0] = failed
        return NULL
    return extent


cdef void extent_free(Extent* extent) noexcept nogil:
    """Unmap an extent for good, in a thread if it is mapped and there is one."""
    global leaving, pinned
    cdef bint later = False
    lock()
    debug_require(extents > 0)
    debug_require(extent_at(extent.base) == extent)
    if extent.state != EXTENT_ABSENT:
        remove(&present if extent.state == EXTENT_PRESENT else &guarded, extent)
        pinned -= extent.pin_count > 0
        later = leaving < budget // 4
        leaving += 1
    if extent.lost_pages != 0:
        forget_lost(extent)
    set_holder(&slot_table, slot_of(extent), extent.order, NULL)
    unlock()
    extent.release.run = finish_free
    if later:
        run_later(&extent.release)
    else:
        finish_free(&extent.release)


cdef void finish_free(Release* release) noexcept nogil:
    """Unmap an extent that no list and no table has any more, then free its slots."""
    global extents, mapped, leaving
    cdef Extent* extent = <Extent*> release
    cdef bint unmapped = True
    debug_require(extents > 0)
    # Not under the lock: the caller of any other function would wait until the file's blocks are free.
    if extent.state != EXTENT_ABSENT:
        # The mapping that replaces this one locks all mappings of the process, for as long as there are pages: 4 ms.
        # This call locks only its own range since Linux 6.17.
        madvise(extent.base, extent.size_bytes, MADV_DONTNEED)
        unmapped = unmap(extent)
    lock()
    extents -= 1
    if extent.state != EXTENT_ABSENT:
        mapped -= 1
        leaving -= 1
    if unmapped:
        free_slots(&slot_table, slot_of(extent), extent.order)
    unlock()
    free(extent.path)
    free(extent)


cdef uint64_t slot_of(const Extent* extent) noexcept nogil:
    debug_require(extent.base >= arena)
    return <uint64_t> (extent.base - arena) // SLOT_BYTES


cdef int extent_pin(Extent* extent) noexcept nogil:
    """Map an extent and keep it mapped until `extent_unpin`. Returns: 0, or an error number; ENOENT: no file."""
    cdef int failed = ENOENT
    lock()
    if not extent.removed or extent.state != EXTENT_ABSENT:
        failed = make_present(extent)
    if failed == 0:
        pin(extent)
    unlock()
    return failed


cdef void extent_unpin(Extent* extent) noexcept nogil:
    global pinned
    debug_require(pinned > 0)
    lock()
    debug_require(extent.pin_count > 0)
    debug_require(extent.state == EXTENT_PRESENT)
    extent.pin_count -= 1
    pinned -= extent.pin_count == 0
    unlock()


cdef int extent_move(Extent* extent, const char* path) noexcept nogil:
    """Set the path that an extent's file has now. Returns: 0, or ENOMEM."""
    cdef char* copy = strdup(path)
    cdef char* former
    if copy == NULL:
        return ENOMEM
    lock()
    former, extent.path = extent.path, copy
    unlock()
    free(former)
    return 0


cdef void extent_remove(Extent* extent) noexcept nogil:
    """Record that an extent's file is removed or about to be: no other file of its path is mapped in its place then.

    A mapped extent stays mapped for its life: to unmap it for another file would free the blocks on the event loop.
    """
    lock()
    if extent.state == EXTENT_GUARDED:
        make_present(extent)
    extent.removed = True
    unlock()


def configure(uint64_t mapped_max, uint32_t descriptors_max=KEPT_MAX):
    """Set how many files may be mapped at a time, and how many descriptors keep unmapped ones known to the kernel."""
    global budget, kept_max
    cdef uint64_t left
    lock()
    budget = max(mapped_max, mapped_min)
    kept_max = min(descriptors_max, <uint32_t> KEPT_MAX)
    left = present.count
    while present.count - pinned > budget // 2 and left > 0:
        left -= 1
        guard_oldest()
    while mapped > budget and evict_oldest():
        pass
    unlock()
    if PYQD_DEBUG:
        check()


def begin_load():
    """Expect until `end_load` that many files are opened and most of them stay idle."""
    global is_loading
    if reserve_arena():
        install_handler()
        is_loading = True


def end_load():
    """End the start: from here on files are opened when they are used."""
    global is_loading
    is_loading = False
    if PYQD_DEBUG:
        check()


def check():
    """Assert the invariants over all mapped extents. Cost: O(mapped extents)."""
    cdef uint64_t pinned_found = 0
    cdef bint is_sound
    lock()
    is_sound = list_is_sound(&present, EXTENT_PRESENT, &pinned_found) and list_is_sound(
        &guarded, EXTENT_GUARDED, &pinned_found)
    is_sound = is_sound and pinned_found == pinned and (
        present.count + guarded.count + leaving == mapped <= extents)
    unlock()
    assert is_sound, "the lists of extents and their counts disagree"


cdef bint list_is_sound(const ExtentList* extents_of, ExtentState state, uint64_t* pinned_found) noexcept nogil:
    """Return whether a list has its count of extents, all in that state; count the pinned ones. Under the lock."""
    cdef const Extent* extent = extents_of.first
    cdef uint64_t count = 0
    debug_require((extents_of.first == NULL) == (extents_of.last == NULL))
    while extent != NULL:
        if extent.state != state or (extent.lost_pages != 0 and extent.pin_count == 0):
            return False
        if extent.pin_count != 0 and state == EXTENT_GUARDED:
            return False
        pinned_found[0] += extent.pin_count != 0
        count += 1
        extent = extent.following
    return count == extents_of.count


cdef int state_at(const char* address) noexcept nogil:
    """Return the state of the extent that an address lies in; -1 for none."""
    cdef Extent* extent = extent_at(address)
    return -1 if extent == NULL else <int> extent.state


def set_limits_for_tests(uint64_t recent, uint64_t least, bint silent):
    """Set how few files may stay accessible and mapped, and whether nothing is said on standard error: for tests."""
    global recent_min, mapped_min, told_fd
    recent_min, mapped_min, told_fd = recent, least, -1 if silent else 2


def refuse(int64_t skipped, int64_t times):
    """Let mappings of files fail with ENOMEM, `times` times after `skipped` that succeed: for tests."""
    global refused_skipped, refused_left
    refused_skipped, refused_left = skipped, times


def hooks():
    """Return addresses for a test that handles SIGSEGV before: `state_at`, the handler, how many are to be refused."""
    return <uintptr_t> &state_at, <uintptr_t> &on_fault, <uintptr_t> &refused_left


def is_reserved():
    """Return whether there is an arena. Without an arena every file stays mapped."""
    return reserve_arena()


def mapped_count():
    """Return how many files of the arena are mapped now."""
    return mapped


def file_count():
    """Return how many files have a place in the arena, mapped or not."""
    return extents


def mapped_max():
    """Return how many files may be mapped at a time."""
    return budget


def remapped_count():
    """Return how often a file has been mapped again since the start."""
    return remapped


def begin_sync():
    """Return a token for `end_sync`, before anything of a complete sync is gathered."""
    return guard_counter


def end_sync(uint64_t begun):
    """Record that all bytes stored before `begin_sync` returned the token are on stable storage."""
    global synced_guard, kept_count
    cdef int[KEPT_MAX] unneeded
    cdef uint32_t unneeded_count = 0
    cdef uint32_t left_count = 0
    cdef uint32_t index
    assert begun <= guard_counter, "the token is one of `begin_sync`"
    lock()
    synced_guard = max(synced_guard, begun)
    for index in range(kept_count):
        if kept[index].guarded_at <= synced_guard:
            unneeded[unneeded_count] = kept[index].fd
            unneeded_count += 1
        else:
            # The sync may have gathered the file before the last stores to it.
            kept[left_count] = kept[index]
            left_count += 1
    kept_count = left_count
    unlock()
    for index in range(unneeded_count):
        close_kept(unneeded[index])
    assert kept_count <= KEPT_MAX


cdef void close_kept(int fd) noexcept nogil:
    """Close a descriptor of an unmapped file, in a thread if the file has been removed since."""
    cdef struct_stat found
    if fstat(fd, &found) == 0 and found.st_nlink == 0:
        close_later(fd)
    else:
        close(fd)
