"""Playing of schedules in tests."""

from collections.abc import Callable

import pytest

from tests.simulation.schedule import Schedule, Step, play, quiet


@pytest.fixture
def simulate() -> Callable[[bool, list[Step]], None]:
    """Return a function that plays a schedule. It raises what the broker does wrong."""

    def played(sync_each: bool, steps: list[Step]) -> None:
        with quiet() as failures:
            failure = play(Schedule(sync_each, steps), failures).failure
        if failure is not None:
            raise failure

    return played
