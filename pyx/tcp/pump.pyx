"""The messagePump of a connection.

Delivering is a turn: the channel asks this client to take its share, frames are built and leave in one send. A turn
never waits, so it runs wherever the scheduler stands, without a greenlet switch. What may wait is the pump greenlet's:
it sends the rest when the socket was full, and the heartbeats. Until the rest has left the client is `blocked` and
takes no more, so what one slow reader costs is bounded by one turn.

A lone message leaves at once; a batch leaves when the turn ends or a send is full. A client's output_buffer_timeout
bounds the wait from above, and no wait is as long as the least that can be asked for.

A turn takes TURN_BYTES at most and then asks for another, so that the loop sees to other sockets in between.

Source: docs/nsq/tcp-protocol.md, "Heartbeats and deadlines", "Output buffering".
"""

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from pyqd.hot.primitives.clock cimport mono_ns
from pyqd.hot.wire.frames cimport FRAME_RESPONSE, message_frame_bytes, put_message, put_message_head
from pyqd.hot.wire.record cimport Record, record_body

cdef enum:
    TURN_BYTES = 128 << 10
    IN_PLACE_BYTES = 16 << 10            # from here on a copy costs more than a send of its own
    WRITE_EVENT = 2                      # libev's EV_WRITE
    HEARTBEAT_BYTES = 11

cdef char* HEARTBEAT = b"_heartbeat_"


