"""`advsweep keys`: every key of a run, with the value that it has without any setting."""

from __future__ import annotations

import json

import pytest

from advsweep.components import parameters
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.registry import GROUPS
from advsweep.tasks.verifiers import VERIFIERS


@pytest.fixture
def listed(in_process):
    def rows(*arguments):
        code, out, err = in_process("keys", *arguments, "--format", "json")
        assert code == 0, err
        return json.loads(out)

    return rows


def test_defaults_are_those_of_a_run(listed):
    rows = {row["key"]: row["default"] for row in listed()}
    config = make_plan([], single=True).runs[0].config
    for group, node in config.items():
        if not isinstance(node, dict):
            assert rows[group] == node
            continue
        assert rows[group] == node["name"]
        for key, value in node.items():
            if key != "name":
                value = value["name"] if isinstance(value, dict) else value
                # A component may replace null by what its other options mean.
                assert rows[f"{group}.{key}"] in (value, "null"), key


def test_every_setting_of_a_sweep_is_listed_too(listed):
    rows = {row["key"] for row in listed()}
    assert set(GROUPS) <= rows
    assert {"group_size", "prompts_per_step", "steps", "seed", "resources.cpus"} <= rows


def test_component_has_its_fields_with_range_and_meaning(listed):
    rows = listed("optimizer=adamw")
    fields = parameters(GROUPS["optimizer"].get("adamw"))
    assert [row["key"] for row in rows] == [f"optimizer.{field['name']}" for field in fields]
    [rate] = [row for row in rows if row["key"] == "optimizer.lr"]
    assert rate == {
        "key": "optimizer.lr",
        "of": "adamw",
        "default": 0.0003,
        "type": "a number",
        "range": "> 0",
        "meaning": "learning rate after the warm-up",
    }


def test_verifiers_have_keys_too(listed):
    rows = listed("task.verifier=code")
    fields = parameters(VERIFIERS.get("code"))
    assert [row["key"] for row in rows] == [f"task.verifier.{field['name']}" for field in fields]
    assert {row["of"] for row in listed("task.verifier")} >= {"code", "numeric", "regex"}


def test_group_has_the_keys_of_all_its_components(listed):
    assert {row["of"] for row in listed("optimizer")} == {"adamw", "sgd"}


def test_unknown_names_are_answered_with_the_nearest(refused):
    refused(["optimiser", "did you mean 'optimizer'?"], "keys", "optimiser")
    refused(["no optimizer is called 'adam'", "adamw"], "keys", "optimizer=adam")
