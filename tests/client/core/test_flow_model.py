"""RDY and back-off of a consumer against a model broker that obeys RDY."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyqd.client.core.flow import ConsumerFlow, FlowSettings
from tests.support.examples import examples

SETTINGS = FlowSettings(backoff_max_s=20.0)
# Long enough for a hand-over: RDY may have been given just before a check.
TURN_S = SETTINGS.low_rdy_s + 2 * SETTINGS.redistribute_s


class FlowMachine(RuleBasedStateMachine):
    """A broker per connection that delivers while fewer messages than RDY are in flight."""

    @initialize(
        max_in_flight=st.integers(0, 9), seed=st.integers(0, 3), jitter=st.booleans(), failures=st.sampled_from([1, 3])
    )
    def start(self, max_in_flight, seed, jitter, failures):
        self.failures = failures
        # Results outside of a back-off; True for a failure.
        self.results: list[bool] = []
        times = FlowSettings(failures, backoff_max_s=SETTINGS.backoff_max_s, backoff_jitter=jitter)
        self.flow = ConsumerFlow(max_in_flight, times, random.Random(seed))
        self.now = 0.0
        self.max_in_flight = max_in_flight
        self.is_paused = False
        self.rdy = {}
        self.max_rdy = {}
        self.in_flight = {}
        self.keys_made = 0
        self.served: set[int] = set()

    @property
    def limit(self):
        return 0 if self.is_paused else self.max_in_flight

    def slots(self):
        return sum(max(self.rdy[key], self.in_flight[key]) for key in self.rdy)

    def obey(self, commands):
        """Apply commands in order: none raises the sum of RDY above the limit, and none is superfluous."""
        for key, count in commands:
            before = self.rdy[key]
            assert count != before
            self.rdy[key] = count
            if count > before:
                assert sum(self.rdy.values()) <= self.limit
                assert count <= self.in_flight[key] or self.slots() <= self.limit

    def pick(self, data, counts):
        keys = [key for key, count in counts.items() if count > 0]
        return data.draw(st.sampled_from(keys)) if keys else None

    @precondition(lambda self: len(self.rdy) < 6)
    @rule(max_rdy=st.sampled_from([1, 2, 2500]))
    def connect(self, max_rdy):
        self.keys_made += 1
        key = self.keys_made
        self.rdy[key], self.in_flight[key], self.max_rdy[key] = 0, 0, max_rdy
        self.obey(self.flow.connected(key, max_rdy, self.now))

    @precondition(lambda self: self.rdy)
    @rule(data=st.data())
    def disconnect(self, data):
        key = data.draw(st.sampled_from(sorted(self.rdy)))
        del self.rdy[key], self.in_flight[key], self.max_rdy[key]
        self.obey(self.flow.disconnected(key, self.now))
        assert self.flow.finished(key, self.now) == []

    @rule(data=st.data())
    def deliver(self, data):
        key = self.pick(data, {key: self.rdy[key] - self.in_flight[key] for key in self.rdy})
        if key is not None:
            count = data.draw(st.integers(1, self.rdy[key] - self.in_flight[key]))
            self.in_flight[key] += count
            self.flow.received(key, count, self.now)

    @rule(data=st.data(), result=st.sampled_from(["finish", "fail", "continue", "time out"]))
    def answer(self, data, result):
        key = self.pick(data, self.in_flight)
        if key is not None:
            self.answered(key, data.draw(st.integers(1, self.in_flight[key])), result)

    def answered(self, key, count, result):
        level, was_waiting = self.flow.backoff_level, self.flow._wait_ends_at is not None
        self.in_flight[key] -= count
        if result == "finish":
            self.obey(self.flow.finished(key, self.now, count))
        elif result == "time out":
            self.obey(self.flow.released(key, count, self.now))
        else:
            self.obey(self.flow.requeued(key, self.now, result == "fail", count))
        if was_waiting or result in ("continue", "time out"):
            assert self.flow.backoff_level == level
        elif result == "finish":
            assert self.flow.backoff_level == max(0, level - 1)
            self.results = [] if level else [*self.results, False]
        elif level == 0 and not self.prevail_with_this_failure():
            assert self.flow.backoff_level == 0
        else:
            # Four waits of 2, 4, 8 and 16 seconds are at most 20 seconds.
            assert self.flow.backoff_level == min(level + 1, 4)
            self.results.clear()

    def prevail_with_this_failure(self):
        self.results.append(True)
        in_a_row = self.results[-self.failures :] == [True] * self.failures
        return in_a_row or sum(self.results[-20:]) > 10

    @rule(count=st.integers(0, 9))
    def set_max_in_flight(self, count):
        self.max_in_flight = count
        self.obey(self.flow.set_max_in_flight(count, self.now))

    @rule(paused=st.booleans())
    def pause_or_resume(self, paused):
        self.is_paused = paused
        self.obey(self.flow.pause(self.now) if paused else self.flow.resume(self.now))

    @rule(seconds=st.floats(0.1, 50.0))
    def advance(self, seconds):
        end = self.now + seconds
        for _ in range(1000):
            deadline = self.flow.next_deadline
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.obey(self.flow.tick(self.now))
            assert self.flow.next_deadline is None or self.flow.next_deadline > self.now
        else:
            raise AssertionError("deadlines without end")
        self.now = end
        assert self.flow.tick(end) == []

    @invariant()
    def agree(self):
        assert {key: found.rdy for key, found in self.flow._connections.items()} == self.rdy
        assert self.flow.in_flight == sum(self.in_flight.values())
        assert sum(self.rdy.values()) <= self.limit
        assert all(self.rdy[key] <= self.max_rdy[key] for key in self.rdy)

    @invariant()
    def rdy_that_brings_messages_is_within_the_limit(self):
        if any(self.rdy[key] > self.in_flight[key] for key in self.rdy):
            assert self.slots() <= self.limit

    @invariant()
    def rdy_is_0_during_a_wait_and_small_during_back_off(self):
        if self.flow._wait_ends_at is not None:
            assert sum(self.rdy.values()) == 0
            assert self.flow.next_deadline is not None
        elif self.flow.backoff_level:
            assert sum(self.rdy.values()) <= 1

    @invariant()
    def free_slots_are_not_wasted(self):
        if not self.limit or not self.rdy or self.flow._wait_ends_at is not None:
            return
        if self.flow.backoff_level:
            assert sum(self.rdy.values()) == 1 or self.slots() >= self.limit
        else:
            assert self.slots() >= min(self.limit, sum(self.max_rdy.values()))

    def teardown(self):
        """Let handlers succeed: the back-off ends, and every connection gets RDY within its turns."""
        if not hasattr(self, "flow") or not self.rdy:
            return
        self.set_max_in_flight(max(1, self.max_in_flight))
        self.pause_or_resume(False)
        self.succeed_until(lambda: not self.flow.backoff_level, rounds=30)
        self.served = {key for key in self.rdy if self.rdy[key]}
        turns = len(self.rdy) * int(TURN_S / SETTINGS.redistribute_s)
        self.succeed_until(lambda: self.served == set(self.rdy), turns)

    def succeed_until(self, is_done, rounds):
        for _ in range(rounds):
            self.served |= {key for key in self.rdy if self.rdy[key]}
            for key in list(self.rdy):
                free = self.rdy[key] - self.in_flight[key]
                if free > 0:
                    self.in_flight[key] += free
                    self.flow.received(key, free, self.now)
                if self.in_flight[key]:
                    self.answered(key, self.in_flight[key], "finish")
            if is_done():
                return
            self.advance(SETTINGS.redistribute_s)
            self.agree()
        assert is_done()


TestFlowMachine = FlowMachine.TestCase
TestFlowMachine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
