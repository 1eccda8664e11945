"""The heap of deadlines against a dict from slot to deadline."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.structures import Heap

# Few different deadlines, so that equal ones are common, and now and then any.
deadlines = st.one_of(st.integers(0, 20), st.integers(-(2**63), 2**63 - 1))


class HeapMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.heap = Heap()
        self.model = {}

    def pick(self, data, waiting):
        slots = [slot for slot in range(self.heap.slot_count_max) if (slot in self.model) == waiting]
        return data.draw(st.sampled_from(slots)) if slots else None

    @initialize(slot_count=st.integers(1, 60))
    def start(self, slot_count):
        self.heap.reserve(slot_count)

    @rule(more=st.integers(0, 20))
    def reserve(self, more):
        expected = self.heap.slot_count_max + more
        self.heap.reserve(expected)
        assert self.heap.slot_count_max == expected

    @rule(due_ns=deadlines, data=st.data())
    def push(self, due_ns, data):
        slot = self.pick(data, waiting=False)
        if slot is not None:
            self.heap.push(slot, due_ns)
            self.model[slot] = due_ns

    @rule(base=st.integers(0, 20))
    def push_all_that_are_free(self, base):
        for slot in range(self.heap.slot_count_max):
            if slot not in self.model:
                self.heap.push(slot, base + slot % 7)
                self.model[slot] = base + slot % 7

    @precondition(lambda self: self.model)
    @rule(due_ns=deadlines, data=st.data())
    def update(self, due_ns, data):
        slot = self.pick(data, waiting=True)
        self.heap.update(slot, due_ns)
        self.model[slot] = due_ns

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        slot = self.pick(data, waiting=True)
        self.heap.remove(slot)
        del self.model[slot]

    @precondition(lambda self: self.model)
    @rule()
    def pop(self):
        assert self.model.pop(self.heap.pop()) == min([*self.model.values(), self.last_least])

    @rule(by_ns=st.integers(-6, 6).map(lambda half: 2 * half))
    def shift_odd(self, by_ns):
        odd = {slot: due_ns + by_ns for slot, due_ns in self.model.items() if due_ns % 2}
        if all(-(2**63) <= due_ns < 2**63 for due_ns in odd.values()):
            self.heap.shift_odd(by_ns)
            self.model.update(odd)

    @rule()
    def clear(self):
        self.heap.clear()
        self.model.clear()

    @invariant()
    def agree(self):
        self.heap.check()
        assert len(self.heap) == len(self.model)
        self.last_least = min(self.model.values(), default=2**63 - 1)
        assert self.heap.peek_due() == self.last_least
        if self.model:
            assert self.model[self.heap.peek_slot()] == self.last_least
        for slot in range(self.heap.slot_count_max):
            assert (slot in self.heap) == (slot in self.model)
        for slot, due_ns in self.model.items():
            assert self.heap.due_of(slot) == due_ns


TestHeapAgreesWithADict = HeapMachine.TestCase
TestHeapAgreesWithADict.settings = settings(max_examples=examples(60), stateful_step_count=60)
