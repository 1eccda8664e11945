"""Playing of schedules in tests."""

from collections.abc import Callable, Iterable

import pytest

from tests.simulation.schedule import Schedule, Step, play, quiet


@pytest.fixture
def simulate() -> Callable[..., None]:
    """Return a function that plays a schedule given as to `Schedule`. It raises the broker's violations."""

    def played(sync_each: bool, steps: list[Step], features: Iterable[str] = ()) -> None:
        with quiet() as failures:
            failure = play(Schedule(sync_each, steps, frozenset(features)), failures).failure
        if failure is not None:
            raise failure

    return played
