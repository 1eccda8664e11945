"""Fixed seeds of the simulator: operations and faults in any order against the model; `make simulate` plays more."""

import pytest

from tests.simulation.schedule import as_test, made_from, play, quiet

# First seed and number of seeds of each test; each range of seeds has faults of its own (`features`).
BLOCKS = (
    *((first, 75) for first in (0, 150, 300, 450)),
    *(
        (first, 40)
        for first in (
            *(10_000_000, 20_000_000, 30_000_000, 40_000_000, 50_000_000, 60_000_000, 75_000_000),
            *(80_000_000, 85_000_000, 90_000_000, 95_000_000, 120_000_000, 130_000_000),
        )
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "count"), BLOCKS)
def test_the_broker_matches_the_model_under_all_faults(first: int, count: int) -> None:
    with quiet() as failures:
        for seed in range(first, first + count):
            failure = play(made_from(seed), failures).failure
            assert failure is None, as_test(made_from(seed), seed, failure)
