"""Merging stores: the result holds everything of both once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import StoreError
from advsweep.store import (
    NewEvaluation,
    NewRun,
    Owner,
    RunRecord,
    Status,
    Store,
    open_store,
)
from advsweep.store.merge import MergeAction, merge
from tests.store.conftest import evaluation_of


@pytest.fixture
def other(tmp_path: Path, clock) -> Iterator[Store]:
    """The store that is merged into `store`."""
    with open_store(str(tmp_path / "other.db"), clock=clock) as opened:
        yield opened


def _make(
    store: Store, run: NewRun, end: Status | None, step: int, sweep: str | None = None
) -> RunRecord:
    """A run that came to a step, with a point for each, a checkpoint and an evaluation."""
    if sweep is not None:
        store.sweeps.add(sweep, {"of": store.name[-8:]})
    [run_id] = store.runs.add([run], sweep)
    _work(store, run_id, end, step)
    return store.runs.select(ids=[run_id])[0]


def _work(store: Store, run_id: int, end: Status | None, step: int) -> None:
    [run] = store.runs.select(ids=[run_id])
    store.leases.claim(run_id, Owner.current())
    store.leases.heartbeat(run_id, step=step)
    store.metrics.record(run_id, [("x", s, s / 8 + run.seed) for s in range(1, step + 1)])
    store.metrics.record(run_id, [("time/update", 1, float(run_id)), ("nan", 1, math.nan)])
    store.runs.set_environment(run_id, {"cores": 2})
    store.metrics.set_summaries(run_id, {"cost/seconds": 3.5})
    store.checkpoints.add(run_id, step, run.directory / "checkpoints" / f"step-{step:06d}")
    for identity, at in (("base", 0), (_subject(run, step), step)):
        store.evaluations.add(_evaluation(identity, run_id, at))
    if end is not None:
        store.leases.finish(run_id, end, error="boom" if end is Status.FAILED else None)


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _subject(run: RunRecord, step: int) -> str:
    return f"{run.identity[:40]}.{run.attempt}@{step}"


def _evaluation(
    identity: str, run_id: int | None, step: int, subject: str = "weights"
) -> NewEvaluation:
    return evaluation_of(_sha(identity), run_id, step, subject=subject)


def _contents(store: Store) -> dict[tuple[str, int], dict[str, Any]]:
    """All that a store holds of each run, ids and folders' places aside."""
    found = {}
    for run in store.runs.select():
        record = {k: v for k, v in vars(run).items() if k not in ("id", "directory", "sweeps")}
        found[run.identity, run.attempt] = {
            **record,
            "points": repr(store.metrics.points(run.id)),
            "summaries": store.metrics.summaries([run.id]),
            "environment": store.runs.environment(run.id),
            "evaluations": [
                (e.identity, e.step, e.c.tolist()) for e in store.evaluations.select([run.id])
            ],
            "checkpoints": [
                (c.step, c.path.relative_to(run.directory))
                for c in store.checkpoints.select(run.id)
            ],
        }
        found[run.identity, run.attempt]["summaries"] = [
            *store.metrics.summaries([run.id]).values()
        ]
    return found


def _plans(store: Store) -> dict[str, list[tuple[int, int]]]:
    """Seeds and attempts of each sweep, in the order of its plan."""
    return {
        s.name: [(r.seed, r.attempt) for r in store.runs.select(sweep=s.name, newest_first=False)]
        for s in store.sweeps.select()
    }


def test_evaluations_of_models_are_merged_without_a_run(store, other):
    for name in ("a", "b"):
        other.evaluations.add(_evaluation(name, None, 0, subject=f"model:{name}"))
    store.evaluations.add(_evaluation("b", None, 0, subject="model:b"))
    merge(store, other, dry_run=True)
    assert [e.subject for e in store.evaluations.of_models()] == ["model:b"]
    merge(store, other)
    assert [e.subject for e in store.evaluations.of_models()] == ["model:b", "model:a"]
    assert [e.c.tolist() for e in store.evaluations.of_models()] == [[2], [2]]


def test_an_empty_store_gets_everything(store, other, new_run):
    _make(other, new_run(seed=1), Status.DONE, 100, "demo")
    _make(other, new_run(seed=0), Status.INTERRUPTED, 40, "demo")
    _make(other, new_run(seed=2), Status.FAILED, 30)
    other.runs.add([new_run(seed=3)], "demo")
    merged = merge(store, other)
    assert [run.seed for run in merged.runs[MergeAction.ADDED]] == [1, 0, 2, 3]
    assert (merged.sweeps, merged.left_out) == (["demo"], {})
    assert _contents(store) == _contents(other)
    assert _plans(store) == _plans(other) == {"demo": [(1, 1), (0, 1), (3, 1)]}
    assert [(s.spec, s.created) for s in store.sweeps.select()] == [
        (s.spec, s.created) for s in other.sweeps.select()
    ]
    [done] = store.runs.select(status=Status.DONE)
    assert not done.directory.exists()  # until somebody copies it there


