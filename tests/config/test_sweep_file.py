"""Spaces: unions of grids with zipped values."""

import pytest

from advsweep.config import space
from advsweep.config.overrides import parse_overrides
from advsweep.config.space import Delete
from advsweep.config.sweep_file import read_space
from advsweep.errors import ConfigError


def points(node, *overrides):
    return list(space.points([read_space(node, parse_overrides(overrides))]))


def test_overrides_alone_are_a_grid_with_the_last_fastest():
    assert points(None, "estimator=grpo,fade", "steps=20", "seed=0,1") == [
        {"estimator": "grpo", "steps": 20, "seed": 0},
        {"estimator": "grpo", "steps": 20, "seed": 1},
        {"estimator": "fade", "steps": 20, "seed": 0},
        {"estimator": "fade", "steps": 20, "seed": 1},
    ]


def test_blocks_are_a_union_times_common_times_seeds():
    node = {
        "seeds": 2,
        "common": {"group_size": [4, 8]},
        "blocks": [{"estimator": "grpo"}, {"estimator": "asym_grpo", "estimator.delta": [0.5, 2]}],
    }
    found = points(node)
    assert len(found) == 2 * 2 * (1 + 2)
    assert found[:3] == [
        {"estimator": "grpo", "group_size": 4, "seed": 0},
        {"estimator": "grpo", "group_size": 4, "seed": 1},
        {"estimator": "grpo", "group_size": 8, "seed": 0},
    ]
    assert {"estimator": "asym_grpo", "estimator.delta": 2, "group_size": 8, "seed": 1} in found


def test_a_block_beats_what_is_common():
    node = {"common": {"a": [1, 2]}, "blocks": [{"a": 3}, {"b": 4}]}
    assert points(node) == [{"a": 3}, {"b": 4, "a": 1}, {"b": 4, "a": 2}]
    assert points({"seeds": 3, "common": {"seed": 7}}) == [{"seed": 7}]


def test_overrides_beat_the_node_and_multiply_in():
    node = {"seeds": 3, "common": {"a": [1, 2]}, "blocks": [{"zip": {"b": [1, 2], "c": [3, 4]}}]}
    assert points(node, "seed=9", "a=5", "b=6", "d=7,8") == [
        {"c": 3, "seed": 9, "a": 5, "b": 6, "d": 7},
        {"c": 3, "seed": 9, "a": 5, "b": 6, "d": 8},
        {"c": 4, "seed": 9, "a": 5, "b": 6, "d": 7},
        {"c": 4, "seed": 9, "a": 5, "b": 6, "d": 8},
    ]


def test_the_last_override_of_a_key_counts_and_a_deletion_is_one():
    assert points(None, "a=1,2", "a=3") == [{"a": 3}]
    assert points(None, "a=1,2", "~a") == [{"a": Delete()}]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ([1], r"^sweep: expected a mapping"),
        ({"seed": 3}, r"^sweep.seed: no such key; did you mean 'seeds'\?"),
        ({"blocks": []}, r"^sweep.blocks: expected a list of blocks"),
        ({"blocks": {"a": 1}}, r"^sweep.blocks: expected a list of blocks"),
        ({"blocks": ["grpo"]}, r"^sweep.blocks\[0\]: expected a mapping"),
        ({"blocks": [{"a": []}]}, r"^sweep.blocks\[0\].a: expected a value"),
        ({"blocks": [{"zip": [1]}]}, r"^sweep.blocks\[0\].zip: expected keys with lists"),
        ({"blocks": [{"a": 1, "zip": {"a": [1]}}]}, r"each key once, got 'a' in zip"),
        ({"blocks": [{"zip": {"a": [1, 2], "b": [1]}}]}, r"equal length, got a: 2, b: 1"),
        ({"seeds": 0}, r"^sweep.seeds: expected how many"),
        ({"seeds": True}, r"^sweep.seeds: expected how many"),
        ({"seeds": []}, r"^sweep.seeds: expected how many"),
        ({"common": 3}, r"^sweep.common: expected a mapping"),
        ({"name": ""}, r"^sweep.name: expected a text"),
        ({"tune": [1e-4, 2e-4]}, r"^sweep.tune: expected a mapping such as"),
        ({"tune": {"key": "optimizer.lr"}}, r"^sweep.tune.values: expected a value, got none"),
        ({"controls": "aa"}, r"^sweep.controls: expected a list such as \[aa, placebo\]"),
        ({"controls": ["none"]}, r"^sweep.controls\[0\]: expected the name of a control"),
        ({"controls": [{"rate": 1}]}, r"^sweep.controls\[0\]: expected the name of a control"),
        ({"baseline": ["grpo"]}, r"^sweep.baseline: expected an estimator or a method"),
    ],
)
def test_what_does_not_fit_is_refused(node, message):
    with pytest.raises(ConfigError, match=message):
        read_space(node, [])


