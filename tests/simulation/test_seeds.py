"""Fixed seeds of the simulator: operations and faults in any order against the model; `make simulate` plays more."""

import pytest

from tests.simulation.schedule import as_test, made_from, play, quiet

SEEDS_PER_TEST = 150


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_the_broker_does_what_the_model_says_whatever_fails(block: int) -> None:
    with quiet() as failures:
        for seed in range(block * SEEDS_PER_TEST, (block + 1) * SEEDS_PER_TEST):
            failure = play(made_from(seed), failures).failure
            assert failure is None, as_test(made_from(seed), seed, failure)
