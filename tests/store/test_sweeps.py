"""Sweeps, their trials and their tuning in the store."""

from __future__ import annotations

from typing import Any

import pytest

from advsweep.errors import NotFoundError, StoreError
from advsweep.store import Owner, Status, Store
from advsweep.store.tuning_records import TUNE_KEY, TunedArm, TunedValue, TuningRecord, ValueState


def test_sweeps_share_runs_in_the_order_of_their_plans(store, new_run):
    a, b, c = (new_run(seed=i) for i in range(3))
    store.sweeps.add("first", {"runs": 2})
    store.sweeps.add("second", {"runs": 3})
    store.runs.add([b, a], "first")
    store.runs.add([c, a, b], "second")
    store.runs.add([a, c], "first")

    def seeds(sweep, **how):
        return [run.seed for run in store.runs.select(sweep=sweep, **how)]

    assert store.sweeps.names() == ["first", "second"]
    assert seeds("first", newest_first=False) == [1, 0, 2]
    assert seeds("second", newest_first=False) == [2, 0, 1]
    assert seeds("second") == [2, 0, 1]  # ids 3, 2, 1
    assert store.runs.select(ids=[1])[0].sweeps == ("first", "second")


def test_sweeps_count_their_runs_by_status(store, clock, new_run):
    store.sweeps.add("empty", {})
    store.sweeps.add("demo", {})
    ids = store.runs.add([new_run(seed=i) for i in range(5)], "demo")
    for run_id in ids[:3]:
        store.leases.claim(run_id, Owner.current())
    store.leases.finish(ids[0], Status.DONE)
    store.leases.finish(ids[1], Status.FAILED)
    assert [(s.name, s.runs) for s in store.sweeps.select()] == [
        ("empty", {}),
        (
            "demo",
            {Status.PENDING: 2, Status.RUNNING: 1, Status.DONE: 1, Status.FAILED: 1},
        ),
    ]
    clock.forward(61)
    assert store.sweeps.select()[1].runs[Status.LOST] == 1


def test_a_sweep_gets_another_name_with_all_that_it_has(store, new_run):
    store.sweeps.add("old-tuning", {})
    store.sweeps.add("old", {"steps": 3, TUNE_KEY: {"sweep": "old-tuning"}})
    [run_id] = store.runs.add([new_run(seed=0)], "old")
    store.sweeps.set_note("old", "a note")
    store.sweeps.set_tags("old", ["b", "a", "b"])
    store.sweeps.rename("old", "new")
    store.sweeps.rename("old-tuning", "new-tuning")
    found = store.sweeps.find("new")
    assert (found.note, found.tags) == ("a note", ("a", "b"))
    assert found.spec == {"steps": 3, TUNE_KEY: {"sweep": "new-tuning"}}
    assert [run.sweeps for run in store.runs.select()] == [("new",)]
    assert [sweep.name for sweep in store.sweeps.select()] == ["new-tuning", "new"]
    store.sweeps.set_note("new", "")
    store.sweeps.set_tags("new", [])
    assert store.sweeps.find("new").head == ()
    with pytest.raises(NotFoundError, match="no sweep 'old'"):
        store.sweeps.rename("old", "other")
    store.leases.claim(run_id, Owner.current())
    with pytest.raises(StoreError, match="has running runs"):
        store.sweeps.rename("new", "other")


@pytest.mark.parametrize("name", ["", " x", "a=b", "7", "last", "x.yaml", "-x", "~x", "a\nb"])
def test_a_sweep_gets_no_name_that_commands_read_as_something_else(store, name):
    store.sweeps.add("demo", {})
    store.sweeps.add("other", {})
    with pytest.raises(StoreError, match="expected a line"):
        store.sweeps.rename("demo", name)
    with pytest.raises(StoreError, match="there is a sweep 'other' already"):
        store.sweeps.rename("demo", "other")


