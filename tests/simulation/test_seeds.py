"""Schedules of fixed seeds and those in found.txt, played against the model; `make simulate` plays more seeds."""

from pathlib import Path

import pytest

from tests.simulation.schedule import Schedule, as_line, from_line, made_from, play, quiet

# First seed and number of seeds of each test; each range of seeds has faults of its own (`features`).
BLOCKS = (
    *((first, 75) for first in (0, 150, 300, 450)),
    *(
        (first, 40)
        for first in (
            *(10_000_000, 20_000_000, 30_000_000, 40_000_000, 50_000_000, 60_000_000, 75_000_000),
            *(80_000_000, 85_000_000, 90_000_000, 95_000_000, 120_000_000, 130_000_000, 140_000_000),
            *(145_000_000, 150_000_000, 160_000_000, 165_000_000, 170_000_000, 175_000_000),
        )
    ),
)
FOUND = [
    pytest.param(schedule, id=fault, marks=pytest.mark.slow if is_slow else ())
    for line in Path(__file__).with_name("found.txt").read_text().splitlines()[1:]
    for schedule, fault, is_slow in [from_line(line)]
]


@pytest.mark.parametrize("schedule", FOUND)
def test_a_schedule_that_once_failed_matches_the_model(schedule: Schedule) -> None:
    with quiet() as failures:
        failure = play(schedule, failures).failure
    if failure is not None:
        raise failure


@pytest.mark.slow
@pytest.mark.parametrize(("first", "count"), BLOCKS)
def test_the_broker_matches_the_model_under_all_faults(first: int, count: int) -> None:
    with quiet() as failures:
        for seed in range(first, first + count):
            failure = play(made_from(seed), failures).failure
            assert failure is None, as_line(made_from(seed), f"seed {seed}: {failure}")
