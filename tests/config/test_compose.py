"""Values set in composed configs."""

import subprocess
import sys

import pytest

from advsweep.config.compose import patch
from advsweep.config.space import Delete
from advsweep.errors import ConfigError
from advsweep.sweep.registry import config_groups


@pytest.fixture(scope="module")
def groups():
    with config_groups() as opened:
        yield opened


def test_values_are_patched_onto_a_copy(groups):
    composed = groups.compose({})
    config = patch(groups, composed, {"steps": 3, "optimizer.lr": 1e-4, "evaluation.k": [1]})
    assert (config["steps"], config["optimizer"]["lr"], config["evaluation"]["k"]) == (3, 1e-4, [1])
    assert composed["steps"] == 200
    assert "lr" not in composed["optimizer"]


def test_a_key_below_a_name_makes_it_a_mapping(groups):
    composed = groups.compose({"estimator": "a_grae"})
    node = patch(groups, composed, {"estimator.base.std": "sample"})["estimator"]
    assert node["base"] == {"name": "grpo", "std": "sample"}
    # A file may name a component, and its blocks set the fields.
    config = patch(groups, composed, {"optimizer": "sgd", "optimizer.lr": 2.0})
    assert config["optimizer"] == {"name": "sgd", "lr": 2.0}


def test_a_deleted_key_is_at_its_default(groups):
    composed = groups.compose({"method": "dapo"})
    keys = ("objective.aggregation", "objective.clip_low", "objective.clip_high")
    config = patch(groups, composed, dict.fromkeys(keys, Delete()))
    assert config["objective"] == {"name": "clipped"}


def test_interpolations_see_the_patched_values(groups):
    config = patch(groups, groups.compose({}), {"steps": 30, "evaluation.every": "${steps}"})
    assert config["evaluation"]["every"] == 30


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps.x": 1}, r"^steps.x: expected steps to be a mapping, got 200"),
        ({"optimizer.lr": "${nothing}"}, r"^optimizer.lr: .*'nothing'"),
        ({"steps": "???"}, r"^steps: .*[mM]issing"),
    ],
)
def test_what_cannot_be_patched_is_refused(values, message, groups):
    with pytest.raises(ConfigError, match=message):
        patch(groups, groups.compose({}), values)


def test_hydra_is_loaded_by_the_first_override_alone():
    code = (
        "import sys, advsweep.config.compose, advsweep.config.sweep_file;"
        "assert not {'hydra', 'omegaconf', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
