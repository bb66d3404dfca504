"""JSON columns: replicates share what they decode, and every text decodes as json does it."""

import json

import pytest

from advsweep.store.json_columns import decode_json

CONFIG = {"task": {"name": "countdown", "seed": 4}, "steps": 3, "seed": 12}


def test_replicates_share_the_nodes_below_the_top():
    first, second = (decode_json(json.dumps({**CONFIG, "seed": seed})) for seed in (0, 1))
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["task"] is second["task"]
    assert {**first, "seed": 1} == second
    first["steps"] = 9  # the mappings themselves are not shared
    assert second["steps"] == 3


@pytest.mark.parametrize(
    "value",
    [
        CONFIG,
        {"seed": 3},
        {"a": {"b": 1, "seed": 3}},
        {"a": {"b": 1, "seed": 3}, "c": 2},
        {"a": 1, "seed": -3},
        {"a": 1, "seed": 3.5},
        {"a": 1, "seed": None},
        {"a": 1, "seed": 2**63 - 1},
        {"a": 1, "seed": 10**30},
        {"a": ', "seed": 3}'},
        {"a": '\\", "seed": 3}'},
        {'a, "seed': 1},
        [{"a": 1, "seed": 3}],
        None,
        7,
        "",
        float("inf"),
    ],
    ids=repr,
)
def test_every_value_is_read_as_it_was_written(value):
    assert decode_json(json.dumps(value)) == value


@pytest.mark.parametrize("text", ['{"a": 1, "seed": 007}', '{"a": , "seed": 7}', ', "seed": 7}'])
def test_a_text_that_is_no_json_is_refused(text):
    with pytest.raises(json.JSONDecodeError):
        decode_json(text)
