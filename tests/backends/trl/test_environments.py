"""Tasks of the user's environments: episodes of several turns in trainings and evaluations."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch

from advsweep.backends.build import build_run
from advsweep.backends.trl import episode_trainer
from advsweep.errors import AdvsweepWarning
from advsweep.state_numbers import number_state
from advsweep.tasks import TASKS
from advsweep.tasks.base import Split
from tests.backends.batch_keeper import BatchKeeper
from tests.integrations.conftest import _CHAT_TEMPLATE, _RESPONSE_TEMPLATE, save_policy

LAMP = '''
"""Two switches, `a` and `b`, in a room: pressing one turns it over. `c` is none, and `d` breaks."""

import random


class Lamp:
    def __init__(self, tenth: float = 0.1):
        self.tenth = tenth
        self.visited = []

    def reset(self, on, **_):
        self.switches = {"a": on == "a", "b": on == "b"}
        self.given = 0.0
        self.visited = [dict(self.switches)]
        return " e"

    def step(self, word: str) -> str:
        """Press a switch.

        Args:
            word: its letter.
        """
        if word == "d":
            raise KeyError("no such switch")
        if word in self.switches:
            self.switches[word] = not self.switches[word]
        if all(self.switches.values()):
            self.given += self.tenth
        self.visited.append(dict(self.switches))
        return random.choice(["f", "f g"])

    def get_reward(self):
        return float(any(self.switches.values())) * 0.5 + self.given

    @property
    def turn_state(self):
        return self.switches

    @property
    def reward_so_far(self):
        return self.given
'''
ROWS = [{"prompt": p, "on": on} for p in ("a b", "c", "h i j") for on in ("a", "b", "")]


@pytest.fixture(scope="session")
def agent(tmp_path_factory):
    """A model that talks to tools: as random as it is, it often calls one."""
    words = ["1", "user", "assistant", "tool", *"abcdefghijkl"]
    chat = {"chat_template": _CHAT_TEMPLATE, "response_template": _RESPONSE_TEMPLATE}
    return save_policy(tmp_path_factory.mktemp("agent"), words, "Llama", **chat)


@pytest.fixture
def make_run(agent, tmp_path, small_config):
    """`make_run(text, task={}, **changes)`: a run of a task whose environment has this text."""

    def make(text=LAMP, task=None, **changes):
        (tmp_path / "lamp.py").write_text(text)
        rows = "".join(f"{json.dumps(row)}\n" for row in ROWS)
        (tmp_path / "rows.jsonl").write_text(rows)
        name = TASKS.resolve(str(tmp_path / "lamp.py"))
        config = small_config("trl", model={"name": "hf", "path": str(agent)}, **changes)
        config["generation"] = {"name": "transformers", "max_tokens": 40}
        config["task"] = {
            "name": name,
            "data": str(tmp_path / "rows.jsonl"),
            "held_out": 3,
            "tool_turns": 3,
            "high": 2.0,
            "success": 0.5,
            **(task or {}),
        }
        return build_run(config)

    return make


@pytest.fixture
def kept(monkeypatch):
    """The generations of trainings and evaluations, with the environments as they stood then."""
    made = []
    keep = episode_trainer.EpisodeMaker._calculate_rewards

    def record(self, *arguments, **named):
        rewards = keep(self, *arguments, **named)
        stood = [(list(each.visited), each.given) for each in self.environments]
        made.append((self._generation, self._rewards.tolist(), stood, self._evaluating))
        return rewards

    monkeypatch.setattr(episode_trainer.EpisodeMaker, "_calculate_rewards", record)
    return made


def test_a_batch_has_the_turns_of_the_environments(make_run, train, tmp_path, kept):
    keeper = BatchKeeper()
    run = dataclasses.replace(make_run(steps=1), estimator=keeper)
    train(run, tmp_path / "run")
    (batch,) = keeper.batches
    ((made, rewards, stood, _),) = [each for each in kept if each[-1] is None]
    assert batch.turn_of_token is not None
    turns = batch.turn_of_token.flatten(0, 1)
    assert batch.rewards.flatten().tolist() == pytest.approx(rewards)
    counts = set()
    for row, mask in enumerate(made.masks):
        runs = [(is_policy, len([*each])) for is_policy, each in itertools.groupby(mask)]
        expected = []
        for number, (is_policy, length) in enumerate(runs):
            expected += [number // 2 if is_policy else -1] * length
        expected += [-1] * (turns.shape[1] - len(expected))
        assert turns[row].tolist() == expected
        assert batch.lengths.flatten()[row] == sum(mask)
        count = len(runs[::2])
        counts.add(count)
        states = batch.turn_states.flatten(0, 1)[row]
        visited, total = stood[row]
        numbers = [number_state(state) for state in visited]
        assert states[0] == numbers[0]
        assert set(states[:count].tolist()) <= set(numbers)
        assert not states[count:].any()
        given = batch.turn_rewards.flatten(0, 1)[row]
        assert not given[count:].any()
        assert given.sum().item() == pytest.approx(total, abs=1e-6)
    assert len(counts) > 1


@pytest.mark.parametrize("estimator", ["gigpo", "entropy_shaped"])
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    make_run, train, KilledError, tmp_path, estimator
):
    objective = {"name": "clipped", "kl_coef": 0.1}
    run = make_run(steps=4, estimator={"name": estimator}, objective=objective)
    whole = train(run, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(run, tmp_path / "parts", die_after=3)
    rest = train(run, tmp_path / "parts")
    assert rest.resumptions == [2]
    assert rest.lasting == {step: values for step, values in whole.lasting.items() if step > 2}
    assert whole.lasting[4]["turns/mean"] > 1
    ends = [reporter.evaluations[4] for reporter in (whole, rest)]
    assert ends[0].texts == ends[1].texts
    assert (ends[0].verdicts == ends[1].verdicts).all()


class Blurred(episode_trainer.EpisodeTrainer):
    """Changes log-probabilities and entropies of the environment's tokens in updates, in nats."""

    blur = 0.0

    def _loss_inputs(self, model, inputs, part):
        self._of_environment = {
            tuple(ids.tolist()): 1.0 - mask.float()
            for ids, mask in zip(inputs["completion_ids"], inputs["tool_mask"], strict=True)
        }
        return super()._loss_inputs(model, inputs, part)

    def token_pass(self, model, padded, *arguments, **named):
        log_probs, entropies, auxiliary = super().token_pass(model, padded, *arguments, **named)
        known = getattr(self, "_of_environment", {})
        for row, ids in enumerate(padded.ids[:, -padded.tokens :]):
            blur = self.blur * known.get(tuple(ids.tolist()), torch.zeros(padded.tokens))
            log_probs[row] += blur
            if entropies is not None:
                entropies[row] += blur
        return log_probs, entropies, auxiliary


