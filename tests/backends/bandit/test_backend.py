"""Trainings of bandits: the paper's toy, gradients through the objectives, and refusals."""

import numpy as np
import pytest
import safetensors.torch
import torch

from advsweep.backends.bandit.bandits import Bandits
from advsweep.backends.bandit.sampling import Source
from advsweep.backends.bandit.tables import Logits, Policy, Tables
from advsweep.backends.build import build_run
from advsweep.backends.checkpoints import Checkpoints
from advsweep.errors import ConfigError
from advsweep.objectives.base import LossInputs


@pytest.fixture
def bandit(small_config):
    """Builds a run of the bandit; nodes that are given take the place of the small run's."""

    def make(**nodes):
        config = small_config("bandit")
        backend = {**config["backend"], **nodes.pop("backend", {})}
        return build_run({**config, **nodes, "backend": backend})

    return make


def parameters_after(run, directory, step):
    """How far they are from where they began."""
    files = Checkpoints(directory, run.identity).load(step).files
    task = run.task
    model = run.model
    parameters = safetensors.torch.load(files["table.safetensors"])["parameters"]
    return parameters - Logits(model, Tables.of([task]).logits).origin()[0]


def first_source(run):
    """The groups that the first step draws, and the base policy's logits."""
    bandits = Bandits([run], run.backend)
    source = Source(bandits, bandits.policy(), step=1)
    source.draw(run.prompts_per_step)
    return source, bandits.tables.logits[0]


def rows_of(source, prompts):
    return torch.arange(prompts) if source.rows is None else source.rows[0]


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize(
    "objective",
    [{"name": "clipped"}, {"name": "clipped", "kl_coef": 0.3, "entropy_coef": 0.2}],
    ids=["clipped", "with KL and entropy"],
)
def test_a_step_is_along_the_gradient_of_the_whole_loss(bandit, train, tmp_path, objective, rank):
    """Against autograd through the table, the softmax and the objective."""
    run = bandit(
        objective=objective,
        optimizer={"name": "sgd", "lr": 2.0},
        generation={"name": "sampling", "temperature": 0.8},
        model={"name": "table", "rank": rank},
        steps=1,
    )
    train(run, tmp_path)
    source, base = first_source(run)
    advantages = run.estimator.compute(source.batch(frozenset())).values.flatten()
    offsets = torch.zeros_like(base, requires_grad=True)
    policy = Policy.of((base + offsets)[rows_of(source, len(base))], 0.8)
    actions = source.actions[0]
    log_probs = policy.log_probs(actions).flatten()[:, None]
    entropies = policy.entropies[:, None].expand(actions.shape)
    count = log_probs.numel()
    loss = run.objective.loss(
        LossInputs(
            log_probs=log_probs,
            old_log_probs=log_probs.detach(),
            completion_mask=torch.ones_like(log_probs, dtype=torch.bool),
            advantages=advantages,
            rollouts=count,
            tokens=count,
            reference_log_probs=log_probs.detach(),
            entropies=entropies.flatten()[:, None],
        )
    ).loss
    (gradient,) = torch.autograd.grad(loss, offsets)
    moved = parameters_after(run, tmp_path, 1)
    if rank:
        # A shared map moves every prompt by what the others pull: F Fᵀ times the gradient.
        features = _features(run, base)
        gradient = features.T @ gradient
    assert gradient.abs().max() > 1e-3
    assert torch.allclose(moved, -2.0 * gradient, atol=1e-6)


@pytest.mark.parametrize("estimator", ["grpo", "reinforce"])
def test_steps_along_samples_alone_are_the_whole_gradient(
    bandit, train, tmp_path, monkeypatch, estimator
):
    """Plain descent moves what was sampled; as every other optimizer it could move all."""
    run = bandit(
        estimator={"name": estimator},
        optimizer={"name": "sgd", "lr": 20.0},
        generation={"name": "sampling", "temperature": 0.8},
        prompts_per_step=16,
        backend={"inner_epochs": 2},
    )
    sparse = train(run, tmp_path / "sparse").points
    monkeypatch.setattr(Bandits, "follow", Bandits.policy)
    dense = train(run, tmp_path / "dense").points
    for step, values in sparse.items():
        for name in ("optim/grad_norm", "loss/policy", "entropy/token"):
            assert values[name] == pytest.approx(dense[step][name], rel=1e-4, abs=1e-6)
    moved = [parameters_after(run, tmp_path / which, 5) for which in ("sparse", "dense")]
    assert moved[0].abs().max() > 0.1
    assert torch.allclose(moved[0], moved[1], atol=1e-4)


def test_what_was_not_sampled_does_not_move_where_advantages_sum_to_zero(bandit, train, tmp_path):
    """A-GRAE, Theorem 1, to the bit: sums that are but rounding count as 0."""
    for name, others_move in [("grpo", False), ("reinforce", True)]:
        run = bandit(
            estimator={"name": name},
            optimizer={"name": "sgd", "lr": 20.0},
            prompts_per_step=16,
            steps=1,
        )
        train(run, tmp_path / name)
        moved = parameters_after(run, tmp_path / name, 1) != 0
        source, logits = first_source(run)
        sampled = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, source.actions[0], True)
        assert moved.any()
        assert (moved & ~sampled).any() == others_move


def test_references_are_drawn_for_the_groups_that_were_asked_for(bandit):
    task = {"name": "bandit", "levels": [0, 1], "rates": [1 - 1e-6, 1e-6], "prompts_per_level": 4}
    for prompts in (8, 5):
        source, _ = first_source(bandit(task=task, prompts_per_step=prompts))
        chosen = torch.tensor([3, 0, 4])
        easy = source.levels[0][chosen.numpy()] == 0
        found = source.draw_references(chosen)
        assert found.mean(dim=1).tolist() == easy.astype(float).tolist()
        assert source.references == 18


