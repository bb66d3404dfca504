"""JSON documents of a store: what is parsed is what json has, and configs share their nodes."""

from __future__ import annotations

import json

import pytest

from advsweep.store import open_store
from advsweep.store.tables import parse_document


@pytest.mark.parametrize(
    "value",
    [
        {"task": {"name": "tiny"}, "steps": 3, "seed": 12345678901234567890},
        {"steps": 3, "seed": -1},
        {"seed": 7},
        {"a": ', "seed": 3}'},
        {"a": {"x": 1, "seed": 3}},
        [{"x": 1, "seed": 3}],
        {"seed": 1, "x": 2},
        {"x": 1, "seed": 1.5},
        ["seed", 1],
        None,
        "text",
    ],
)
def test_documents_are_what_json_has(value):
    assert parse_document(json.dumps(value)) == value


def test_a_seed_that_is_given_twice_is_the_last():
    assert parse_document('{"seed": 1, "x": 2, "seed": 3}') == {"seed": 3, "x": 2}


@pytest.mark.parametrize("text", ["", "{", '{"x" 1, "seed": 3}', '{"x": 1, "seed": 3}}'])
def test_what_is_no_document_is_refused(text):
    with pytest.raises(json.JSONDecodeError):
        parse_document(text)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_configs_that_differ_by_their_seed_share_nodes(store_url, new_run):
    with open_store(store_url) as store:
        runs = [new_run(seed=seed) for seed in range(3)]
        for run in runs:
            run.config["task"] = {"name": "tiny"}
            run.config["seed"] = run.config.pop("seed")
        store.runs.add(runs)
        first, second, third = (record.config for record in store.runs.select(newest_first=False))
    assert [config["seed"] for config in (first, second, third)] == [0, 1, 2]
    assert first["task"] is second["task"] is third["task"]
    assert first == dict(runs[0].config)
