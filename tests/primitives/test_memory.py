"""Garbage collections of a daemon: of young objects, and full ones when memory grows without a reason."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from pyqd.primitives import memory
from pyqd.primitives.memory import BLOCKS_PER_OWNER, FullCollections, loading

BLOCKS_MAX = 20_000


class Cycle:
    """Object that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def without_collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(memory, "UNEXPLAINED_BLOCKS_MAX", BLOCKS_MAX)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
def test_memory_that_grows_without_a_reason_is_collected() -> None:
    collections = FullCollections()
    assert not collections.tend(0)
    garbage = [Cycle() for _ in range(BLOCKS_MAX)]
    gone = weakref.ref(garbage[0])
    del garbage
    assert collections.tend(0)
    assert gone() is None
    assert not collections.tend(0)


@pytest.mark.slow
def test_objects_of_topics_channels_and_connections_cause_no_collection() -> None:
    collections = FullCollections()
    owner_count = 1000
    assert not collections.tend(0)
    kept = [object() for _ in range(BLOCKS_PER_OWNER * owner_count)]
    assert len(kept) > BLOCKS_MAX
    assert not collections.tend(owner_count)
    del kept
    assert not collections.tend(0)


@pytest.mark.slow
def test_objects_that_a_collection_could_not_free_cause_no_second_one() -> None:
    collections = FullCollections()
    assert not collections.tend(0)
    kept = [object() for _ in range(2 * BLOCKS_MAX)]
    assert collections.tend(0)
    assert not collections.tend(0)
    del kept


@pytest.mark.slow
def test_what_was_loaded_is_left_to_full_collections() -> None:
    with loading():
        gone = weakref.ref(Cycle())
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.collect(1)
    assert gone() is not None
    gc.collect()
    assert gone() is None
