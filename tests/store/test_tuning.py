"""The tuning of a sweep in its spec: written, read again, and foreign specs."""

from __future__ import annotations

from typing import Any

import pytest

from advsweep.store import Store
from advsweep.store.records import TUNE_KEY, TunedArm, TunedValue, TuningRecord, ValueState

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
                TunedValue(value=1e-4, state=ValueState.DONE, scores=(0.1, 0.3)),
                TunedValue(value=2e-4, state=ValueState.DONE, scores=(0.5, 0.5)),
                TunedValue(value=4e-4, state=ValueState.FAILED),
            ],
            chosen=2e-4,
        ),
        TunedArm(
            name="fade",
            grid=[
                TunedValue(value=1e-4, state=ValueState.DONE, scores=(0.4, 0.4)),
                TunedValue(value=2e-4, state=ValueState.DONE, scores=(0.25, 0.35)),
            ],
            chosen=1e-4,
        ),
        TunedArm(name="rloo", grid=[TunedValue(value=1e-4, state=ValueState.OPEN)]),
        TunedArm(name="psr", grid=[TunedValue(value=1e-4, state=ValueState.PRUNED)]),
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
    assert not RECORD.is_over


def _changed(**changes: Any) -> Any:
    return {**RECORD.plain(), **changes}


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