cdef class Pump(Outbox):
    """A connection's delivering half: the Consumer that a channel knows."""

    cdef int deliver(self, uint64_t quota) except -1:
        """Take up to `quota` messages of the channel and send them. Switches: no."""
        cdef Delivery delivery
        cdef ChannelCore channel = self.channel
        cdef int64_t now_ns = mono_ns()
        cdef uint64_t turn_start = self.sent_bytes + (self.end - self.start)
        while quota != 0 and self.in_flight + self.unsynced_count < self.rdy:
            if not channel.take(self, now_ns, &delivery):
                break
            self.put_delivery(&delivery)
            quota -= 1
            if self.owned:
                # The socket is full: what more is taken now would be copied, and wait here in place of the channel.
                break
            if self.sent_bytes + (self.end - self.start) >= turn_start + TURN_BYTES:
                self.scheduler.request_wake(channel)
                break
        self.scheduler.spend(<int64_t> (self.sent_bytes + (self.end - self.start) - turn_start))
        self.flush_or_block()
        return 0

    cdef int put_delivery(self, const Delivery* delivery) except -1:
        """Queue the frame of a message, or send it at once where its body is worth no copy."""
        cdef const Record* record = delivery.record
        cdef uint32_t size_bytes = record.size_bytes
        if size_bytes >= IN_PLACE_BYTES and self.transport is None and not self.withholding:
            put_message_head(
                self.room(message_frame_bytes(0)), record.guid, record.timestamp_ns, delivery.attempts, size_bytes)
            self.end += message_frame_bytes(0)
            if not self.owned:
                return self.send_in_place(record_body(record), size_bytes)
            memcpy(self.room(size_bytes), record_body(record), size_bytes)
            self.end += size_bytes
            return 0
        put_message(
            self.room(message_frame_bytes(size_bytes)), record.guid, record.timestamp_ns, delivery.attempts,
            record_body(record), size_bytes)
        self.end += message_frame_bytes(size_bytes)
        return 0

    cdef int flush_or_block(self) except -1:
        """Send what is queued; where the socket is full, leave the rest to the pump greenlet."""
        if self.withholding:
            # The IOLoop waits for a sync and flushes after it; until then nothing is delivered either.
            if not self.owned:
                self.keep(self.end - self.start)
            self.blocked = True
        elif self.start < self.end and not self.flush():
            self.blocked = True
            self.wake_pump()
        return 0

    cdef int wake_pump(self) except -1:
        if self.pump_idle:
            self.pump_idle = False
            self.hub.loop.run_callback(self.pump_greenlet.switch)
        return 0

    def message_pump(self):
        """Run as a greenlet for the life of the connection. Switches: yes."""
        try:
            while not self.gone:
                self.pump_once()
        except BaseException as error:
            self.failed(error)

    cdef int pump_once(self) except -1:
        if self.blocked and not self.withholding:
            self.wait_drained()
        elif self.heartbeat_wanted and not self.withholding:
            self.heartbeat_wanted = False
            self.put(FRAME_RESPONSE, HEARTBEAT, HEARTBEAT_BYTES)
            self.flush_or_block()
        else:
            self.pump_idle = True
            self.hub.switch()
            self.pump_idle = False
        return 0

    cdef int wait_drained(self) except -1:
        """Send the rest as the socket takes it. Switches: yes."""
        if self.write_watcher is None:
            self.write_watcher = self.hub.loop.io(self.fd, WRITE_EVENT)
        self.write_watcher.start(self.pump_greenlet.switch)
        try:
            self.hub.switch()
        finally:
            if self.write_watcher is not None:
                self.write_watcher.stop()
        # Meanwhile the IOLoop may have begun to wait for a sync: then it sends what there is when that is over.
        if not self.gone and not self.withholding and self.flush():
            self.blocked = False
            if self.channel is not None:
                self.scheduler.request_wake(self.channel)
            if self.io_draining:
                self.io_draining = False
                self.hub.loop.run_callback(self.io_greenlet.switch)
        return 0

    cdef int arm(self, int64_t now_ns) except -1:
        """Ask to be called at the next heartbeat, or when the client has been silent for two intervals."""
        if self.heartbeat_ns > 0 and not self.gone:
            self.scheduler.set_timer(self, min(self.heartbeat_due_ns, self.command_ns + 2 * self.heartbeat_ns))
        return 0

    cdef int on_time(self, int64_t now_ns) except -1:
        if self.gone or self.heartbeat_ns <= 0:
            return 0
        if now_ns >= self.command_ns + 2 * self.heartbeat_ns:
            self.close_because("no command within two heartbeat intervals")
            return 0
        if self.io_draining and now_ns >= self.draining_since_ns + self.heartbeat_ns:
            self.close_because("it does not read its answers")
            return 0
        if now_ns >= self.heartbeat_due_ns:
            self.heartbeat_due_ns = now_ns + self.heartbeat_ns
            self.heartbeat_wanted = True
            self.wake_pump()
        self.arm(now_ns)
        return 0

    def start_heartbeats(self, heartbeat_ns):
        """Begin, change or (0) end heartbeats and the deadlines that go by them."""
        cdef int64_t now_ns = mono_ns()
        self.heartbeat_ns = heartbeat_ns
        self.heartbeat_due_ns = now_ns + self.heartbeat_ns
        self.command_ns = now_ns
        self.scheduler.drop_timer(self)
        self.arm(now_ns)

    def put_response(self, bytes data not None):
        """Queue a response frame."""
        self.put(FRAME_RESPONSE, data, <uint32_t> len(data))

    def mark_gone(self):
        """End the connection: nothing more is read or delivered, both greenlets end when they run next."""
        self.gone = True
        self.rdy = 0
        if self.io_draining:
            self.io_draining = False
            self.hub.loop.run_callback(self.io_greenlet.switch)

    def stop_pump(self):
        """End the greenlet; the descriptor may be closed after this."""
        self.gone = True
        self.scheduler.drop_timer(self)
        if self.write_watcher is not None:
            self.write_watcher.stop()
            self.write_watcher.close()
            self.write_watcher = None
        self.hub.loop.run_callback(self.end_pump)

    def end_pump(self):
        """Let the pump greenlet see that the connection is gone."""
        pump, self.pump_greenlet = self.pump_greenlet, None
        if pump is not None and not pump.dead:
            pump.switch()

    def close_because(self, reason):
        raise NotImplementedError("the connection knows how to close")

    def failed(self, error):
        raise NotImplementedError("the connection knows what to do about a bug")