def test_notes_and_tags_are_bounded_texts(store):
    store.sweeps.add("demo", {})
    for tag in ("two words", "", "-x", "a" * 65, "a,b"):
        with pytest.raises(StoreError, match="expected a word"):
            store.sweeps.set_tags("demo", ["fine", tag])
    with pytest.raises(StoreError, match="at most 4,000 characters, got 4,001"):
        store.sweeps.set_note("demo", "a" * 4001)
    assert store.sweeps.find("demo").head == ()
    store.sweeps.set_note("demo", "two\n  lines")
    store.sweeps.set_tags("demo", ["table-2", "v1.0"])
    assert store.sweeps.find("demo").head == ("note: two lines", "tags: table-2 v1.0")


RECORD = TuningRecord(
    key="optimizer.lr",
    metric="pass@1",
    lower=False,
    seeds=(1000, 1001),
    sweep="fair-tuning",
    arms=[
        TunedArm(
            name="grpo",
            grid=[
                TunedValue(value=1e-4, state=ValueState.DONE, seeds=2, scores=(0.1, 0.3)),
                TunedValue(value=2e-4, state=ValueState.DONE, seeds=2, scores=(0.5, 0.5)),
                TunedValue(value=4e-4, state=ValueState.FAILED, seeds=2),
            ],
            chosen=2e-4,
        ),
        TunedArm(
            name="fade",
            grid=[
                TunedValue(value=1e-4, state=ValueState.DONE, seeds=2, scores=(0.4, 0.4)),
                TunedValue(value=2e-4, state=ValueState.DONE, seeds=2, scores=(0.25, 0.35)),
            ],
            chosen=1e-4,
        ),
        TunedArm(name="rloo", grid=[TunedValue(value=1e-4, state=ValueState.OPEN, seeds=1)]),
        TunedArm(name="psr", grid=[TunedValue(value=1e-4, state=ValueState.PRUNED, seeds=2)]),
    ],
)


def test_it_is_read_as_it_was_written(store: Store) -> None:
    store.sweeps.add("fair", {"overrides": [], TUNE_KEY: RECORD.plain()})
    store.sweeps.add("plain", {"overrides": []})
    assert store.sweeps.tuning("fair") == RECORD
    assert store.sweeps.tuning("plain") is None
    assert store.sweeps.tuning("absent") is None


def test_it_says_what_was_chosen_and_where_an_edge_was() -> None:
    assert RECORD.text == (
        "optimizer.lr tuned for each arm by pass@1 on seeds 1000, 1001 (fair-tuning): "
        "grpo 0.0002, fade 0.0001 (edge), rloo open, psr none"
    )
    assert not RECORD.is_complete


def _changed(**changes: Any) -> Any:
    return {**RECORD.plain(), **changes}


def test_a_record_of_an_earlier_version_has_all_seeds_for_every_value() -> None:
    node = RECORD.plain()
    del node["halving"]
    for arm in node["arms"]:
        for value in arm["grid"]:
            del value["seeds"]
    read = TuningRecord.of_spec({TUNE_KEY: node})
    assert read is not None
    assert not read.halving
    assert {each.seeds for arm in read.arms for each in arm.grid} == {len(RECORD.seeds)}


@pytest.mark.parametrize(
    "node",
    [
        None,
        [],
        "tune",
        {},
        _changed(arms=3),
        _changed(arms=[{"name": "grpo"}]),
        *(
            _changed(arms=[{"name": "grpo", "chosen": None, "grid": [each]}])
            for each in (
                {"value": 1, "state": "odd", "scores": []},
                {"value": 1, "state": "open", "seeds": "many", "scores": []},
                {"value": 1, "state": "open", "seeds": 2, "scores": [0.5, 0.5, 0.5]},
                {"value": True, "state": "done", "scores": [1]},
                {"value": 1, "state": "done", "scores": ["1"]},
                {"value": float("nan"), "state": "open", "scores": []},
                {"value": 10**400, "state": "open", "scores": []},
            )
        ),
        _changed(seeds=["x"]),
        _changed(seeds=[float("inf")]),
    ],
)
def test_specs_that_advsweep_did_not_write_have_none(node: Any) -> None:
    assert TuningRecord.of_spec({TUNE_KEY: node}) is None
