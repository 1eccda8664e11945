# Reset of a channel to a place of its topic's log. Design notes: pyx/broker/reset.pyx.
from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.diskqueue.log cimport Position

cdef int start_over(ChannelCore channel, Position position) except -1
