"""Thread that lists the directories and maps the files of a start, ahead of the thread that loads the topics.

Problem: a start with 50,000 topics makes 1.5 million system calls, which took half of its time, and used one core. The
calls do not need the interpreter, and they depend on the files only. So this thread makes them for the next topics
while the loading thread works on the current one.

    topic 7: loaded | topic 8: current | topics 9 ... 12: ready | topic 13: being opened | ... TOPICS_AHEAD_MAX

The thread finds, for each topic: the names in its directory, in its log and in its channels' directories; mapped, the
topic's state, its segments and the channels' ledgers. It reads the first pages, so that a page missing from the cache
is read from the disk ahead, too. The loading thread takes a listing or a mapping by its path, once. A path that is not
there, because any call has failed or a topic has too many files, is opened by the loading thread in the usual way,
which finds and reports the reason. So this thread reports nothing, and it changes no file: it does not even reserve
missing blocks.

If the loading thread comes to a topic that is not ready, it opens topics as well until that one is, in the same way:
the calls take longer than the rest of a load.

Invariants:
1. A FoundTopic that is not ready is changed by the thread that has begun it. The loading thread reads ready ones only.
2. `taken <= next <= taken + TOPICS_AHEAD_MAX`.
3. No extent of a topic outlives the load of that topic, unless the loading thread has taken it.

The thread blocks all signals but those of faults in the arena (pyx/diskqueue/arena.pyx).

Rejected: Python threads (they would wait for the interpreter between all calls); io_uring (no mmap(2), no
getdents(2), and often forbidden in containers).

Sources: openat(2), getdents64(2), pthread_sigmask(3).
"""

import os

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strcmp, strlen
from posix.fcntl cimport O_CLOEXEC, O_DIRECTORY, O_RDONLY, openat
from posix.mman cimport MADV_NORMAL, MADV_RANDOM, madvise
from posix.unistd cimport close

from pyqd.hot.diskqueue.arena cimport Extent, extent_free
from pyqd.hot.diskqueue.mapping cimport extent_existing, over_extent
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.primitives.releases cimport PAGE_BYTES

cdef extern from "pthread.h":
    ctypedef unsigned long pthread_t
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass

cdef enum:
    TOPICS_AHEAD_MAX = 16
    # Directories and files of a topic with 30 channels.
    FOUND_MAX = 64
    TEXT_BYTES = 16 << 10

# A directory with its names, or a mapped file.
cdef struct Found:
    const char* path                     # in the topic's text, with a NUL behind it
    uint64_t path_bytes
    const char* names                    # in the topic's text, each with a NUL behind it; NULL: of a file
    uint64_t names_bytes
    Extent* extent                       # owned; NULL: of a directory, or taken

cdef struct FoundTopic:
    bint ready                           # the loading thread may take it; under the mutex
    uint32_t count
    uint64_t text_bytes
    Found[FOUND_MAX] found
    char[TEXT_BYTES] text

# Fields shared by the threads. All but the first four change under the mutex.
cdef struct Ahead:
    int directory                        # descriptor of the directory of all topics, owned
    const char* path                     # of that directory
    const char** entries                 # names of the topics' directories, in the order of the load
    uint64_t count
    pthread_mutex_t mutex
    pthread_cond_t has_space             # the thread waits for the loading thread
    pthread_cond_t has_topic             # the loading thread waits for the thread
    uint64_t next                        # topic that is begun next
    uint64_t taken                       # topics before are taken
    bint waiting                         # the thread waits
    bint stopping
    FoundTopic[TOPICS_AHEAD_MAX] topics  # topic i at i modulo the size

cdef extern from *:
    """
    #include <dirent.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    typedef struct {
        uint64_t inode;
        int64_t offset;
        unsigned short size_bytes;
        unsigned char type;
        char name[];
    } pyqd_entry;
    /* The C library has a function for it since 2.30. */
    static inline long pyqd_read_entries(int fd, void *into, size_t size_bytes) {
        return syscall(SYS_getdents64, fd, into, size_bytes);
    }
    static int pyqd_ahead_create(pthread_t *thread, void *(*start)(void *), void *argument) {
        sigset_t blocked, before;
        int failed;
        sigfillset(&blocked);
        sigdelset(&blocked, SIGSEGV);
        sigdelset(&blocked, SIGBUS);
        pthread_sigmask(SIG_SETMASK, &blocked, &before);
        failed = pthread_create(thread, NULL, start, argument);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (!failed)
            pthread_setname_np(*thread, "pyqd-load-ahead");
        return failed;
    }
    typedef volatile char pyqd_touched_char;
    """
    ctypedef struct Entry "pyqd_entry":
        unsigned short size_bytes
        char* name
    # Reads that the compiler must not leave out.
    ctypedef char touched_char "pyqd_touched_char"
    long read_entries "pyqd_read_entries" (int fd, void* into, size_t size_bytes) noexcept nogil
    int create "pyqd_ahead_create" (pthread_t* thread, void* (*start)(void*) noexcept nogil, void* argument)

