"""A table on walks: exact values, episodes, the update, resumption and what is refused."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from advsweep.backends.bandit.bandits import PARAMETERS
from advsweep.backends.bandit.walk_policy import BIAS, Chart, WalkPolicy, ways_of
from advsweep.backends.bandit.walk_sampling import sample
from advsweep.backends.bandit.walk_trainer import WalkTrainer
from advsweep.backends.build import build_run
from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.randomness import Stream, numpy_generator, torch_generator
from advsweep.errors import ConfigError
from advsweep.estimators.base import Estimator
from advsweep.tasks import TASKS
from advsweep.tasks.base import Split
from advsweep.tasks.route_maps import NODES, route_map
from advsweep.tasks.walk_episodes import CLOSED, MOVED, parse_prompts
from tests.backends.batch_keeper import BatchKeeper

SMALL = {"name": "walks", "levels": [0, 1, 2], "held_out_per_level": 4, "train_per_level": 60}


@pytest.fixture
def walks_run(small_config):
    """Builds a small run on walks."""

    def make(**changes):
        task = {**SMALL, **changes.pop("task", {})}
        config = small_config("bandit", **changes)
        return build_run({**config, "task": task})

    return make


@pytest.fixture(scope="module")
def ways():
    return ways_of(0)


def draw(task, ways, problems, size, seed=0, logits=None):
    policy = WalkPolicy(ways, ways.base if logits is None else logits)
    prompts = [problem.prompt for problem in problems for _ in range(size)]
    return sample(policy, ways, task, prompts, torch.Generator().manual_seed(seed))


def chart_of(ways, problems):
    prompts, _ = parse_prompts([problem.prompt for problem in problems])
    return Chart.of(ways, prompts)


# Policy and episodes


def test_the_base_prefers_what_is_nearer_and_never_tries_the_goal_before_the_stop(ways):
    old = route_map(0).old
    task = TASKS.build({**SMALL, "levels": [1]})
    chart = chart_of(ways, task.problems(Split.HELD_OUT)[:1])
    policy = WalkPolicy(ways, ways.base)
    chances = policy.log(chart.positions)[0].exp()
    stop = int(chart.positions.targets[0, 0])
    goal = int(chart.positions.targets[0, NODES])
    for place in range(NODES):
        neighbours = np.flatnonzero(old.adjacent[place])
        for state, target, avoided in ((place, stop, goal), (place + NODES, goal, None)):
            wanted = np.exp(-BIAS * old.distances[neighbours, target])
            wanted[neighbours == avoided] = 0
            row = np.zeros(chances.shape[1])
            row[: len(neighbours)] = wanted / wanted.sum()
            np.testing.assert_allclose(chances[state].numpy(), row, atol=1e-6)


def test_episodes_are_those_that_the_task_reads(ways):
    task = TASKS.build({**SMALL, "turn_limit": 8})
    problems = task.problems(Split.HELD_OUT)
    rollouts = draw(task, ways, problems, 20)
    repeated = [problem for problem in problems for _ in range(20)]
    transcript = task.follow([problem.prompt for problem in repeated], rollouts.texts)
    assert rollouts.lengths.tolist() == transcript.turns.tolist()
    solved = task.score(repeated, rollouts.texts)
    # An episode that its limit has not ended is at the goal, and so past the stop.
    assert (solved == ~rollouts.cut_off.numpy()).all()
    assert 0 < solved.mean() < 1
    assert set("".join(text[1::2] for text in rollouts.texts)) == {MOVED, CLOSED}
    for row, length in enumerate(rollouts.lengths.tolist()):
        own = [transcript.states[row, turn] % (2 * NODES) for turn in range(length)]
        assert rollouts.positions.states[row, :length].tolist() == own


# Exact values


def test_the_exact_rate_of_uniform_steps_is_the_floor_of_the_walker(ways):
    """Without a stop, uniform steps over open links are the walker of `Task.floors`."""
    task = TASKS.build({**SMALL, "levels": [0]})
    problems = task.problems(Split.HELD_OUT)
    is_closed = ways.leads == torch.arange(NODES)[:, None]
    logits = torch.where(is_closed, -1e4, 0.0).repeat(NODES, 1)
    chart = chart_of(ways, problems)
    log = WalkPolicy(ways, logits).log(chart.positions)
    rates = chart.at_start(chart.to_come(log, chart.solves.double(), task.max_turns))
    floor = task.floors()["walker"].rates
    np.testing.assert_allclose(rates, [floor[problem.id] for problem in problems], rtol=1e-5)


@dataclass(kw_only=True)
class Spy(BatchKeeper):
    """Reads the turns."""

    name: ClassVar[str] = "spy"
    needs: ClassVar[frozenset[str]] = frozenset({"turn_values", "turn_states", "turn_rewards"})


def test_the_values_are_the_means_of_many_episodes(walks_run):
    """In every state that comes often, by turn, and with rewards of turns."""
    # Two problems, of which each is drawn some hundred times.
    levels = {"levels": [1], "train_per_level": 2}
    run = walks_run(
        task={**levels, "stop_reward": 0.3, "turn_cost": 0.02, "turn_limit": 9},
        rollout={"name": "vine"},
        group_size=16,
        prompts_per_step=600,
    )
    spy = Spy()
    run = replace(run, estimator=spy)
    WalkTrainer(run, run.backend).step(1)
    (batch,) = spy.batches
    before = batch.turn_rewards.double().cumsum(dim=2) - batch.turn_rewards
    to_come = batch.rewards.double()[..., None] - before
    compared = 0
    for turn in range(9):
        has_turn = batch.turn_of_token[..., turn] >= 0
        states = batch.turn_states[..., turn]
        values = batch.turn_values[..., turn]
        assert torch.equal(values.isnan(), ~has_turn)
        for state in states[has_turn].unique():
            here = has_turn & (states == state)
            found = to_come[..., turn][here]
            if len(found) < 400:
                continue
            (value,) = values[here].unique().tolist()
            error = float(found.std()) / len(found) ** 0.5
            assert float(found.mean()) == pytest.approx(value, abs=5 * error + 1e-6)
            compared += 1
    assert compared > 20


def test_exact_values_have_no_credit_error_and_cost_nothing(walks_run, train, tmp_path):
    run = walks_run(estimator={"name": "vine"}, rollout={"name": "vine"})
    points = train(run, tmp_path).points
    for values in points.values():
        assert values["credit/error"] == pytest.approx(0, abs=1e-12)
        assert values["credit/share"] == 1
        assert values["cost/rollouts"] == 1
    assert any(values["credit/correlation"] == pytest.approx(1) for values in points.values())
    other = walks_run(estimator={"name": "grpo"}, rollout={"name": "vine", "episodes": 2})
    values = train(other, tmp_path / "other").points[1]
    assert values["credit/error"] > 0.01
    assert values["credit/share"] < 0.5


def test_evaluations_find_the_exact_rates(walks_run):
    run = walks_run(backend={"name": "bandit", "exact_every": 1}, optimizer={"lr": 0.1}, steps=3)
    trainer = WalkTrainer(run, run.backend)
    points = [trainer.step(step) for step in (1, 2, 3)]
    problems = run.task.problems(Split.HELD_OUT)
    answers = trainer.sampler().sample(problems, 400, temperature=1.0, seed=3)
    verdicts = [run.task.score([p] * 400, t) for p, t in zip(problems, answers.texts, strict=True)]
    # 12 problems of 400 answers: a standard error of at most .5 / √4800 = .0072.
    assert np.mean(verdicts) == pytest.approx(points[-1]["exact/pass@1"], abs=0.03)
    # The entropy of an episode is the mean of the sum over its turns.
    again = draw(run.task, trainer.ways, problems, 400, logits=trainer.logits)
    entropy = again.entropies.sum(dim=1).mean().item()
    assert entropy == pytest.approx(points[-1]["exact/entropy"], rel=0.03)
    change = points[-1]["exact/pass@1"] - points[-2]["exact/pass@1"]
    assert points[-1]["exact/pass@1_change"] == pytest.approx(change)
    assert min(answers.kl_base) >= 0
    assert max(answers.kl_base) > 0


def test_the_kl_from_the_base_is_that_of_whole_episodes(walks_run):
    """The mean of log π - log π_base over episodes of π."""
    run = walks_run(optimizer={"lr": 0.3}, steps=2)
    trainer = WalkTrainer(run, run.backend)
    trainer.step(1)
    trainer.step(2)
    problems = run.task.problems(Split.HELD_OUT)[:3]
    found = trainer.sampler().sample(problems, 1, temperature=1.0, seed=0).kl_base
    rollouts = draw(run.task, trainer.ways, problems, 4000, logits=trainer.logits)
    base = WalkPolicy(trainer.ways, trainer.ways.base).log(rollouts.positions)
    of_base = base.gather(-1, rollouts.ways[..., None])[..., 0].where(rollouts.mask, 0.0)
    ratios = (rollouts.log_probs - of_base).sum(dim=1).view(3, -1)
    errors = (ratios.std(dim=1) / 4000**0.5).numpy()
    np.testing.assert_array_less(np.abs(ratios.mean(dim=1).numpy() - found), 4 * errors + 1e-6)


# Update


@dataclass(kw_only=True)
class Given(Estimator):
    """Gives turn t of rollout i the advantage i + 1 - 2 t."""

    name: ClassVar[str] = "given"
    per_token: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"turn_of_token"})

    def _advantages(self, groups, info):
        turns = groups.given("turn_of_token")
        rollouts = torch.arange(turns.shape[1])[:, None]
        return (rollouts + 1.0 - 2 * turns).where(turns >= 0, 0.0).float()


def test_a_step_is_the_sum_of_the_gradients_of_the_turns(walks_run):
    """At temperature 2, dz of a turn is -A (1{tried} - π) / 2, over the number of tokens."""
    run = walks_run(
        objective={"name": "clipped", "aggregation": "token_mean"},
        optimizer={"name": "sgd", "lr": 0.7, "max_grad_norm": 0.0},
        generation={"name": "sampling", "temperature": 2.0},
        group_size=2,
        prompts_per_step=3,
    )
    run = replace(run, estimator=Given())
    trainer = WalkTrainer(run, run.backend)
    before = trainer.logits.clone()
    trainer.step(1)
    change = (trainer.logits - before).double().numpy()

    expected = np.zeros(change.shape)
    problems = list(run.task.draw(3, numpy_generator(run.seed, Stream.PROMPTS, 1)))
    policy = WalkPolicy(trainer.ways, before, 2.0)
    prompts = [problem.prompt for problem in problems for _ in range(2)]
    generator = torch_generator(run.seed, Stream.ROLLOUTS, 1)
    rollouts = sample(policy, trainer.ways, run.task, prompts, generator)
    tokens = int(rollouts.lengths.sum())
    for row in range(6):
        for turn in range(int(rollouts.lengths[row])):
            place = int(rollouts.positions.here[row, turn])
            target = int(rollouts.positions.targets[row, turn])
            slope = -rollouts.log[row, turn].double().exp().numpy()
            slope[int(rollouts.ways[row, turn])] += 1
            advantage = row % 2 + 1 - 2 * turn
            expected[target * NODES + place] += 0.7 * advantage * slope / 2 / tokens
    np.testing.assert_allclose(change, expected, atol=2e-6)
    assert np.abs(expected).max() > 0.01


REMEMBERED = {
    "turns": {"estimator": {"name": "gigpo"}},
    "exact values": {"estimator": {"name": "vine"}, "rollout": {"name": "vine"}},
    "momentum and a renewed penalty": {
        "objective": {"name": "clipped", "kl_coef": 0.1, "renew_every": 2},
        "optimizer": {"name": "sgd", "lr": 1.0, "momentum": 0.5},
    },
    "an estimator and two updates": {
        "estimator": {"name": "fade"},
        "backend": {"minibatches": 2, "inner_epochs": 2},
    },
}


@pytest.mark.parametrize("what", REMEMBERED)
def test_a_training_goes_on_as_if_it_had_not_stopped(walks_run, train, tmp_path, what):
    run = walks_run(**REMEMBERED[what])
    whole = train(run, tmp_path / "whole")
    begun = train(run, tmp_path / "parts", stop_after=3)
    rest = train(run, tmp_path / "parts")
    assert rest.resumptions == [3]
    assert begun.lasting | rest.lasting == whole.lasting
    files = [Checkpoints(tmp_path / d, run.identity).load(5).files for d in ("whole", "parts")]
    assert dict(files[0]) == dict(files[1])
    assert any(values["optim/step_norm"] > 0 for values in whole.points.values())
    last = run.backend.sampler(run, tmp_path / "parts", 5)
    problems = run.task.problems(Split.HELD_OUT)
    answers = last.sample(problems, 3, temperature=1.0, seed=0)
    assert answers.texts == whole.evaluations[5].texts


def test_what_never_was_a_link_is_never_trained(walks_run, train, tmp_path):
    run = walks_run(optimizer={"name": "adamw", "lr": 0.1, "weight_decay": 0.1})
    trainer = WalkTrainer(run, run.backend)
    for step in range(1, 4):
        trainer.step(step)
    is_padding = (trainer.ways.nodes == NODES).repeat(NODES, 1)
    assert (trainer.weights[PARAMETERS][0][is_padding] == 0).all()
    assert trainer.change_norm() > 0


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "table", "rank": 4}}, "model.rank: expected 0 with task 'walks'"),
        (
            {"rollout": {"name": "vine"}, "task": {"reward": {"accuracy": 1, "overlong": 1}}},
            "task.reward: expected accuracy alone",
        ),
        ({"rollout": {"name": "vine"}, "control": "noise"}, "control: expected none or aa"),
        ({"estimator": {"name": "vine"}}, "rollout=vine does"),
    ],
)
def test_what_a_table_cannot_do_is_refused(walks_run, changes, message):
    with pytest.raises(ConfigError, match=message):
        walks_run(**changes)


def test_a_table_answers_on_its_own_map(walks_run, tmp_path):
    run = walks_run()
    others = TASKS.build({**SMALL, "seed": 5})
    answers = run.backend.sampler(run, tmp_path, 0, others).sample(
        others.problems(Split.HELD_OUT)[:2], 2, temperature=1.0, seed=0
    )
    assert len(answers.texts) == 2
    other_map = TASKS.build({**SMALL, "seed": "seed"}).for_seed(3)
    with pytest.raises(ConfigError, match="on the map of seed 0"):
        run.backend.sampler(run, tmp_path, 0, other_map)
    with pytest.raises(ConfigError, match="got 'countdown'"):
        run.backend.sampler(run, tmp_path, 0, TASKS.build("countdown"))
