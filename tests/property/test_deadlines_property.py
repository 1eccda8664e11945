"""The queue of deadlines against a dict from slot to deadline."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.structures import Queue

SLOTS_MAX = 100


class QueueMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.queue = Queue()
        self.slot_count = 0
        self.model = {}
        self.now_ns = 0

    def free_slots(self):
        return [slot for slot in range(self.slot_count) if slot not in self.model]

    def add(self, slot, due_ns):
        self.queue.push(slot, due_ns)
        self.model[slot] = due_ns

    @initialize(slot_count=st.integers(1, 40))
    def start(self, slot_count):
        self.reserve(slot_count)

    @rule(more=st.integers(0, 20))
    def reserve(self, more):
        self.slot_count = min(self.slot_count + more, SLOTS_MAX)
        self.queue.reserve(self.slot_count)

    @rule(count=st.integers(1, 60), step=st.integers(0, 3))
    def deliver(self, count, step):
        for slot in self.free_slots()[:count]:
            self.now_ns += step
            self.add(slot, self.now_ns)

    @precondition(lambda self: self.free_slots())
    @rule(due_ns=st.one_of(st.integers(0, 200), st.integers(-(2**63), 2**63 - 1)), data=st.data())
    def push_any(self, due_ns, data):
        self.add(data.draw(st.sampled_from(self.free_slots())), due_ns)

    @precondition(lambda self: self.model)
    @rule(count=st.integers(1, 60), kept=st.integers(0, 2))
    def finish_in_order(self, count, kept):
        for slot in sorted(self.model, key=self.model.__getitem__)[kept : kept + count]:
            self.queue.remove(slot)
            del self.model[slot]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), by_ns=st.integers(-20, 200))
    def touch(self, data, by_ns):
        slot = data.draw(st.sampled_from(sorted(self.model)))
        due_ns = max(min(self.now_ns + by_ns, 2**63 - 1), -(2**63))
        self.queue.update(slot, due_ns)
        self.model[slot] = due_ns

    @rule()
    def clear(self):
        self.queue.clear()
        self.model.clear()

    @invariant()
    def agree(self):
        self.queue.check()
        assert len(self.queue) == len(self.model)
        least = min(self.model.values(), default=2**63 - 1)
        assert self.queue.peek_due() == least
        if self.model:
            assert self.model[self.queue.peek_slot()] == least
        assert [slot in self.queue for slot in range(self.slot_count)] == [
            slot in self.model for slot in range(self.slot_count)
        ]
        assert all(self.queue.due_of(slot) == due_ns for slot, due_ns in self.model.items())


TestQueueAgreesWithADict = QueueMachine.TestCase
TestQueueAgreesWithADict.settings = settings(max_examples=examples(60), stateful_step_count=60)


def test_deadlines_in_order_stay_in_the_ring_although_one_message_is_never_finished():
    queue = Queue(100)
    queue.push(0, 0)
    for number in range(10_000):
        queue.push(1 + number % 99, number)
        queue.remove(1 + number % 99)
        assert queue.ring_count == 1
    queue.check()
    assert (len(queue), queue.peek_slot()) == (1, 0)
