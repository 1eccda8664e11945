# Thread that opens the files of a start ahead of the loading thread. Design notes: pyx/diskqueue/loadahead.pyx.
from libc.stdint cimport uint32_t, uint64_t

from pyqd.hot.diskqueue.arena cimport Extent

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

cdef class LoadAhead:
    cdef Ahead* ahead                    # owned
    cdef pthread_t thread
    cdef bint runs
    cdef bytes encoded                   # keeps `ahead.path`
    cdef list entries                    # keep `ahead.entries`
    cdef dict names                      # of the current topic: lists of names by directory
    cdef dict mappings                   # of the current topic: Mappings by path
