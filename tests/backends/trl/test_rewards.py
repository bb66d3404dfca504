"""What the TRL backend takes of a task beside verdicts: shaped rewards, system messages."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from advsweep.backends.trl.config import HfModel
from advsweep.backends.trl.sampling import prompt_of
from advsweep.estimators.batch import On
from advsweep.tasks.base import Problem
from advsweep.tasks.countdown import Countdown


@dataclass(kw_only=True)
class Shaped(Countdown):
    """Half a point for an answer of even length, a tenth of one off for each token."""

    name: ClassVar[str] = "shaped"
    seen: ClassVar[list[tuple[np.ndarray, np.ndarray]]] = []

    @property
    def is_shaped(self):
        return True

    @property
    def is_binary(self):
        return False

    def score(self, problems, completions):
        return np.array([float(len(text) % 2 == 0) for text in completions])

    def rewards(self, completions, outcomes, lengths):
        self.seen.append((outcomes, lengths))
        return 0.5 * outcomes - 0.1 * lengths


@pytest.mark.slow
@pytest.mark.parametrize("rollout", ["plain", "reference"])
def test_shaped_rewards_are_trained_on_and_verdicts_counted(small_run, train, tmp_path, rollout):
    task = Shaped(levels=(0, 1), held_out_per_level=3)
    task.seen.clear()
    changes = {"rollout": {"name": rollout}}
    changes |= {"estimator": {"name": "aapo"}} if rollout == "reference" else {}
    run = small_run("trl", steps=2, **changes)
    run = replace(run, task=task, rollout=replace(run.rollout, on=On.VERDICT))
    points = train(run, tmp_path).points
    drawn = task.seen[:: 2 if rollout == "reference" else 1]
    assert len(drawn) == 2
    for (outcomes, lengths), values in zip(drawn, points.values(), strict=True):
        # A completion has a token at least, and eleven with its end mark at the most.
        assert lengths.min() >= 1
        assert lengths.max() <= 11
        rewards = (0.5 * outcomes - 0.1 * lengths).reshape(8, 6)
        assert values["reward/mean"] == pytest.approx(rewards.mean(), abs=1e-6)
        unsolved = (outcomes.reshape(8, 6) == 0).all(axis=1).sum()
        assert values["prompts/fully_unsolved"] == unsolved
        # Nearly every group has different lengths, and so rewards; what collapses is verdicts.
        collapsed = (outcomes.reshape(8, 6) == outcomes.reshape(8, 6)[:, :1]).all(axis=1)
        assert values["collapse/acr"] == collapsed.mean()
    assert any(values["mass/success"] > 0 for values in points.values())


class Tokenizer:
    chat_template = "{{ messages }}"


def test_a_system_message_comes_first():
    problem = Problem(id="1", prompt="What is 1 + 1?", level=0, system="Be brief.")
    chat, plain = (HfModel(path="org/model", prompt=how) for how in ("chat", "plain"))
    assert prompt_of(problem, chat, Tokenizer()) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1 + 1?"},
    ]
    assert prompt_of(problem, plain, Tokenizer()) == "Be brief.\n\nWhat is 1 + 1?"
    bare = replace(problem, system="")
    assert prompt_of(bare, chat, Tokenizer()) == [{"role": "user", "content": "What is 1 + 1?"}]
    assert prompt_of(bare, plain, Tokenizer()) == "What is 1 + 1?"


def test_rollouts_without_an_answer_have_a_reward_of_their_own(small_run, train, tmp_path):
    """RENT's released code differs from its verl conventions by them alone."""
    sizes = {}
    for preset in ("verl", "released"):
        run = small_run("trl", steps=1, estimator={"name": "rent", "preset": preset})
        [values] = train(run, tmp_path / preset).points.values()
        assert all(map(math.isfinite, values.values()))
        assert values["optim/grad_norm"] > 0
        sizes[preset] = values["advantage/abs_mean"]
    assert sizes["released"] != pytest.approx(sizes["verl"], rel=1e-3)
