"""The ring of bits against a set of positions."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.examples import examples
from tests.support.structures import Ring

capacities = st.sampled_from([64, 128, 256, 512])
bases = st.one_of(st.integers(0, 300), st.integers(0, 2**62))


class RingMachine(RuleBasedStateMachine):
    """A window of full length, which slides along the row as the finished bits of a channel do."""

    @initialize(capacity_bits=capacities, base=bases)
    def start(self, capacity_bits, base):
        self.ring = Ring(capacity_bits)
        self.base = base
        self.model = set()

    def draw_range(self, data):
        capacity_bits = self.ring.capacity_bits
        length = data.draw(st.one_of(st.integers(0, capacity_bits), st.just(capacity_bits)))
        first = self.base + data.draw(st.integers(0, capacity_bits - length))
        return first, first + length

    @rule(offset=st.integers(0, 511))
    def set(self, offset):
        position = self.base + offset % self.ring.capacity_bits
        self.ring.set(position)
        self.model.add(position)

    @rule(data=st.data())
    def set_range(self, data):
        first, end = self.draw_range(data)
        self.ring.set_range(first, end)
        self.model.update(range(first, end))

    @rule(data=st.data())
    def clear_range(self, data):
        first, end = self.draw_range(data)
        self.ring.clear_range(first, end)
        self.model.difference_update(range(first, end))

    @rule(data=st.data())
    def search(self, data):
        first, end = self.draw_range(data)
        in_range = range(first, end)
        next_zero = next((position for position in in_range if position not in self.model), end)
        assert self.ring.next_one(first, end) == next((p for p in in_range if p in self.model), end)
        assert self.ring.next_zero(first, end) == next_zero
        assert self.ring.run_of_ones(first, end) == next_zero - first
        assert self.ring.count(first, end) == sum(position in self.model for position in in_range)

    @rule(step=st.integers(0, 600))
    def slide(self, step):
        step = min(step, self.ring.capacity_bits)
        self.ring.clear_range(self.base, self.base + step)
        self.base += step
        self.model = {position for position in self.model if position >= self.base}

    @rule()
    def slide_over_the_finished(self):
        self.slide(self.ring.run_of_ones(self.base, self.base + self.ring.capacity_bits))

    @rule(capacity_bits=capacities, data=st.data())
    def copy(self, capacity_bits, data):
        first, end = self.draw_range(data)
        end = min(end, first + capacity_bits)
        self.ring = self.ring.copied(capacity_bits, first, end)
        self.base = first
        self.model = {position for position in self.model if first <= position < end}

    @invariant()
    def agree(self):
        window = range(self.base, self.base + self.ring.capacity_bits)
        assert {position for position in window if self.ring.test(position)} == self.model


TestRingAgreesWithASet = RingMachine.TestCase
TestRingAgreesWithASet.settings = settings(max_examples=examples(60), stateful_step_count=40)


@given(st.lists(st.integers(0, 255), max_size=40), st.integers(0, 2**40), st.integers(0, 256), st.integers(0, 256))
def test_searches_agree_with_a_string_of_digits(offsets, base, one_end, other_end):
    ring = Ring(256)
    for offset in offsets:
        ring.set(base + offset)
    digits = "".join("1" if offset in set(offsets) else "0" for offset in range(256))
    first, end = sorted([one_end, other_end])
    found = digits.find("1", first, end)
    assert ring.next_one(base + first, base + end) == base + (found if found >= 0 else end)
    found = digits.find("0", first, end)
    assert ring.next_zero(base + first, base + end) == base + (found if found >= 0 else end)
    assert ring.count(base + first, base + end) == digits[first:end].count("1")