def test_merging_again_changes_nothing(store, other, new_run):
    _make(store, new_run(seed=0), Status.DONE, 100, "demo")
    _make(other, new_run(seed=0), Status.INTERRUPTED, 50, "demo")
    _make(other, new_run(seed=1), Status.DONE, 100, "demo")
    merge(store, other)
    before = _contents(store), _plans(store)
    again = merge(store, other)
    assert [len(again.runs[action]) for action in MergeAction] == [0, 0, 2, 0]
    assert again.sweeps == []
    assert (_contents(store), _plans(store)) == before


# Status and step of a run in the target and in the source; None is a run that is being trained.
CASES = [
    ((Status.DONE, 100), (Status.DONE, 100), MergeAction.KEPT),
    ((Status.DONE, 100), (Status.FAILED, 99), MergeAction.KEPT),
    ((Status.INTERRUPTED, 60), (Status.DONE, 100), MergeAction.REPLACED),
    ((Status.INTERRUPTED, 60), (Status.FAILED, 61), MergeAction.REPLACED),
    ((Status.INTERRUPTED, 60), (Status.INTERRUPTED, 60), MergeAction.KEPT),
    ((Status.FAILED, 60), (Status.INTERRUPTED, 20), MergeAction.KEPT),
    ((Status.DONE, 100), (None, 50), MergeAction.KEPT),
    ((Status.INTERRUPTED, 40), (None, 50), MergeAction.LEFT_OUT),
    ((None, 40), (Status.DONE, 100), MergeAction.LEFT_OUT),
]


def test_the_run_with_more_progress_wins(store, other, new_run):
    for seed, (ours, theirs, _) in enumerate(CASES):
        _make(store, new_run(seed=seed), *ours)
        _make(other, new_run(seed=seed), *theirs)
    ids = {run.seed: run.id for run in store.runs.select()}
    own, other_contents = _contents(store), _contents(other)
    merged = merge(store, other)
    actions = {run.seed: action for action, runs in merged.runs.items() for run in runs}
    assert actions == {seed: action for seed, (_, _, action) in enumerate(CASES)}
    assert {run.seed: run.id for run in store.runs.select()} == ids
    contents = _contents(store)
    for run in store.runs.select():
        record = contents[run.identity, run.attempt]
        replaced = actions[run.seed] is MergeAction.REPLACED
        expected = (other_contents if replaced else own)[run.identity, run.attempt]
        assert {e[0] for e in record.pop("evaluations")} >= {e[0] for e in expected["evaluations"]}
        assert record == {key: value for key, value in expected.items() if key != "evaluations"}


def test_sweeps_of_one_name_become_one(store, other, new_run):
    for seed in (2, 0):
        _make(store, new_run(seed=seed), Status.DONE, 5, "demo")
    for seed in (1, 0, 3):
        _make(other, new_run(seed=seed), Status.DONE, 5, "demo")
    spec = store.sweeps.select()[0].spec
    merge(store, other)
    assert _plans(store) == {"demo": [(2, 1), (0, 1), (1, 1), (3, 1)]}
    assert store.sweeps.select()[0].spec == spec


def test_a_sweep_has_the_latest_attempt_of_a_run(store, other, new_run):
    for either in (store, other):
        _make(either, new_run(), Status.DONE, 5, "demo")
    again = other.runs.new_attempt(1)
    _work(other, again, Status.DONE, 5)
    merge(store, other)
    assert _plans(store) == {"demo": [(0, 2)]}
    assert sorted(run.attempt for run in store.runs.select()) == [1, 2]
    merge(other, store)
    assert _plans(other) == {"demo": [(0, 2)]}


def test_a_dry_run_reports_the_same_and_changes_nothing(store, other, new_run):
    _make(store, new_run(seed=0), Status.INTERRUPTED, 50, "demo")
    for seed in (0, 1):
        _make(other, new_run(seed=seed), Status.DONE, 100, "other")
    before = _contents(store), _plans(store)
    planned = merge(store, other, dry_run=True)
    assert (_contents(store), _plans(store)) == before
    done = merge(store, other)
    assert planned.runs == done.runs
    assert planned.sweeps == done.sweeps == ["other"]


def test_a_store_is_not_merged_into_itself(store):
    with open_store(store.url) as same, pytest.raises(StoreError, match="another store"):
        merge(store, same)
