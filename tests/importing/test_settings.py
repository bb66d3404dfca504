"""Settings of imported runs: from assignments, names of folders and files, made storable."""

from __future__ import annotations

import pytest

from advsweep.importing.write import config_hash, plain, stored_config
from advsweep.logs.names import NamePattern, assign, estimator_node, merged


def test_assignments_are_nested():
    found = {}
    for key, value in {"estimator": "grpo", "estimator.delta": 0.5, "a.b": [1, 2]}.items():
        assign(found, key, value)
    assert found == {"estimator": {"name": "grpo", "delta": 0.5}, "a": {"b": [1, 2]}}


@pytest.mark.parametrize(
    ("pattern", "source", "found"),
    [
        ("{estimator}-s{seed}", "logs/grpo-s3/metrics.jsonl", {"estimator": "grpo", "seed": 3}),
        ("{estimator}-s{seed}", "dr-grpo-s12.csv", {"estimator": "dr-grpo", "seed": 12}),
        ("{task}/{seed}", "logs/math/7", {"task": "math", "seed": 7}),
        ("{estimator.name}_d{d}", "x/asym_d0.5", {"estimator": {"name": "asym"}, "d": 0.5}),
        ("{estimator}-s{seed}", "logs/other/metrics.jsonl", None),
    ],
)  # fmt: skip
def test_patterns_over_names(pattern, source, found):
    assert NamePattern(pattern).settings(source) == found


@pytest.mark.parametrize(
    ("value", "name"),
    [("GRPO", "grpo"), ("Dr. GRPO", "dr_grpo"), ({"name": "rloo"}, "rloo"), (None, "unknown"),
     ("../../x", "x"), ("\x1b[31m", "31m"), ("é" * 99, "unknown"), ("a" * 99, "a" * 64)],
)  # fmt: skip
def test_names_of_estimators_fit_a_store(value, name):
    assert estimator_node(value)["name"] == name


def test_folders_machines_and_seeds_do_not_tell_settings_apart():
    def hashed(**changes):
        theirs = {"estimator": "grpo", "lr": 1, "output_dir": "/a", "data": {"seed": 1}}
        return config_hash(stored_config({**theirs, **changes}, form="jsonl", rows=None))

    assert hashed() == hashed(output_dir="/b", run_name="x", data={"seed": 2}, host="h")
    assert hashed(resume="/somewhere") == hashed()
    assert hashed() != hashed(lr=2)
    assert hashed() != hashed(estimator="rloo")


def test_rows_alone_tell_settings_apart():
    def hashed(**changes):
        theirs = {"estimator": "grpo", "lr": 1, "noise": 3, **changes}
        return config_hash(stored_config(theirs, form="jsonl", rows=["lr"]))

    assert hashed() == hashed(noise=4)
    assert hashed() != hashed(lr=2)
    assert hashed() != hashed(estimator="rloo")


def test_nodes_that_reports_read_have_a_name_and_sizes_are_numbers():
    config = stored_config(
        {"model": "Qwen", "task": 3, "backend": "fsdp", "group_size": "8", "seed": 1},
        form="csv", rows=None, seed=1,
    )  # fmt: skip
    assert config == {
        "backend": {"name": "imported", "format": "csv"},
        "their_backend": "fsdp",
        "estimator": {"name": "unknown"},
        "model": {"name": "Qwen"},
        "task": {"name": 3},
        "their_group_size": "8",
        "seed": 1,
    }


def test_secrets_are_masked() -> None:
    """Settings of trainers hold the environment of their processes."""
    theirs = {
        "ray": {"env_vars": {"WANDB_API_KEY": "k", "HF_TOKEN": "t", "DB_PASSWORD": "p"}},
        "hub_token": None,
        "token": "x",
        "data": {"prompt_key": "prompt", "pad_token": "<pad>", "max_tokens": 5},
        "tracking": "https://me:secret@host/a",
    }
    assert plain(theirs) == {
        "ray": {"env_vars": {"WANDB_API_KEY": "***", "HF_TOKEN": "***", "DB_PASSWORD": "***"}},
        "hub_token": None,
        "token": "***",
        "data": {"prompt_key": "prompt", "pad_token": "<pad>", "max_tokens": 5},
        "tracking": "https://me:***@host/a",
    }


def test_a_name_that_agrees_keeps_the_options() -> None:
    node = {"estimator": {"name": "grpo", "preset": "trl"}}
    assert merged(node, {"estimator": "grpo"}) == node
    assert merged(node, {"estimator": "rloo"}) == {"estimator": "rloo"}
    changed = {"estimator": {"name": "grpo", "preset": "trl", "eps": 0.1}}
    assert merged(node, {"estimator": {"eps": 0.1}}) == changed
