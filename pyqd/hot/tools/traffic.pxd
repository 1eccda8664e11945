from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.tools.histogram cimport Histogram
from pyqd.hot.tools.tally cimport Tally

cdef enum:
    CONTROL_BYTES = 64             # room for RDY, NOP and CLS behind the FINs
    ERROR_TEXT_BYTES = 512
    FRAME_BYTES_MAX = 67108864     # of a message that a consumer takes

cdef enum Role:
    PUBLISHER
    HTTP_PUBLISHER
    CONSUMER
    IDLER

cdef struct Connection:
    int fd                         # borrowed from the Python socket
    Role role
    uint32_t index                 # in Load.connections, and in its epoll events
    bint write_armed               # EPOLLOUT is awaited, and EPOLLIN only by publishers
    bint closing                   # CLS was sent
    bint finished                  # CLOSE_WAIT was received
    char* input                    # unparsed bytes are input[input_start:input_end]; owned
    uint32_t input_start
    uint32_t input_end
    uint32_t input_max
    char* output                   # unsent bytes are output[output_start:output_end]; owned
    uint32_t output_start
    uint32_t output_end
    uint32_t output_max
    uint32_t outstanding           # commands sent or stamped, but not answered
    int64_t* begun_ns              # of each of these, in a ring of outstanding_max; NULL but for publishers; owned
    uint32_t oldest                # its place in that ring
    uint32_t channel               # index of the tally that this consumer adds to

cdef struct Traffic:
    int epoll_fd
    Connection* connections        # owned, with the buffers
    uint32_t connection_count
    uint32_t publisher_count
    uint32_t first_publisher       # publishers lie behind each other
    uint32_t next_publisher        # index of the next publisher to send, from 0; only with a rate
    uint32_t consumer_count
    uint32_t finished_count        # consumers that have seen CLOSE_WAIT
    uint32_t batch                 # messages in a command
    uint32_t outstanding_max       # unanswered commands of a connection
    uint32_t burst_max             # commands in its output buffer
    uint32_t command_bytes
    uint32_t counter_offset        # of the first counter in a command
    uint32_t counter_stride        # from one counter of a command to the next
    bint text_counters             # counters are written without the byte LF
    uint64_t messages              # to be published, or expected, or both
    uint64_t next_counter
    uint64_t confirmed
    uint64_t heartbeats
    bint tallied                   # messages are ours: each counter is marked in its channel's tally
    uint64_t received              # messages, over all channels
    uint64_t received_bytes        # of their bodies
    Tally* tallies                 # one for each channel; owned
    uint32_t channel_count
    double interval_ns             # between the intended times of two messages; 0: as fast as answers come
    int64_t defer_ns               # from sending to the due time
    int64_t* sent_ns               # of each command, by counter // batch; NULL unless deliveries need it; owned
    Histogram answers
    Histogram deliveries
    Histogram behind               # how long after their intended times commands were sent
    uint64_t early                 # deliveries before the due time
    int64_t start_ns
    int64_t now_ns                 # when the bytes being parsed were received
    int64_t last_sent_ns
    int64_t published_ns           # the last OK came
    int64_t consumed_ns            # the last CLOSE_WAIT came
    int64_t worked_ns              # spent on events, outside of epoll_wait
    bint spinning                  # poll without sleeping
    bint stopping                  # set by another thread: leave the loop soon
    bint drained                   # all expected messages were received, or no more are wanted, and CLS was sent
    bint failed
    char error_text[ERROR_TEXT_BYTES]

# Send the unsent bytes; 1 if all are sent, 0 if the socket is full, -1 on failure.
cdef int flush(Traffic* traffic, Connection* connection) noexcept nogil

# Stamp and send as many commands as may be outstanding; the caller saw an empty output buffer. Returns as flush.
cdef int publish_more(Traffic* traffic, Connection* connection) noexcept nogil

# Send CLS on every consumer, behind the FINs that may still wait there; -1 on failure.
cdef int ask_to_close(Traffic* traffic) noexcept nogil

# Serve events until end_ns; 1 when the load is complete, 0 when the time is over, -1 on failure.
cdef int turn(Traffic* traffic, int64_t end_ns) noexcept nogil