def test_controls_repeat_the_runs_of_the_first_estimator():
    node = {
        "seeds": 2,
        "controls": ["aa", {"name": "noise", "false_positives": 0.2}],
        "blocks": [{"estimator": ["grpo", "fade"], "group_size": [4, 8]}],
    }
    repeated = [
        {"estimator": "grpo", "group_size": size, "seed": seed}
        for size in (4, 8)
        for seed in (0, 1)
    ]
    noise = {"control": "noise", "control.false_positives": 0.2}
    found = points(node)
    assert found[8:] == [
        {**point, **control} for control in ({"control": "aa"}, noise) for point in repeated
    ]
    assert not any("control" in point for point in found[:8])


@pytest.mark.parametrize(
    ("node", "baseline"),
    [
        ({"baseline": "fade", "blocks": [{"estimator": ["grpo", "fade"]}]}, {"estimator": "fade"}),
        (
            {"baseline": "dapo", "blocks": [{"estimator": "rloo"}, {"method": "dapo"}]},
            {"method": "dapo"},
        ),
        # Of one estimator, the first arm.
        ({"blocks": [{"group_size": [4, 8]}]}, {"group_size": 4}),
        (
            {"blocks": [{"estimator": "asym_grpo", "estimator.delta": [0.3, 0.5]}]},
            {"estimator": "asym_grpo", "estimator.delta": 0.3},
        ),
        # A name in a field of another estimator is no baseline.
        (
            {
                "baseline": "rloo",
                "blocks": [
                    {"estimator": "rloo"},
                    {"estimator": "by_turn", "estimator.base": "rloo"},
                ],
            },
            {"estimator": "rloo"},
        ),
        # Arms that are controls already are no baseline.
        ({"blocks": [{"control": "noise"}, {"estimator": "rloo"}]}, {"estimator": "rloo"}),
    ],
)
def test_controls_have_a_baseline(node, baseline):
    assert points({**node, "controls": ["aa"]})[-1] == {**baseline, "control": "aa"}
    assert len(points({**node, "controls": ["aa"]})) == len(points(node)) + 1


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"baseline": "psr", "blocks": [{"estimator": ["grpo", "rloo"]}]},
            r"^sweep.baseline: expected an estimator or a method of the sweep, got 'psr'; ",
        ),
        ({"blocks": [{"control": "aa"}]}, r"^sweep.controls: expected runs without a control"),
    ],
)
def test_a_missing_baseline_is_refused(node, message):
    with pytest.raises(ConfigError, match=message):
        points({**node, "controls": ["aa"]})


def test_functions_of_the_grammar_are_what_they_are_on_the_command_line():
    node = {"common": {"a": "choice(4,x)"}, "blocks": [{"b": "range(1,3)", "c": ["range(9)"]}]}
    assert points(node) == [{"b": b, "c": "range(9)", "a": a} for b in (1, 2) for a in (4, "x")]


def test_an_interval_is_refused_unless_something_else_is_given():
    node = {"common": {"a": "interval(0,1)"}, "blocks": [{"b": 2}]}
    with pytest.raises(ConfigError, match=r"^sweep.common.a=interval\(0,1\): interval\(\) cannot"):
        points(node)
    assert points(node, "a=3") == [{"b": 2, "a": 3}]
    assert points({**node, "blocks": [{"a": 4}]}) == [{"a": 4}]


def test_a_function_that_yaml_took_apart_is_refused():
    # What YAML makes of {a: choice(4,8)}.
    with pytest.raises(ConfigError, match=r"closing bracket.*quote the call: 'choice\(4,"):
        points({"common": {"a": "choice(4", "8)": None}})


def block(**entries):
    return {"blocks": [entries]}