cdef extern from "pthread.h" nogil:
    int pthread_mutex_init(pthread_mutex_t* mutex, const void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_cond_init(pthread_cond_t* condition, const void* attributes)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_join(pthread_t thread, void** result)

cdef extern from "Python.h":
    str PyUnicode_DecodeFSDefault(const char* text)
    str PyUnicode_DecodeFSDefaultAndSize(const char* text, Py_ssize_t size_bytes)

cdef enum:
    ENTRIES_BYTES = 8 << 10
    # More of a file is read by the loading thread.
    TOUCHED_BYTES_MAX = 64 << 10


cdef bint ends_with(const char* name, const char* suffix) noexcept nogil:
    cdef size_t name_bytes = strlen(name)
    cdef size_t suffix_bytes = strlen(suffix)
    return name_bytes >= suffix_bytes and strcmp(name + name_bytes - suffix_bytes, suffix) == 0


cdef bint add_text(FoundTopic* topic, const char* text, uint64_t size_bytes) noexcept nogil:
    """Append bytes to the topic's text. Returns: False if there is no space."""
    debug_require(topic.text_bytes <= TEXT_BYTES)
    if size_bytes > TEXT_BYTES - topic.text_bytes:
        return False
    memcpy(topic.text + topic.text_bytes, text, size_bytes)
    topic.text_bytes += size_bytes
    return True


cdef Found* begin_found(FoundTopic* topic, const char* directory, const char* name) noexcept nogil:
    """Begin the next directory or file of a topic, which counts when `count` says so. Returns: NULL for no space."""
    cdef Found* found = &topic.found[topic.count]
    cdef uint64_t start = topic.text_bytes
    debug_require(topic.count <= FOUND_MAX)
    if topic.count == FOUND_MAX:
        return NULL
    if not (add_text(topic, directory, strlen(directory)) and add_text(topic, b"/", 1)
            and add_text(topic, name, strlen(name) + 1)):
        return NULL
    found.path = topic.text + start
    found.path_bytes = topic.text_bytes - start - 1
    found.names = NULL
    found.extent = NULL
    return found


cdef bint add_names(FoundTopic* topic, int fd) noexcept nogil:
    """Append the names in a directory to the topic's text. Returns: False if any of them is missing."""
    cdef char[ENTRIES_BYTES] entries
    cdef Entry* entry
    cdef const char* name
    cdef long at, end
    while True:
        end = read_entries(fd, entries, ENTRIES_BYTES)
        if end <= 0:
            return end == 0
        at = 0
        while at < end:
            entry = <Entry*> (entries + at)
            name = entry.name
            if strcmp(name, b".") != 0 and strcmp(name, b"..") != 0 and not add_text(topic, name, strlen(name) + 1):
                return False
            at += entry.size_bytes


cdef Found* find_names(FoundTopic* topic, int fd, const char* directory, const char* name) noexcept nogil:
    """Find the names in an open directory. Returns: NULL if they are not all there."""
    cdef Found* found = begin_found(topic, directory, name)
    cdef uint64_t start = topic.text_bytes
    if found == NULL or not add_names(topic, fd):
        return NULL
    found.names = topic.text + start
    found.names_bytes = topic.text_bytes - start
    topic.count += 1
    debug_require(topic.count <= FOUND_MAX)
    return found


cdef void find_file(
    FoundTopic* topic, int directory, const char* path, const char* name, uint64_t pages,
) noexcept nogil:
    """Map a file and read its first pages. directory: its descriptor. path: of the directory."""
    cdef Found* found = begin_found(topic, path, name)
    cdef uint64_t offset = 0
    cdef char seen = 0
    cdef bint is_alone
    debug_require(pages != 0)
    if found == NULL:
        return
    found.extent = extent_existing(directory, name, found.path, False)
    if found.extent == NULL:
        return
    # Of a segment the start reads one page, which would bring in as much as the device reads ahead. Source: madvise(2).
    is_alone = pages == 1 and found.extent.size_bytes > PAGE_BYTES
    if is_alone:
        madvise(found.extent.base, found.extent.size_bytes, MADV_RANDOM)
    while offset < min(found.extent.size_bytes, pages * PAGE_BYTES):
        seen |= (<touched_char*> found.extent.base)[offset]
        offset += PAGE_BYTES
    if is_alone:
        madvise(found.extent.base, found.extent.size_bytes, MADV_NORMAL)
    topic.count += 1


cdef void find_directory(
    FoundTopic* topic, int parent, const char* path, const char* name, const char* suffix, uint64_t pages,
) noexcept nogil:
    """Find the names in a directory, and map the files that end with a suffix."""
    cdef int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    cdef Found* found
    cdef const char* file
    if fd < 0:
        return
    found = find_names(topic, fd, path, name)
    if found != NULL:
        file = found.names
        while file < found.names + found.names_bytes:
            if ends_with(file, suffix):
                find_file(topic, fd, found.path, file, pages)
            file += strlen(file) + 1
    close(fd)


cdef void find_topic(FoundTopic* topic, int parent, const char* path, const char* entry) noexcept nogil:
    """Find what a start needs of one topic. parent, path: the directory of all topics."""
    cdef int fd = openat(parent, entry, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    cdef Found* found
    cdef const char* name
    topic.count = 0
    topic.text_bytes = 0
    if fd < 0:
        return
    found = find_names(topic, fd, path, entry)
    if found != NULL:
        name = found.names
        while name < found.names + found.names_bytes:
            if strcmp(name, b"state") == 0:
                find_file(topic, fd, found.path, name, 1)
            elif strcmp(name, b"log") == 0:
                find_directory(topic, fd, found.path, name, b".seg", 1)
            elif ends_with(name, b".channel"):
                find_directory(topic, fd, found.path, name, b"ledger", TOUCHED_BYTES_MAX // PAGE_BYTES)
            name += strlen(name) + 1
    close(fd)


cdef void forget_topic(FoundTopic* topic) noexcept nogil:
    """Release the extents that have not been taken."""
    for index in range(topic.count):
        if topic.found[index].extent != NULL:
            extent_free(topic.found[index].extent)
            topic.found[index].extent = NULL
    topic.count = 0


cdef bint may_begin(const Ahead* ahead) noexcept nogil:
    """Return whether there is a next topic, and space for it. Under the mutex."""
    debug_require(ahead.taken <= ahead.next)
    debug_require(ahead.next - ahead.taken <= TOPICS_AHEAD_MAX)
    return ahead.next < ahead.count and ahead.next - ahead.taken < TOPICS_AHEAD_MAX


cdef void find_next(Ahead* ahead) noexcept nogil:
    """Find the next topic in either thread, under the mutex, which is released meanwhile."""
    cdef FoundTopic* topic = &ahead.topics[ahead.next % TOPICS_AHEAD_MAX]
    cdef const char* entry = ahead.entries[ahead.next]
    debug_require(ahead.next < ahead.count)
    debug_require(not topic.ready)
    ahead.next += 1
    pthread_mutex_unlock(&ahead.mutex)
    find_topic(topic, ahead.directory, ahead.path, entry)
    pthread_mutex_lock(&ahead.mutex)
    topic.ready = True
    pthread_cond_signal(&ahead.has_topic)


cdef void* work(void* argument) noexcept nogil:
    """Run in the thread."""
    cdef Ahead* ahead = <Ahead*> argument
    pthread_mutex_lock(&ahead.mutex)
    while not ahead.stopping and ahead.next < ahead.count:
        if may_begin(ahead):
            find_next(ahead)
        else:
            ahead.waiting = True
            pthread_cond_wait(&ahead.has_space, &ahead.mutex)
            ahead.waiting = False
    pthread_mutex_unlock(&ahead.mutex)
    return NULL


cdef FoundTopic* await_topic(Ahead* ahead, uint64_t index) noexcept nogil:
    """Return a topic when it is ready, and find later ones until then."""
    cdef FoundTopic* topic = &ahead.topics[index % TOPICS_AHEAD_MAX]
    pthread_mutex_lock(&ahead.mutex)
    while not topic.ready:
        if may_begin(ahead):
            find_next(ahead)
        else:
            pthread_cond_wait(&ahead.has_topic, &ahead.mutex)
    pthread_mutex_unlock(&ahead.mutex)
    return topic


cdef void leave_topic(Ahead* ahead, FoundTopic* topic, uint64_t index) noexcept nogil:
    """Give a topic that was taken back to the thread."""
    debug_require(topic.ready)
    debug_require(ahead.taken == index)
    pthread_mutex_lock(&ahead.mutex)
    topic.ready = False
    ahead.taken = index + 1
    # Not for each topic: the thread would sleep and wake for each one when it is the faster of the two.
    if ahead.waiting and ahead.next - ahead.taken <= TOPICS_AHEAD_MAX // 2:
        pthread_cond_signal(&ahead.has_space)
    pthread_mutex_unlock(&ahead.mutex)


cdef list names_of(const Found* found):
    """Return the names in a directory."""
    cdef list names = []
    cdef const char* name = found.names
    assert found.names != NULL
    while name < found.names + found.names_bytes:
        names.append(PyUnicode_DecodeFSDefault(name))
        name += strlen(name) + 1
    return names


cdef class LoadAhead:
    """Listings and mapped files of the topics that a start loads, made ahead by a thread.

    directory: of all topics. entries: names of the topics' directories in it, in the order in which they are loaded.
    Raises: OSError if there is no descriptor or no thread for it.
    """

    cdef Ahead* ahead                    # owned
    cdef pthread_t thread
    cdef bint runs
    cdef bytes encoded                   # keeps `ahead.path`
    cdef list entries                    # keep `ahead.entries`
    cdef dict names                      # of the current topic: lists of names by directory
    cdef dict mappings                   # of the current topic: Mappings by path

    def __cinit__(self, str directory not None, list entries not None):
        self.encoded = os.fsencode(directory)
        self.entries = [os.fsencode(entry) for entry in entries]
        self.names = {}
        self.mappings = {}
        self.ahead = <Ahead*> calloc(1, sizeof(Ahead))
        if self.ahead == NULL:
            raise MemoryError
        self.ahead.directory = -1
        self.ahead.path = self.encoded
        self.ahead.count = len(entries)
        self.ahead.entries = <const char**> malloc((self.ahead.count + 1) * sizeof(char*))
        if self.ahead.entries == NULL:
            raise MemoryError
        for index in range(self.ahead.count):
            self.ahead.entries[index] = <bytes> self.entries[index]

    def __init__(self, directory, entries):
        cdef int failed
        self.ahead.directory = os.open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        pthread_mutex_init(&self.ahead.mutex, NULL)
        pthread_cond_init(&self.ahead.has_space, NULL)
        pthread_cond_init(&self.ahead.has_topic, NULL)
        failed = create(&self.thread, work, self.ahead)
        if failed:
            raise OSError(failed, os.strerror(failed))
        self.runs = True

    def __dealloc__(self):
        # A thread that still runs, as in a process that ends, keeps the memory it uses.
        if self.ahead != NULL and not self.runs:
            if self.ahead.directory >= 0:
                close(self.ahead.directory)
            free(self.ahead.entries)
            free(self.ahead)

    def begin_next(self):
        """Go on to the next topic, and release everything of the former one that was not taken."""
        cdef FoundTopic* topic
        cdef Found* found
        cdef uint64_t index = self.ahead.taken
        assert self.runs and index < self.ahead.count, "there is no other topic"
        self.names.clear()
        self.mappings.clear()
        with nogil:
            topic = await_topic(self.ahead, index)
        for place in range(topic.count):
            found = &topic.found[place]
            path = PyUnicode_DecodeFSDefaultAndSize(found.path, <Py_ssize_t> found.path_bytes)
            if found.names != NULL:
                self.names[path] = names_of(found)
                continue
            self.mappings[path] = over_extent(found.extent, path)
            found.extent = NULL
        leave_topic(self.ahead, topic, index)

    def take_names(self, path):
        """Return the names in a directory of the current topic; None if they are not there, or were taken before."""
        return self.names.pop(path, None)

    def take_mapping(self, path):
        """Return the Mapping of a file of the current topic; None if it is not there, or was taken before."""
        return self.mappings.pop(path, None)

    def close(self):
        """End the thread, and release all that was not taken."""
        if not self.runs:
            return
        with nogil:
            pthread_mutex_lock(&self.ahead.mutex)
            self.ahead.stopping = True
            pthread_cond_signal(&self.ahead.has_space)
            pthread_mutex_unlock(&self.ahead.mutex)
            pthread_join(self.thread, NULL)
        self.runs = False
        self.names.clear()
        self.mappings.clear()
        for index in range(TOPICS_AHEAD_MAX):
            forget_topic(&self.ahead.topics[index])
        pthread_mutex_destroy(&self.ahead.mutex)
        pthread_cond_destroy(&self.ahead.has_space)
        pthread_cond_destroy(&self.ahead.has_topic)