def test_tokens_of_an_environment_enter_nothing(make_run, train, tmp_path, monkeypatch):
    objective = {"name": "clipped", "kl_coef": 0.1, "entropy_coef": 0.01}
    run = make_run(steps=2, estimator={"name": "turn_return"}, objective=objective)
    from advsweep.backends.trl import training

    def metrics(blur):
        trainer = type("Blurred", (Blurred,), {"blur": blur})
        monkeypatch.setattr(training, "EpisodeTrainer", trainer)
        return train(run, tmp_path / str(blur)).lasting

    plain = metrics(0.0)
    assert plain == metrics(3.0)
    assert plain[1]["optim/grad_norm"] > 0


def test_an_episode_is_right_by_its_reward(make_run, train, tmp_path, kept):
    run = make_run(steps=1, task={"success": 0.6})
    reporter = train(run, tmp_path / "run")
    rewards = [reward for *_, each, _, evaluating in kept if evaluating for reward in each]
    drawn = [reporter.evaluations[step].verdicts for step in (0, 1)]
    found = [verdict for verdicts in drawn for verdict in verdicts.flatten().tolist()]
    assert found == [float(reward >= 0.6 - 1e-6) for reward in rewards]
    assert 0 < sum(found) < len(found)
    # A later evaluation of the same weights, apart from the training, plays the same episodes.
    sampler = run.backend.sampler(run, tmp_path / "run", 1)
    again = sampler.sample(run.task.problems(Split.HELD_OUT), 3, temperature=1.0, seed=0)
    assert again.texts == reporter.evaluations[1].texts
    assert (again.verdicts == drawn[1]).all()


def test_an_environment_that_fails_costs_its_episode_alone(make_run, train, tmp_path):
    """A row that only a later episode begins with: a plan does not see it."""
    fails = 'if on == "b":\n            raise OSError("no lamp")\n        self.given = 0.0'
    run = make_run(LAMP.replace("self.given = 0.0", fails), steps=1, estimator={"name": "gigpo"})
    with pytest.warns(AdvsweepWarning, match=r"Lamp\.reset raised OSError: no lamp; its rollout"):
        reporter = train(run, tmp_path / "run")
    assert 0 < reporter.points[1]["reward/unscorable"] < 1
    problems = run.task.problems(Split.HELD_OUT)
    broken = [problem.columns["on"] == "b" for problem in problems]
    assert any(broken)
    unscorable = np.isnan(reporter.evaluations[1].verdicts).all(axis=1)
    assert unscorable.tolist() == broken