def test_when_zips_and_multiplies_like_a_block():
    entry = {"if": {"a": 1}, "b": [0, 1], "zip": {"c": [2, 3], "d": [4, 5]}}
    assert points(block(a=[1, 9], when=[entry])) == [
        {"a": 1, "b": 0, "c": 2, "d": 4},
        {"a": 1, "b": 0, "c": 3, "d": 5},
        {"a": 1, "b": 1, "c": 2, "d": 4},
        {"a": 1, "b": 1, "c": 3, "d": 5},
        {"a": 9},
    ]


def test_a_condition_may_list_values_and_name_several_keys():
    node = block(a=[1, 2, 3], b=[1, 2], exclude=[{"a": [1, 3], "b": 2}])
    assert [(p["a"], p["b"]) for p in points(node)] == [(1, 1), (2, 1), (2, 2), (3, 1)]


def test_conditions_that_all_share_hold_in_every_block():
    common = {
        "g": [4, 8],
        "when": [{"if": {"g": 8}, "lr": 0.1}],
        "exclude": [{"e": "x", "g": 4}],
    }
    assert points({"common": common, "blocks": [{"e": "x"}, {"e": "y"}]}) == [
        {"e": "x", "g": 8, "lr": 0.1},
        {"e": "y", "g": 4},
        {"e": "y", "g": 8, "lr": 0.1},
    ]


def test_a_block_beats_what_all_share_under_a_condition():
    common = {"g": [4, 8], "when": [{"if": {"g": 8}, "lr": 0.1}]}
    assert points({"common": common, "blocks": [{"lr": 0.5}, {"e": 1}]}) == [
        {"lr": 0.5, "g": 4},
        {"lr": 0.5, "g": 8},
        {"e": 1, "g": 4},
        {"e": 1, "g": 8, "lr": 0.1},
    ]


def test_overrides_beat_conditions_and_may_leave_them_without_a_run():
    node = block(a=[1, 2], when=[{"if": {"a": 2}, "b": [3, 4]}], exclude=[{"a": 1}])
    assert points(node, "b=9") == [{"a": 2, "b": 9}]
    assert points(node, "a=2") == [{"a": 2, "b": 3}, {"a": 2, "b": 4}]
    assert points(node, "a=1") == []
    assert points(node, "a=5") == [{"a": 5}]


def test_true_is_not_one():
    assert points(block(a=[1, True], exclude=[{"a": True}])) == [{"a": 1}]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (block(a=1, exclude={"a": 1}), r"^sweep.blocks\[0\].exclude: expected a list of mappings"),
        (block(a=1, exclude=[{}]), r"^sweep.blocks\[0\].exclude\[0\]: expected a mapping of keys"),
        (block(a=1, exclude=["a"]), r"^sweep.blocks\[0\].exclude\[0\]: expected a mapping of keys"),
        (block(a=1, exclude=[{"a": []}]), r"exclude\[0\].a: expected a value or a list of values"),
        (block(a=1, when=[{"b": 2}]), r"^sweep.blocks\[0\].when\[0\]: expected a mapping of `if`"),
        (block(a=1, when=[{"if": {"a": 1}}]), r"when\[0\]: expected a mapping of `if`"),
        (block(a=1, when=[{"if": 1, "b": 2}]), r"when\[0\].if: expected a mapping of keys"),
        (block(a=1, when=[{"if": {"a": 1}, "b": []}]), r"when\[0\].b: expected a value or a list"),
        (
            block(group_size=1, exclude=[{"groupsize": 1}]),
            r"exclude\[0\]: nothing in the sweep sets 'groupsize'; did you mean 'group_size'\?",
        ),
        (
            block(a=[1, 2], exclude=[{"a": [2, 3]}]),
            r"exclude\[0\].a: expected a value that some run has, got 3; remove",
        ),
        ({"blocks": [{"a": 1, "exclude": [{"b": 1}]}, {"b": 1}]}, r"nothing in the sweep sets 'b'"),
        ({"common": {"exclude": [{"a": 3}]}, "blocks": [{"a": 1}]}, r"^sweep.common.exclude\[0\]"),
    ],
)
def test_what_does_not_fit_or_never_holds_is_refused(node, message):
    with pytest.raises(ConfigError, match=message):
        read_space(node, [])
