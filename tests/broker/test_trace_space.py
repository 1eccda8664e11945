"""Tests of pyqd.broker.trace_space: the limit on the disk space of trace events."""

from pathlib import Path

from pyqd.broker.trace_space import TraceSpace
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.space_limit import DiskReserve, SpaceLimit

MIB = 1 << 20


def test_a_pool_keeps_no_spare_beyond_the_limit(tmp_path: Path) -> None:
    space = TraceSpace(DiskReserve(Files(), str(tmp_path), 0), lambda: MIB)
    assert space.allows_spare(MIB)
    assert not space.allows_spare(MIB + 1)


def test_the_limit_of_the_trace_answers_every_question_of_a_pool() -> None:
    questions = {name for name, member in vars(SpaceLimit).items() if callable(member) and not name.startswith("_")}
    own = {name for name in vars(TraceSpace) if name in questions}
    assert questions - own <= {"check_spare"}
