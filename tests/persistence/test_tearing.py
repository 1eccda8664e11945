"""A small log, torn and damaged everywhere: recovery against a plain model of it.

The model: a record is there if none of its bytes was touched. A torn tail loses the records it touches, damage in the
middle loses the records it touches and no others; none comes changed, twice or out of order.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.wire.record import span_bytes
from pyqd.primitives.errors import LaterFormatError
from tests.support.examples import examples
from tests.support.storage import SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES, body_of

SIZES = (8, 24, 9, 40, 17)
BODIES = [body_of(number + 1, size) for number, size in enumerate(SIZES)]
OFFSETS = [SEGMENT_HEADER_BYTES + sum(span_bytes(size) for size in SIZES[:count]) for count in range(len(SIZES) + 1)]


def written(directory: Path) -> tuple[str, bytes]:
    """Make the small log; return the name and the content of its file."""
    log = Log(Files(), str(directory), 1)
    for number, body in enumerate(BODIES):
        log.append_message(number + 1, body)
    (path,) = directory.iterdir()
    return path.name, path.read_bytes()


def recovered(root: Path, name: str, content: bytes, **flags: Any) -> Log:
    directory = root / "log"
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    (directory / name).write_bytes(content)
    return Log(Files(), str(directory), 1, **flags)


def bodies_of(log: Log) -> list[bytes]:
    return [record[4] for record in log.records()]


def goes_on(root: Path, log: Log, found: list[bytes]) -> None:
    """Records appended now are there after the next start, beside those found."""
    log.append_message(99, b"after")
    log.check()
    assert bodies_of(Log(Files(), str(root / "log"), 1)) == [*found, b"after"]


@pytest.fixture
def origin(tmp_path: Path) -> tuple[str, bytes]:
    return written(tmp_path / "origin")


@pytest.mark.slow
@pytest.mark.parametrize("power_failed", [False, True])
def test_a_file_cut_at_any_byte_keeps_the_whole_records_before_the_cut(tmp_path, origin, power_failed):
    name, content = origin
    for cut in range(SEGMENT_HEADER_BYTES + 1, OFFSETS[-1] + 9):
        log = recovered(tmp_path, name, content[:cut], power_failed=power_failed)
        found = bodies_of(log)
        assert found == BODIES[: sum(end <= cut for end in OFFSETS[1:])], cut
        goes_on(tmp_path, log, found)


def test_a_file_cut_within_its_header_is_set_aside(tmp_path, origin):
    name, content = origin
    for cut in range(SEGMENT_HEADER_BYTES + 1):
        log = recovered(tmp_path, name, content[:cut])
        assert (bodies_of(log), log.damage.found_count) == ([], 1), cut


@pytest.mark.slow
def test_a_tail_lost_after_any_byte_keeps_the_records_before_it(tmp_path, origin):
    name, content = origin
    for cut in range(SEGMENT_HEADER_BYTES, OFFSETS[-1]):
        torn = content[:cut] + bytes(len(content) - cut)
        log = recovered(tmp_path, name, torn, power_failed=True)
        found = bodies_of(log)
        whole = [end for end in OFFSETS[1:] if not any(content[cut:end])]
        assert found == BODIES[: len(whole)], cut
        goes_on(tmp_path, log, found)


@pytest.mark.slow
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_any_damaged_byte_loses_its_record_and_no_other(tmp_path, origin, flip):
    name, content = origin
    for at in range(SEGMENT_HEADER_BYTES, OFFSETS[-1]):
        changed = bytearray(content)
        changed[at] ^= flip
        log = recovered(tmp_path, name, bytes(changed))
        hit = sum(end <= at for end in OFFSETS[1:])
        # The checksum does not cover the zeros behind the body.
        padding = at >= OFFSETS[hit] + 48 + SIZES[hit]
        found = bodies_of(log)
        assert found == (BODIES if padding else BODIES[:hit] + BODIES[hit + 1 :]), at
        assert log.damage.lost_count == (not padding)
        log.append_message(99, b"after")
        assert bodies_of(Log(Files(), str(tmp_path / "log"), 1)) == [*found, b"after"]


def test_leftovers_of_a_power_failure_do_not_take_the_numbers_of_the_next_segment(tmp_path, origin):
    name, content = origin
    synced_bytes = OFFSETS[1].to_bytes(8, "little")
    head = content[:56] + synced_bytes + content[64 : OFFSETS[1]]
    torn = head + bytes(OFFSETS[2] - OFFSETS[1]) + content[OFFSETS[2] :]
    log = recovered(tmp_path, name, torn, power_failed=True)
    assert bodies_of(log) == BODIES[:1]
    # After a power failure the log goes on in another segment. Its sealed end is not durable until the next sync.
    log.append_message(99, b"after")
    damaged = bytes(OFFSETS[1] - SEGMENT_HEADER_BYTES)
    (tmp_path / "log" / name).write_bytes(torn[:SEGMENT_HEADER_BYTES] + damaged + torn[OFFSETS[1] :])
    log = Log(Files(), str(tmp_path / "log"), 1, power_failed=True)
    assert (bodies_of(log), log.end) == ([b"after"], 2)


def test_leftovers_in_a_segment_without_records_do_not_take_the_numbers_of_the_next_one(tmp_path, origin):
    name, content = origin
    # The head of the first record is torn, and the others were never synced.
    torn = content[: OFFSETS[0] + 8] + bytes(OFFSETS[1] - OFFSETS[0] - 8) + content[OFFSETS[1] :]
    log = recovered(tmp_path, name, torn, power_failed=True)
    large = bytes(SEGMENT_BYTES_MIN)
    log.append_message(99, large)
    (tmp_path / "log" / name).write_bytes(torn)
    # After a power failure only a page that cannot be read starts the search; after a kill any damage does.
    log = Log(Files(), str(tmp_path / "log"), 1)
    assert (bodies_of(log), log.end) == ([large], 1)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(
    mutations=st.lists(
        st.tuples(st.integers(0, SEGMENT_BYTES_MIN - 1), st.binary(min_size=1, max_size=64)), min_size=1, max_size=6
    ),
    near=st.booleans(),
    size=st.integers(0, SEGMENT_BYTES_MIN),
    power_failed=st.booleans(),
)
def test_a_mutated_file_never_ends_the_process_nor_gives_a_wrong_body(
    tmp_path_factory, mutations, near, size, power_failed
):
    root = tmp_path_factory.mktemp("mutated")
    name, content = written(root / "origin")
    changed = bytearray(content)
    for at, piece in mutations:
        start = at % OFFSETS[-1] if near else at
        changed[start : start + len(piece)] = piece
    kept = bytes(changed[: size if size % 3 == 0 else len(content)])
    try:
        log = recovered(root, name, kept, power_failed=power_failed)
    except LaterFormatError:
        assert (root / "log" / name).read_bytes() == kept
        return
    found = bodies_of(log)
    rest = iter(BODIES)
    assert all(body in rest for body in found)
    goes_on(root, log, found)
