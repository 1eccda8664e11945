# Taking up what an earlier run of a channel left. Design notes: pyx/broker/recovery.pyx.
from pyqd.hot.broker.channel cimport ChannelCore

cdef int forget_parked_below(ChannelCore channel) except -1
