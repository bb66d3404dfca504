"""Conditions of a space: what `when` gives and `exclude` takes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.config import space
from advsweep.config.overrides import parse_overrides
from advsweep.config.sweep_file import read_space
from advsweep.errors import ConfigError


def points(node, *overrides):
    return [p.assignment for p in space.points([read_space(node, parse_overrides(overrides))])]


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


values = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)


@given(a=values, b=values, seeds=st.integers(1, 2), data=st.data())
def test_exclusion_is_a_filter_of_the_product(a, b, seeds, data):
    left_out = {"a": data.draw(st.sampled_from(a)), "b": data.draw(st.sampled_from(b))}
    node = {"seeds": seeds, **block(a=a, b=b, exclude=[left_out])}
    assert [(p["a"], p["b"], p["seed"]) for p in points(node)] == [
        (x, y, seed)
        for x, y, seed in itertools.product(a, b, range(seeds))
        if (x, y) != (left_out["a"], left_out["b"])
    ]


@given(a=values, b=values, c=values, data=st.data())
def test_a_condition_is_as_good_as_a_block_of_its_own(a, b, c, data):
    held = data.draw(st.sampled_from(a))
    found = points(block(a=a, b=b, when=[{"if": {"a": held}, "c": c}]))
    others = [value for value in a if value != held]
    union = [{"a": held, "b": b, "c": c}, *([{"a": others, "b": b}] if others else [])]
    assert sorted(map(_key, found)) == sorted(map(_key, points({"blocks": union})))


def _key(point):
    return sorted(point.items())
