"""Analyses of weights and hidden states: made at a run's end or when asked for, then read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from advsweep.backends.base import Run
from advsweep.backends.build import build_run
from advsweep.backends.tiny.backend import TinyBackend
from advsweep.diagnostics.hidden_states import Direction
from advsweep.diagnostics.weight_changes import Values
from advsweep.diagnostics.weights import alignment
from advsweep.errors import CheckpointError, ConfigError
from advsweep.estimators import build_estimator
from advsweep.evaluation.analyses import (
    align_steps,
    ensure_analysis,
    ensure_hidden_states,
    steps_to_analyse,
)
from advsweep.store import RunRecord, Store, open_store
from advsweep.sweep.exit_codes import DONE
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.scheduler.scheduled_runs import new_run
from advsweep.sweep.worker.main import work

TINY = [
    "backend=tiny",
    "executor=debug",
    "steps=4",
    "prompts_per_step=8",
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "model.kv_heads=1",
    "model.mlp_width=64",
    "model.pretraining_steps=100",
    "model.pretraining_batch=64",
    "model.pretraining_lr=0.01",
    "model.pretraining_warmup=10",
    "model.random_share=0",
    "model.left_to_right_share=0",
    "optimizer.lr=0.003",
    "task.levels=[0,1]",
    "task.held_out_per_level=2",
    "evaluation.n=2",
    "evaluation.k=[1]",
    "backend.checkpoint_every=2",
]


def trained(store: Store, *overrides: str) -> tuple[RunRecord, Run]:
    [planned] = make_plan([*TINY, *overrides]).runs
    [record] = store.runs.select(ids=store.runs.add([new_run(planned)]))
    assert work(store, record, (), None) == DONE
    [record] = store.runs.select(ids=[record.id])
    return record, build_run(record.config)


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, cache_directory: Path
) -> Iterator[tuple[Store, RunRecord, Run]]:
    """A store with a finished run of the tiny backend."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ADVSWEEP_CACHE", str(cache_directory))
        folder = tmp_path_factory.mktemp("analysed")
        with open_store(str(folder / "advsweep.db")) as store:
            yield store, *trained(store)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps whose weights are read from now on."""
    steps: list[int] = []
    weights = TinyBackend.weights

    def recorded(self: TinyBackend, run: Run, directory: Path, step: int) -> object:
        steps.append(step)
        return weights(self, run, directory, step)

    monkeypatch.setattr(TinyBackend, "weights", recorded)
    return steps


def test_the_end_of_a_tiny_run_is_compared_with_its_base(made, reads):
    store, record, run = made
    [analysis] = store.analyses.select([record.id], "weights")
    assert analysis.step == 4
    kept = ensure_analysis(store, record, run, 4)
    assert reads == []  # it was there
    # As the weights themselves have it.
    [base, last] = (run.backend.weights(run, record.directory, step) for step in (0, 4))
    for matrix in kept.change.matrices:
        difference = last.rows(matrix.name, 0, matrix.rows) - base.rows(matrix.name, 0, matrix.rows)
        u, s, _ = torch.linalg.svd(difference.double())
        assert matrix.norm == pytest.approx(s.norm().item())
        assert matrix.s1 == pytest.approx(s[0].item())
        assert alignment(kept.change.left[matrix.name], u[:, 0]) == pytest.approx(1, abs=1e-5)
    assert kept.change.tied


def test_an_analysis_is_made_once_for_each_step_and_setting(made, reads):
    store, record, run = made
    asked = [{"step": 2}, {"step": 2, "delta": 0.3}, {"step": 2, "values": Values.LEADING}]
    first = [ensure_analysis(store, record, run, **each) for each in asked]
    assert reads == [0, 2] * 3
    again = [ensure_analysis(store, record, run, **each) for each in asked]
    assert len(reads) == 6
    for a, b in zip(first, again, strict=True):
        assert a.change.matrices == b.change.matrices
        assert a.change.parts == b.change.parts
        assert align_steps(a, b).head == pytest.approx(1)
    assert first[0].change.matrices[0].srank > first[1].change.matrices[0].srank


def test_steps_are_those_with_a_checkpoint_or_an_analysis(made):
    store, record, run = made
    assert steps_to_analyse(store, record) == [2, 4]
    ensure_analysis(store, record, run, 2)
    [first, _] = store.checkpoints.select(record.id)
    store.checkpoints.remove(record.id, first.path)
    try:
        assert steps_to_analyse(store, record) == [2, 4]
    finally:
        store.checkpoints.add(record.id, 2, first.path)


def test_a_step_without_a_checkpoint_is_refused(made):
    store, record, run = made
    with pytest.raises(CheckpointError, match="no checkpoint of step 3"):
        ensure_analysis(store, record, run, 3)


def test_a_run_without_any_checkpoint_is_refused(made):
    store, _, _ = made
    [planned] = make_plan([*TINY, "seed=7"]).runs
    [record] = store.runs.select(ids=store.runs.add([new_run(planned)]))
    with pytest.raises(ConfigError, match="expected a checkpoint of run"):
        steps_to_analyse(store, record)


def test_the_analysis_changes_neither_the_training_nor_its_identity(made):
    store, record, _ = made
    [with_it] = make_plan(TINY).runs
    [without] = make_plan([*TINY, "backend.weight_analysis=false"]).runs
    assert with_it.run.identity == without.run.identity == record.identity
    with open_store(str(store.runs_directory.parent / "without.db")) as other:
        twin, _ = trained(other, "backend.weight_analysis=false")
        assert other.analyses.select([twin.id], "weights") == []
        ours, theirs = (
            {
                (name, at): v
                for name, at, v in s.metrics.points(r.id)
                if not name.startswith(("time/", "memory/"))
            }
            for s, r in ((store, record), (other, twin))
        )
        assert ours == theirs


def test_a_run_does_not_fail_of_an_analysis(made, monkeypatch, caplog):
    store, _, _ = made

    def unreadable(*_: object) -> None:
        raise CheckpointError("damaged")

    monkeypatch.setattr(TinyBackend, "weights", unreadable)
    record, _ = trained(store, "seed=8")
    assert store.analyses.select([record.id], "weights") == []
    assert "the weights were not compared with the base model's: damaged" in caplog.text


def test_a_backend_without_weights_says_so(made):
    store, _, _ = made
    [planned] = make_plan(
        ["backend=fake", "executor=debug", "steps=2", "evaluation.n=8", "evaluation.k=[1]"]
    ).runs
    [record] = store.runs.select(ids=store.runs.add([new_run(planned)]))
    with pytest.raises(ConfigError, match="'fake' has no weights"):
        ensure_analysis(store, record, build_run(record.config), 2)


# Hidden states


def test_hidden_states_are_analysed_once_for_each_step_and_setting(made, monkeypatch):
    store, record, run = made
    sampled = []
    real = TinyBackend.sampled_tokens

    def recorded(self: TinyBackend, *arguments: object, **options: object) -> object:
        sampled.append(arguments[2])
        return real(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(TinyBackend, "sampled_tokens", recorded)
    asked = [
        (0, Direction.HIDDEN),
        (4, Direction.HIDDEN),
        (4, Direction.WEIGHTS),
        (4, Direction.GRADIENT),
    ]
    first = [
        ensure_hidden_states(store, record, run, step, direction=direction, prompts=6)
        for step, direction in asked
    ]
    again = [
        ensure_hidden_states(store, record, run, step, direction=direction, prompts=6)
        for step, direction in asked
    ]
    assert sampled == [0, 4, 4, 4]
    assert repr(first) == repr(again)
    assert len({each.along for each in first}) == 4
    for each in first:
        assert each.correct.rollouts + each.failed.rollouts == 6 * run.group_size
    # The direction of the states themselves leaves the least of them.
    assert first[1].along == max(each.along for each in first[1:])


def test_directions_that_a_run_does_not_have_are_refused(made):
    store, record, run = made
    with pytest.raises(ConfigError, match="expected a step above 0"):
        ensure_hidden_states(store, record, run, 0, direction=Direction.WEIGHTS, prompts=2)
    other = replace(run, estimator=build_estimator("aapo"))
    with pytest.raises(ConfigError, match="'aapo' weighs rollouts by those of a reference"):
        ensure_hidden_states(store, record, other, 4, direction=Direction.GRADIENT, prompts=2)
    other = replace(run, estimator=build_estimator("entropy_shaped"))
    with pytest.raises(ConfigError, match="'entropy_shaped' gives every token an advantage"):
        ensure_hidden_states(store, record, other, 4, direction=Direction.GRADIENT, prompts=2)