def test_greedy_rollouts_take_the_likeliest_behaviour(bandit):
    task = {"name": "bandit", "levels": [0, 1], "rates": [0.9, 0.1], "prompts_per_level": 4}
    for prompts in (8, 5):
        source, _ = first_source(bandit(task=task, prompts_per_step=prompts))
        chosen = torch.tensor([3, 0, 4])
        easy = source.levels[0][chosen.numpy()] == 0
        assert source.draw_greedy(chosen).tolist() == easy.astype(float).tolist()
        assert source.references == 3


def _features(run, base):
    model = run.model
    task = run.task
    logits = Logits(model, torch.from_numpy(task.arms.logits).float()[None])
    return (logits.of(torch.eye(model.rank, base.shape[1])[None]) - base)[0, :, : model.rank]


def test_gradients_are_clipped_to_their_norm(bandit, train, tmp_path):
    lengths = []
    for bound in (0.0, 1e-3):
        optimizer = {"name": "sgd", "lr": 1.0, "max_grad_norm": bound}
        run = bandit(optimizer=optimizer, steps=1)
        train(run, tmp_path / str(bound))
        lengths.append(parameters_after(run, tmp_path / str(bound), 1).norm().item())
    assert lengths[0] > 0.01
    assert lengths[1] == pytest.approx(1e-3, rel=1e-4)


def test_minibatches_and_epochs_are_updates_of_their_own(bandit, train, tmp_path):
    """Later ones see policies that have moved, so that ratios are clipped."""
    clipped = {}
    for minibatches, epochs in [(1, 1), (4, 1), (1, 4)]:
        run = bandit(
            optimizer={"name": "sgd", "lr": 100.0},
            backend={"minibatches": minibatches, "inner_epochs": epochs},
            steps=1,
        )
        values = train(run, tmp_path / f"{minibatches}-{epochs}").points[1]
        clipped[minibatches, epochs] = values["loss/clip_fraction"]
    # Prompts of a table do not interact, so minibatches of whole groups do not either.
    assert clipped[1, 1] == clipped[4, 1] == 0
    assert clipped[1, 4] > 0.05


def test_exact_quantities_come_when_they_should_and_disturb_nothing(bandit, train, tmp_path):
    plain = train(bandit(), tmp_path / "plain").lasting
    run = bandit(backend={"exact_every": 2, "exact_k": [3]})
    assert run.identity == bandit().identity
    points = train(run, tmp_path / "exact").lasting
    found = {step: {n for n in values if n.startswith("exact/")} for step, values in points.items()}
    assert [step for step, names in found.items() if names] == [2, 4]
    assert "exact/pass@3" in found[2]
    without = {
        step: {n: v for n, v in values.items() if not n.startswith("exact/")}
        for step, values in points.items()
    }
    assert without == plain


def test_what_a_run_costs_and_how_it_collapses_is_told_of_every_step(bandit, train, tmp_path):
    plain = train(bandit(), tmp_path / "plain").lasting
    run = bandit(backend={"metrics_every": 2})
    assert run.identity == bandit().identity
    points = train(run, tmp_path / "brief").points
    brief = "reward/", "cost/", "collapse/all"
    for step, values in points.items():
        kept = {n: v for n, v in values.items() if not n.startswith(("time/", "memory/"))}
        whole = plain[step]
        few = {n: v for n, v in whole.items() if n.startswith(brief) or n == "collapse/acr"}
        assert kept == (few if step % 2 else whole)
        assert {n for n in values if n.startswith("time/")} == {
            f"time/{what}" for what in ("rollout", "reward", "estimator", "update")
        }


def test_evaluations_agree_with_the_exact_numbers(bandit, train, tmp_path):
    run = bandit(backend={"exact_every": 1, "exact_k": [1]})
    points = train(run, tmp_path).points
    from advsweep.tasks.base import Split

    problems = run.task.problems(Split.HELD_OUT)
    completions = run.backend.sampler(run, tmp_path, 5).sample(
        problems, 2000, temperature=1.0, seed=0
    )
    scores = [
        run.task.score([p] * 2000, t) for p, t in zip(problems, completions.texts, strict=True)
    ]
    # 16 prompts with 2,000 samples: a standard error below 0.003.
    assert np.mean(scores) == pytest.approx(points[5]["exact/pass@1"], abs=0.01)
    assert completions.token_entropy is not None
    assert completions.token_entropy.mean() == pytest.approx(points[5]["exact/entropy"], abs=1e-4)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"model": {"name": "tiny"}}, "model: backend 'bandit' trains the model 'table'"),
        ({"task": {"name": "countdown"}}, "task: backend 'bandit' needs a bandit"),
        (
            {"rollout": {"name": "plain", "mask_truncated": True}},
            "rollout.mask_truncated: expected false with",
        ),
        ({"backend": {"minibatches": 9}}, "backend.minibatches: expected at most .* = 8, got 9"),
        (
            {"task": {"name": "toy"}, "estimator": {"name": "psr"}},
            "estimator: 'psr' is defined for rewards of 0 and 1 only",
        ),
    ],
)
def test_refusals_name_the_key(bandit, nodes, message):
    with pytest.raises(ConfigError, match=message):
        bandit(**nodes)


def test_a_table_answers_its_own_problems_alone(bandit, tmp_path):
    run, other = bandit(), bandit(task={"name": "bandit", "seed": 3})
    assert run.backend.sampler(run, tmp_path, 0, run.task)
    with pytest.raises(ConfigError, match="task: expected the bandit that the run was trained on"):
        run.backend.sampler(run, tmp_path, 0, other.task)
