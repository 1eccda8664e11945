"""Tests of pyqd.diskqueue.space_limit: the floor of free bytes holds for simultaneous reservations."""

import threading

import pytest

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.space_limit import DiskReserve
from pyqd.primitives.errors import DiskFull

KIB = 1024
FLOOR = 256 * KIB
WAIT_S = 10.0


class Disk(Files):
    """A disk that has so many bytes free."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self, path: str) -> int:
        return self.free


def reserve_of(left: int) -> tuple[Disk, DiskReserve]:
    disk = Disk(FLOOR + left)
    return disk, DiskReserve(disk, "/", FLOOR)


def test_a_claim_is_the_requested_or_the_remaining_space() -> None:
    _, reserve = reserve_of(100 * KIB)
    with reserve.claim(4 * KIB, 64 * KIB) as size:
        assert size == 64 * KIB
        assert reserve.available_bytes() == 36 * KIB
    with reserve.claim(64 * KIB, 1 << 20) as size:
        assert size == 100 * KIB
    with reserve.claim(5000, 6000) as size:
        assert size == 8 * KIB, "whole pages"
    assert reserve.available_bytes() == 100 * KIB


def test_more_than_is_left_is_refused_and_leaves_no_claim() -> None:
    disk, reserve = reserve_of(63 * KIB)
    with pytest.raises(DiskFull, match="less than 262144 bytes would be left free"), reserve.claim(64 * KIB, 64 * KIB):
        pass
    disk.free += KIB
    with reserve.claim(64 * KIB, 64 * KIB) as size:
        assert size == 64 * KIB


def test_a_claim_ends_at_the_first_failed_reservation() -> None:
    _, reserve = reserve_of(64 * KIB)
    with pytest.raises(ZeroDivisionError), reserve.claim(64 * KIB, 64 * KIB):
        raise ZeroDivisionError
    assert reserve.available_bytes() == 64 * KIB


@pytest.mark.parametrize("reserved", [True, False])
def test_two_at_once_never_take_the_same_bytes(reserved: bool) -> None:
    """Bytes claimed by the first are not free for the second, which waits until the first has really taken them."""
    disk, reserve = reserve_of(100 * KIB)
    outcome: list[int | None] = []

    def claim() -> None:
        try:
            with reserve.claim(64 * KIB, 64 * KIB) as size:
                outcome.append(size)
        except DiskFull:
            outcome.append(None)

    with reserve.claim(64 * KIB, 64 * KIB) as size:
        other = threading.Thread(target=claim)
        other.start()
        other.join(0.05)
        assert outcome == []
        if reserved:
            disk.free -= size
    other.join(WAIT_S)
    assert outcome == [None if reserved else 64 * KIB]


def test_less_than_the_floor_is_short_whatever_is_claimed() -> None:
    disk, reserve = reserve_of(64 * KIB)
    with reserve.claim(64 * KIB, 64 * KIB):
        assert not reserve.is_short()
    disk.free = FLOOR - 1
    assert reserve.is_short()
