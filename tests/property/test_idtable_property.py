"""The table of ids against a dict."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.examples import examples
from tests.support.structures import Table

INVERSE = pow(0xC4677F8B5D699E3B, -1, 2**64)


def colliding(draw):
    """Turn a small number into an id whose home is one of four cells around the end of the array."""
    corner, nth = draw
    return (((corner - 2) * 2**54 + nth) * INVERSE) % 2**64 or 1


ids = st.one_of(
    st.integers(1, 40),
    st.integers(1, 2**64 - 1),
    st.tuples(st.integers(0, 3), st.integers(1, 12)).map(colliding),
)
slots = st.integers(0, 2**32 - 1)


class TableMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.table = Table()
        self.model = {}

    @initialize(at_once=st.booleans())
    def begin(self, at_once):
        """Copy an array that gets too small at once, or in the operations that follow."""
        self.table = Table() if at_once else Table(0)

    @rule(guid=ids, slot=slots)
    def put(self, guid, slot):
        if guid not in self.model:
            self.table.put(guid, slot)
            self.model[guid] = slot

    @rule(first=st.integers(1, 2**63), count=st.integers(1, 1500))
    def put_a_tick_full(self, first, count):
        for guid in range(first, first + count):
            if guid not in self.model:
                self.table.put(guid, guid & 0xFFFF)
                self.model[guid] = guid & 0xFFFF

    @rule(guid=ids)
    def take(self, guid):
        assert self.table.take(guid) == self.model.pop(guid, -1)

    @rule(keep=st.integers(0, 30))
    def take_all_but_some(self, keep):
        for guid in list(self.model)[keep:]:
            assert self.table.take(guid) == self.model.pop(guid)

    @rule(guid=ids)
    def get(self, guid):
        assert self.table.get(guid) == self.model.get(guid, -1)

    @rule()
    def clear(self):
        self.table.clear()
        self.model.clear()

    @invariant()
    def agree(self):
        self.table.check()
        assert len(self.table) == len(self.model)
        assert self.table.capacity >= 2 * len(self.model)
        for guid, slot in self.model.items():
            assert self.table.get(guid) == slot


TestTableAgreesWithADict = TableMachine.TestCase
TestTableAgreesWithADict.settings = settings(max_examples=examples(60), stateful_step_count=40)
