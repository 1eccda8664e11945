"""The heap of due times against heapq."""

import heapq

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.structures import Dues

# Few different ones, so that equal ones are common, and now and then any.
due_times = st.one_of(st.integers(0, 20), st.integers(-(2**63), 2**63 - 1))
references = st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1))
# An empty heap keeps so much.
KEPT_BYTES = 64 << 10
ENTRY_BYTES = 16


class DueHeapMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.heap = Dues()
        self.model = []

    @rule(due_ns=due_times, ref=references)
    def push(self, due_ns, ref):
        self.heap.push(due_ns, ref)
        heapq.heappush(self.model, (due_ns, ref))

    @rule(count=st.integers(1, 5000), step=st.sampled_from([-7, 0, 3]))
    def push_many(self, count, step):
        for ref in range(count):
            self.heap.push(step * ref, ref % 100)
            heapq.heappush(self.model, (step * ref, ref % 100))

    @precondition(lambda self: self.model)
    @rule(count=st.integers(1, 5000))
    def pop(self, count):
        for _ in range(min(count, len(self.model))):
            assert (self.heap.peek_due(), self.heap.peek_ref()) == self.model[0]
            assert self.heap.pop() == heapq.heappop(self.model)[1]

    @rule()
    def clear(self):
        self.heap.clear()
        self.model.clear()

    @invariant()
    def agrees(self):
        self.heap.check()
        assert sorted(self.heap.entries()) == sorted(self.model)
        if self.model:
            assert (self.heap.peek_due(), self.heap.peek_ref()) == self.model[0]
        else:
            assert self.heap.peek_due() == 2**63 - 1
            assert self.heap.memory_bytes <= KEPT_BYTES


TestDueHeapAgreesWithHeapq = DueHeapMachine.TestCase
TestDueHeapAgreesWithHeapq.settings = settings(max_examples=examples(40), stateful_step_count=30)


def test_memory_grows_by_an_eighth_once_it_is_large():
    heap = Dues()
    for ref in range(200_000):
        heap.push(ref, ref)
        assert heap.memory_bytes <= max(1 << 20, len(heap) * (ENTRY_BYTES + 2))
