"""The tiny backend as a whole; what every backend must do is in the contract suite."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from advsweep.backends.models import TinyModel
from advsweep.backends.tiny.pretraining import base_weights
from advsweep.backends.tiny.trainer import WeightHistory
from advsweep.components import Component
from advsweep.errors import ConfigError
from advsweep.tasks.base import SymbolTask
from tests.backends.tiny.conftest import Witness


@dataclass(kw_only=True)
class OtherModel(Component):
    name: ClassVar[str] = "other"


# Runs that do not fit


def test_refusals_name_the_key(small_run):
    run = small_run("tiny")
    with pytest.raises(ConfigError, match="model: backend 'tiny' trains the model 'tiny', got"):
        run.backend.check(replace(run, model=OtherModel()))
    with pytest.raises(ConfigError, match="task: backend 'tiny' needs a task over a small"):
        run.backend.check(replace(run, task=OtherModel()))
    message = "backend.minibatches: expected at most prompts_per_step = 6, got 7"
    with pytest.raises(ConfigError, match=message):
        small_run("tiny", prompts_per_step=6, backend={"minibatches": 7})


# Training


def test_each_seed_has_a_base_of_its_own(small_run, train, tmp_path, monkeypatch):
    """Runs of one seed share it, whatever else differs, and it is pretrained once."""
    monkeypatch.setenv("ADVSWEEP_CACHE", str(tmp_path / "cache"))
    own = {"pretraining_seed": "seed", "pretraining_steps": 3}
    runs = [
        small_run("tiny", model=own, seed=seed, estimator={"name": estimator})
        for seed in (0, 1)
        for estimator in ("grpo", "rloo")
    ]
    keys = [run.backend.base_key(run) for run in runs]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    # Seeds replicate a configuration: only their identities differ.
    assert runs[0].config_hash == runs[2].config_hash
    assert runs[0].identity != runs[2].identity
    assert runs[0].plain()["model"]["pretraining_seed"] == "seed"
    fixed = small_run("tiny", model=own | {"pretraining_seed": 1}, seed=0)
    assert fixed.backend.base_key(fixed) == keys[2]
    reporters = [train(run, tmp_path / str(i)) for i, run in enumerate(runs)]
    answers = [reporter.evaluations[0].texts for reporter in reporters]
    assert answers[0] == answers[1] != answers[2] == answers[3]
    assert len(list((tmp_path / "cache" / "base-models").glob("*/checkpoints"))) == 2
    # Whatever reads the base takes that of the run's seed.
    for run in (runs[0], runs[2]):
        assert isinstance(run.model, TinyModel)
        assert isinstance(run.task, SymbolTask)
        base = base_weights(run.model.for_seed(run.seed), run.task)
        run.backend.export(run, tmp_path, 0, tmp_path / f"hf-{run.seed}")
        held = load_file(tmp_path / f"hf-{run.seed}" / "model.safetensors")
        assert all(torch.equal(held[name], base[name]) for name in base)
    weights = [(tmp_path / f"hf-{s}" / "model.safetensors").read_bytes() for s in (0, 1)]
    assert weights[0] != weights[1]


def test_a_model_answers_on_its_own_map_alone(small_run, tmp_path):
    model = {"pretraining_steps": 1}
    runs = [small_run("tiny", model=model, task="routes", seed=seed) for seed in (0, 1)]
    tied = [
        small_run("tiny", model=model, task={"name": "routes", "seed": "seed"}, seed=seed)
        for seed in (0, 1)
    ]
    # The map of seed 0 is that of all runs whose seeds share one.
    assert runs[1].backend.sampler(runs[1], tmp_path, 0, tied[0].task)
    with pytest.raises(ConfigError, match="the map of seed 1, which"):
        tied[1].backend.sampler(tied[1], tmp_path, 0, runs[1].task)


@pytest.mark.slow
def test_a_stop_while_the_base_is_pretrained(small_run, train, tmp_path):
    """The run ends without a step, and a later one pretrains again."""
    run = small_run("tiny", model={"pretraining_seed": 77})
    stopped = train(run, tmp_path, stop_after=0)
    assert not stopped.points
    assert not stopped.evaluated
    assert len(train(run, tmp_path).points) == run.steps


def test_rollouts_that_cannot_be_scored_are_left_out(small_run, train, tmp_path, monkeypatch):
    run = small_run("tiny")
    score = type(run.task).score

    def doubtful(task, problems, completions):
        scores = score(task, problems, completions)
        scores[::3] = np.nan
        return scores

    monkeypatch.setattr(type(run.task), "score", doubtful)
    points = train(run, tmp_path).points
    rollouts = run.prompts_per_step * run.group_size
    scored = rollouts - len(range(0, rollouts, 3))
    assert points[1]["cost/utilisation"] == pytest.approx(scored / rollouts)
    assert all(np.isfinite(list(values.values())).all() for values in points.values())


# Failures, of which every step of a small run has some, move the weights.
ALWAYS_MOVES = {"estimator": {"name": "nsr"}}


def test_the_weights_of_some_steps_ago_sample():
    history, weights = WeightHistory(2), torch.zeros(3)
    found = []
    for step in range(1, 6):
        found.append(history.sampling(weights)[1].item())
        weights.fill_(step)
        again = WeightHistory(2)
        again.restore(history.state())
        assert again.state().keys() == history.state().keys()
        history = again
    assert found == [0, 0, 0, 1, 2]


def test_a_run_without_a_lag_is_that_of_earlier_versions(small_run):
    run = small_run("tiny")
    assert small_run("tiny", backend={"stale_steps": 0}).identity == run.identity
    assert small_run("tiny", backend={"stale_steps": 1}).identity != run.identity


@pytest.mark.parametrize("correction", ["decoupled_token_is", "bypass_ppo_clip"])
@pytest.mark.parametrize("lag", [0, 1])
def test_a_correction_gets_the_policies_of_sampler_and_step(
    small_run, train, tmp_path, correction, lag
):
    witness = Witness(kl_coef=1e-9, correction=correction)
    backend = {"stale_steps": lag, "minibatches": 2}
    run = small_run("tiny", **ALWAYS_MOVES, backend=backend, steps=2)
    points = train(replace(run, objective=witness), tmp_path).points
    is_apart = lag == 1 and correction == "decoupled_token_is"
    # Two minibatches a step; in step 2 the weights that sampled are those before step 1.
    for index, own in enumerate(witness.seen):
        mask = own.completion_mask
        since_step, since_sampled = (
            (own.log_probs - earlier)[mask].abs().max().item()
            for earlier in (own.old_log_probs, own.sampler_log_probs)
        )
        assert (since_sampled > 1e-3) is (index % 2 == 1 or (lag == 1 and index > 1))
        if index > 1:
            assert torch.equal(own.old_log_probs, own.sampler_log_probs) is not is_apart
            assert (since_step > 1e-3) is (index % 2 == 1 or (lag == 1 and not is_apart))
    # The metrics of a decoupled correction do not follow the policy within a step.
    assert (points[1]["sampler/kl"] < 1e-9) is witness.recomputes_old
    assert (points[2]["sampler/kl"] < 1e-9) is (lag == 0 and witness.recomputes_old)


def test_the_mismatch_with_older_weights_is_measured(small_run, train, tmp_path):
    run = small_run("tiny", **ALWAYS_MOVES, backend={"stale_steps": 1}, steps=2)
    points = train(run, tmp_path).points
    assert points[2]["sampler/kl"] > points[1]["sampler/kl"] > 0
    assert points[2]["sampler/ratio_max"] > 1
    assert "sampler/masked" not in points[2]
    assert "sampler/kl" not in train(small_run("tiny", steps=1), tmp_path / "own").points[1]
