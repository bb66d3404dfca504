"""The tiny backend as a whole; what every backend must do is in the contract suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from advsweep.backends.base import Run
from advsweep.backends.models import TinyModel
from advsweep.backends.tiny.pretraining import base_weights
from advsweep.components import Component
from advsweep.errors import ConfigError
from advsweep.rollouts.base import Collected, RolloutPolicy, RolloutSource
from advsweep.tasks.base import Split, SymbolTask

MakeRun = Callable[..., Run]


@dataclass(kw_only=True)
class OtherModel(Component):
    name: ClassVar[str] = "other"


# Runs that do not fit


def test_refusals_name_the_key(small_run: MakeRun) -> None:
    run = small_run("tiny")
    with pytest.raises(ConfigError, match="model: backend 'tiny' trains the model 'tiny', got"):
        run.backend.check(replace(run, model=OtherModel()))
    with pytest.raises(ConfigError, match="task: backend 'tiny' needs a task over a small"):
        run.backend.check(replace(run, task=OtherModel()))  # type: ignore[arg-type]
    message = "backend.minibatches: expected at most prompts_per_step = 6, got 7"
    with pytest.raises(ConfigError, match=message):
        small_run("tiny", prompts_per_step=6, backend={"minibatches": 7})


# Training


def test_evaluations_truncate_as_their_settings_say(
    small_run: MakeRun, ask: Any, tmp_path: Path
) -> None:
    plain = small_run("tiny")
    cut = small_run("tiny", evaluation={"top_p": 0.2})
    assert plain.identity == cut.identity
    whole, nucleus = (ask(r.backend.sampler(r, tmp_path, 0), r.task) for r in (plain, cut))
    greedy = small_run("tiny", evaluation={"temperature": 0.0, "n": 1, "k": [1]})
    sampler = greedy.backend.sampler(greedy, tmp_path, 0)
    problems = greedy.task.problems(Split.HELD_OUT)
    [[likeliest], *_] = sampler.sample(problems, 1, temperature=0.0, seed=0).texts
    assert sampler.sample(problems, 1, temperature=0.0, seed=5).texts[0] == [likeliest]
    # A smaller part of the distribution has fewer different answers.
    assert len(set(nucleus.texts[0])) <= len(set(whole.texts[0]))
    assert whole.texts != nucleus.texts


def test_each_seed_has_a_base_of_its_own(
    small_run: MakeRun, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_model_answers_on_its_own_map_alone(small_run: MakeRun, tmp_path: Path) -> None:
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


def test_a_stop_while_the_base_is_pretrained(
    small_run: MakeRun, train: Any, tmp_path: Path
) -> None:
    """The run ends without a step, and a later one pretrains again."""
    run = small_run("tiny", model={"pretraining_seed": 77})
    stopped = train(run, tmp_path, stop_after=0)
    assert not stopped.points
    assert not stopped.evaluated
    assert len(train(run, tmp_path).points) == run.steps


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"backend": {"minibatches": 1}}, False),
        ({"backend": {"inner_epochs": 2}}, False),
        ({"generation": {"temperature": 0.5}}, False),
        ({"backend": {"checkpoint_every": 1}}, True),
        ({"evaluation": {"every": 1}}, True),
    ],
)
def test_what_changes_a_training(
    small_run: MakeRun, train: Any, tmp_path: Path, changes: Mapping[str, Any], same: bool
) -> None:
    # A base this small is seldom right; the entropy bonus moves it all the same.
    bonus = {"objective": {"entropy_coef": 0.1}}
    first = train(small_run("tiny", **bonus), tmp_path / "a").lasting
    second = train(small_run("tiny", **bonus, **changes), tmp_path / "b").lasting
    assert (first == second) is same


@dataclass(kw_only=True)
class KeepsOne(RolloutPolicy):
    """Throws all groups but one away."""

    name: ClassVar[str] = "keeps_one"

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        source.draw(prompts)
        return Collected(torch.arange(1))


def test_fewer_groups_than_minibatches(small_run: MakeRun, train: Any, tmp_path: Path) -> None:
    run = replace(small_run("tiny", backend={"minibatches": 3}), rollout=KeepsOne())
    points = train(run, tmp_path).points
    assert len(points) == run.steps
    assert points[1]["cost/rollouts"] == 1
    assert points[1]["cost/utilisation"] == pytest.approx(1 / run.prompts_per_step)


def test_rollouts_that_cannot_be_scored_are_left_out(
    small_run: MakeRun, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run("tiny")
    score = type(run.task).score

    def doubtful(task: Any, problems: Any, completions: Any) -> np.ndarray:
        scores: np.ndarray = score(task, problems, completions)
        scores[::3] = np.nan
        return scores

    monkeypatch.setattr(type(run.task), "score", doubtful)
    points = train(run, tmp_path).points
    rollouts = run.prompts_per_step * run.group_size
    scored = rollouts - len(range(0, rollouts, 3))
    assert points[1]["cost/utilisation"] == pytest.approx(scored / rollouts)
    assert all(np.isfinite(list(values.values())).all() for values in points.values())


@pytest.mark.slow
def test_reward_rises(small_run: MakeRun, train: Any, tmp_path: Path) -> None:
    """Two digits: from a base that is often wrong to one that is mostly right."""
    run = small_run(
        "tiny",
        task={"levels": [0, 1], "held_out_per_level": 10},
        model={"width": 32, "pretraining_steps": 150, "pretraining_batch": 64},
        optimizer={"lr": 1e-3},
        backend={"checkpoint_every": 0},
        evaluation={"every": 0},
        group_size=8,
        prompts_per_step=32,
        steps=100,
    )
    points = train(run, tmp_path).points
    rewards = [points[step]["reward/mean"] for step in range(1, run.steps + 1)]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:10]) + 0.15
    entropies = [points[step]["entropy/token"] for step in (1, run.steps)]
    assert entropies[1] < entropies[0]
