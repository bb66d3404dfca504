"""The `tune` node of a sweep file: its fields, the choice, and how a grid grows."""

import pytest

from advsweep.config.space import Tune
from advsweep.errors import ConfigError

GRID = (1e-4, 2e-4, 4e-4)


def test_defaults_are_the_learning_rate_and_three_seeds_from_1000():
    tune = Tune(values=(4e-4, 1e-4, 2e-4, 1e-4))
    assert (tune.key, tune.metric, tune.values) == ("optimizer.lr", "pass@1", GRID)
    assert tune.tuning_seeds == (1000, 1001, 1002)
    assert Tune(values=GRID, seeds=(7, 5, 7)).tuning_seeds == (7, 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"values": [1e-4]}, "values: expected two or more different values .*, got 1"),
        ({"values": [0, 1]}, "values: expected > 0, got 0"),
        ({"values": ["a", "b"]}, "values: expected a list"),
        ({"values": GRID, "seeds": 0}, "seeds: expected at least one seed"),
        ({"values": GRID, "seeds": []}, "seeds: expected at least one seed"),
        ({"values": GRID, "set": {"seed": 3}}, "set.seed: expected a key that tuning leaves"),
        ({"values": GRID, "set": {"optimizer.lr": 3}}, "set.optimizer.lr: expected a key"),
        ({"values": GRID, "grid": 3}, "tune has no parameter 'grid'"),
    ],
)
def test_what_does_not_fit_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Tune.build(fields)


def test_the_best_mean_is_chosen_and_of_equals_the_smallest():
    scores = {1e-4: 0.3, 2e-4: 0.5, 4e-4: 0.5, 8e-4: None}
    assert Tune(values=GRID).best(scores) == 2e-4
    assert Tune(values=GRID, lower=True).best(scores) == 1e-4
    assert Tune(values=GRID).best({1e-4: None}) is None


def test_a_grid_grows_beyond_the_edge_that_is_best():
    tune = Tune(values=GRID)
    assert tune.beyond(GRID, 4e-4) == 8e-4
    assert tune.beyond(GRID, 1e-4) == 5e-5
    assert tune.beyond(GRID, 2e-4) is None
    # As far apart as the two at that edge, and written as a person would.
    assert tune.beyond((1e-4, 3e-4), 3e-4) == 9e-4
    assert repr(tune.beyond((2, 4, 8), 8)) == "16"
    assert repr(tune.beyond((2, 3), 3)) == "4.5"
