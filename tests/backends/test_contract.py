"""What every backend must do, tried on each that is registered.

A backend that is `external` trains with a program of the user's, which has neither our rollouts
nor our checkpoints. tests/backends/command holds it to what applies of this suite: equal runs,
seeds, interruption, resumption, and the order of reports.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from advsweep.backends import BACKENDS
from advsweep.backends.base import Can
from advsweep.backends.checkpoints import Checkpoints
from advsweep.errors import CheckpointError, ConfigError, TrainingError
from advsweep.estimators.batch import GroupBatch, Groups
from advsweep.objectives.base import LossInputs
from advsweep.objectives.clipped import Clipped
from advsweep.rollouts.base import Collected, RolloutPolicy
from tests.backends.batch_keeper import BatchKeeper

METRICS = {
    "reward/mean",
    "reward/std",
    "reward/unscorable",
    "reward/truncated",
    "collapse/acr",
    "collapse/all_wrong",
    "collapse/all_correct",
    "collapse/acr_after",
    "advantage/zero_fraction",
    "advantage/abs_mean",
    "mass/success",
    "mass/failure",
    "mass/sign_ratio",
    "entropy/token",
    "entropy/token_sampled",
    "entropy/drift",
    "entropy/covariance",
    "weight/effective_prompts",
    "weight/variance",
    "cost/rollouts",
    "cost/tokens",
    "cost/utilisation",
    "prompts/fully_unsolved",
    "loss/policy",
    "loss/clip_fraction",
    "optim/grad_norm",
    "optim/lr",
    "optim/change_norm",
    "optim/step_norm",
    "policy/kl_step",
    "memory/peak_mb",
    "time/rollout",
    "time/reward",
    "time/update",
    "time/estimator",
}


@pytest.fixture(params=[n for n in BACKENDS.names() if not BACKENDS.get(n).external])
def backend(request):
    return str(request.param)


@pytest.fixture
def run(backend, small_run):
    """Five steps, checkpoints and evaluations every two, an estimator with memory."""
    return small_run(backend, estimator={"name": "fade"})


def same_files(run, first, second):
    """The checkpoints after the last step are equal, byte for byte."""
    files = [Checkpoints(d, run.identity).load(run.steps).files for d in (first, second)]
    return dict(files[0]) == dict(files[1])


def same_answers(first, second):
    entropies = [c.token_entropy for c in (first, second)]
    if entropies[0] is None or entropies[1] is None:
        return entropies[0] is entropies[1] and first.texts == second.texts
    return first.texts == second.texts and np.array_equal(entropies[0], entropies[1])


# Determinism, interruption and resumption


def test_equal_runs_are_equal_in_everything(run, train, tmp_path):
    """Whatever the process did before: neither global generators nor the run object matter."""
    torch.manual_seed(1)
    np.random.seed(1)
    first = train(run, tmp_path / "first")
    torch.manual_seed(2)
    np.random.seed(2)
    second = train(run, tmp_path / "second")
    assert first.lasting == second.lasting
    assert sorted(first.lasting) == [1, 2, 3, 4, 5]
    assert sum(values["optim/grad_norm"] > 0 for values in first.points.values()) >= 3
    assert same_files(run, tmp_path / "first", tmp_path / "second")
    assert all(same_answers(first.evaluations[s], second.evaluations[s]) for s in (0, 2, 4, 5))


def test_the_estimator_of_a_run_is_left_as_it_is(backend, small_run, train, tmp_path):
    """A training has a memory of its own, empty at first."""
    fresh = small_run(backend, estimator={"name": "fade"})
    used = small_run(backend, estimator={"name": "fade"})
    rewards = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    used.estimator(GroupBatch(rewards=rewards, token_entropy=torch.full_like(rewards, 3.0)))
    memory = used.estimator.state_dict()
    assert memory != fresh.estimator.state_dict()
    first, second = train(fresh, tmp_path / "first"), train(used, tmp_path / "second")
    assert first.lasting == second.lasting
    assert used.estimator.state_dict() == memory


@pytest.mark.parametrize("step", [1, 4])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(run, train, tmp_path, step):
    whole = train(run, tmp_path / "whole")
    begun = train(run, tmp_path / "parts", stop_after=step)
    assert max(begun.points) == step
    assert begun.checkpoints[-1][0] == step
    rest = train(run, tmp_path / "parts")
    assert rest.resumptions == [step]
    assert begun.lasting | rest.lasting == whole.lasting
    # The one of the step it goes on from is asked for again: it may have been broken off.
    again = [step] if step in whole.evaluated else []
    assert begun.evaluated + rest.evaluated == sorted([*whole.evaluated, *again])
    assert whole.evaluated == [0, 2, 4, 5]
    assert same_files(run, tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(("step", "checkpoint"), [(2, 0), (5, 4)])
def test_a_killed_run_goes_on_from_its_last_checkpoint(
    run, train, KilledError, tmp_path, step, checkpoint
):
    whole = train(run, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(run, tmp_path / "parts", die_after=step)
    rest = train(run, tmp_path / "parts")
    assert rest.resumptions == ([checkpoint] if checkpoint else [])
    assert min(rest.points) == checkpoint + 1
    expected = {s: values for s, values in whole.lasting.items() if s > checkpoint}
    assert rest.lasting == expected
    assert same_files(run, tmp_path / "whole", tmp_path / "parts")


def test_a_finished_run_has_nothing_left_to_do(run, train, tmp_path):
    train(run, tmp_path)
    again = train(run, tmp_path)
    assert again.resumptions == [5]
    assert not again.points
    assert again.evaluated == [5]


# Fewer prompts than five steps draw, so that they come again.
FEW_PROMPTS = {"bandit": {"prompts_per_level": 8}}
REFERENCES = {"estimator": {"name": "aapo"}, "rollout": {"name": "reference"}}
LAYERS = {"reset_layers": 1, "reset_layers_every": 3}

REMEMBERED = {
    "prompts": {"estimator": {"name": "dcpo"}, "objective": {"name": "adaptive_clipped"}},
    "references": REFERENCES,
    "references of some": {**REFERENCES, "rollout": {"name": "reference", "update_every": 2}},
    "retries": {"rollout": {"name": "retry", "turns": 3}},
    "more rollouts": {"rollout": {"name": "pods", "drawn": 5}},
    "whole rollouts": {"rollout": {"mask_truncated": True}},
    "a renewed penalty": {"objective": {"name": "clipped", "kl_coef": 0.1, "renew_every": 2}},
    "moments": {"optimizer": {"name": "adamw", "reset_every": 3}, "estimator": "reinforce"},
    "reset layers": {"backend": LAYERS, "estimator": "reinforce"},
    **{control: {"control": control} for control in ("aa", "placebo", "noise")},
    "earlier weights": {"backend": {"stale_steps": 2}, "estimator": {"name": "nsr"}},
    "a correction": {
        "backend": {"stale_steps": 2},
        "objective": {"name": "clipped", "correction": "decoupled_seq_is_rs"},
        "estimator": {"name": "nsr"},
    },
}
"""What a training has beside its weights, by the settings that make it so."""


@pytest.mark.parametrize("what", REMEMBERED)
def test_what_a_training_remembers_goes_on_where_it_was(
    backend, small_run, train, KilledError, tmp_path, what
):
    changes = dict(REMEMBERED[what])
    if what == "prompts":
        changes["task"] = FEW_PROMPTS.get(backend, {"levels": [0]})
    try:
        run = small_run(backend, **changes)
    except ConfigError:
        pytest.skip("this backend has none")
    whole = train(run, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(run, tmp_path / "parts", die_after=3)
    rest = train(run, tmp_path / "parts")
    assert rest.resumptions == [2]
    assert rest.lasting == {step: values for step, values in whole.lasting.items() if step > 2}
    assert same_files(run, tmp_path / "whole", tmp_path / "parts")


# Checkpoints


def test_old_checkpoints_are_pruned(backend, small_run, train, tmp_path):
    policy = {"checkpoint_every": 1, "keep_last": 2, "keep_every": 3}
    run = small_run(backend, steps=7, backend=policy)
    reporter = train(run, tmp_path)
    assert [step for step, _ in reporter.checkpoints] == [1, 2, 3, 4, 5, 6, 7]
    checkpoints = Checkpoints(tmp_path, run.identity)
    assert checkpoints.steps() == [3, 6, 7]
    assert reporter.gone == [checkpoints.path(step) for step in (1, 2, 4, 5)]
    with pytest.raises(CheckpointError, match="step 5"):
        run.backend.sampler(run, tmp_path, 5)


def test_a_damaged_checkpoint_is_passed_over(run, train, tmp_path):
    train(run, tmp_path / "whole")
    parts = tmp_path / "parts"
    train(run, parts, stop_after=4)
    newest = Checkpoints(parts, run.identity).path(4)
    largest = max(newest.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    rest = train(run, parts)
    assert rest.resumptions == [2]
    assert any("step 4 is damaged" in line and "step 2" in line for line in rest.lines)
    assert same_files(run, tmp_path / "whole", parts)


# Evaluation


@pytest.mark.parametrize(
    ("every", "at", "steps"),
    [
        (0, (), [0, 5]),
        (0, (0, 3, 1, 3, 8), [0, 1, 3, 5]),
        (2, (1, 2), [0, 1, 2, 4, 5]),
    ],
)
def test_evaluations_come_when_they_should_and_disturb_nothing(
    run, train, tmp_path, every, at, steps
):
    rare = train(run, tmp_path / "rare")
    settings = replace(run.evaluation, every=every, at=at)
    other = train(replace(run, evaluation=settings), tmp_path / "other")
    assert other.evaluated == steps
    assert other.lasting == rare.lasting


@pytest.mark.parametrize("step", [0, 5])
def test_an_evaluation_that_was_cut_off_is_made_again(run, train, KilledError, tmp_path, step):
    with pytest.raises(KilledError):
        train(run, tmp_path, die_evaluating=step)
    assert step in train(run, tmp_path).evaluated


def test_samplers_of_checkpoints_answer_as_the_training_did(run, train, ask, tmp_path):
    reporter = train(run, tmp_path)
    for step in (0, 4, 5):
        sampler = run.backend.sampler(run, tmp_path, step)
        assert same_answers(ask(sampler, run.task), reporter.evaluations[step])


def test_the_kl_from_the_base_starts_at_0_and_rises(run, backend, train, ask, tmp_path):
    """What the training measures is what its checkpoints give, wherever it is measured."""
    reporter = train(run, tmp_path)
    found = {step: answers.kl_base for step, answers in reporter.evaluations.items()}
    if backend == "fake":
        assert set(found.values()) == {None}
        return
    known = {step: kl[~np.isnan(kl)] for step, kl in found.items()}
    np.testing.assert_allclose(known[0], 0, atol=1e-9)
    assert all(len(kl) and (kl >= 0).all() for kl in known.values())
    assert known[5].mean() > 1e-6
    later = ask(run.backend.sampler(run, tmp_path, 5), run.task).kl_base
    np.testing.assert_allclose(later, found[5], rtol=1e-3, atol=1e-6)


def test_sampling_depends_on_its_seed_alone(run, ask, tmp_path):
    sampler = run.backend.sampler(run, tmp_path, 0)
    first = ask(sampler, run.task, n=8)
    torch.manual_seed(3)
    assert same_answers(ask(sampler, run.task, n=8), first)
    assert ask(sampler, run.task, n=8, seed=1).texts != first.texts
    assert all(len(texts) == 8 for texts in first.texts)
    assert len(set(first.texts[0])) > 1 or len({t for g in first.texts for t in g}) > 1


def test_the_base_key_names_the_base_model_alone(backend, small_run):
    run = small_run(backend)
    others = [{"seed": 9}, {"estimator": {"name": "rloo"}}, {"steps": 9}, {"group_size": 8}]
    keys = {r.backend.base_key(r) for r in [run, *(small_run(backend, **c) for c in others)]}
    assert len(keys) == 1
    other = small_run(backend, task={"levels": [0]})
    assert other.backend.base_key(other) not in keys


# Metrics


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ({}, METRICS),
        ({"kl_coef": 0.1, "entropy_coef": 0.01}, METRICS | {"loss/kl"}),
        # What has no clip has no share of clipped tokens.
        ({"name": "cross_entropy"}, METRICS - {"loss/clip_fraction"}),
    ],
    ids=["clipped", "with KL and entropy", "cross-entropy"],
)
def test_every_metric_is_there_and_a_number(
    backend, small_run, train, tmp_path, objective, expected
):
    run = small_run(backend, estimator={"name": "fade"}, objective=objective)
    solved = {f"solved/{k}" for k in range(run.group_size + 1)}
    # A step may lack a level, or a group of unequal rewards.
    sometimes = {"collapse/acr/level_0", "collapse/acr/level_1", "mass/sign_ratio"}
    sometimes |= {"weight/effective_prompts", "weight/variance"}
    sometimes |= {"update/quality"}
    # The first step has no step before it, and one update has no variance.
    sometimes |= {"optim/update_cosine"}
    sometimes |= {"optim/weights_changed"} if backend == "trl" else set()
    sometimes |= set() if backend in ("bandit", "fake") else {"loss/variance"}
    names = set()
    for values in train(run, tmp_path).points.values():
        found = {name for name in values if not name.startswith("estimator/")}
        assert (expected | solved) - sometimes <= found
        names |= found
        assert any(name.startswith("estimator/") for name in values)
        assert all(type(v) is float and math.isfinite(v) for v in values.values())
    assert names == expected | solved | sometimes


def test_the_entropy_change_is_measured_and_disturbs_nothing(backend, small_run, train, tmp_path):
    if "entropy_change" not in {field.name for field in dataclasses.fields(BACKENDS.get(backend))}:
        pytest.skip("this backend does not measure it")
    lr = {"lr": 0.01}
    plain = small_run(backend, optimizer=lr)
    run = small_run(backend, optimizer=lr, backend={"entropy_change": True})
    assert run.identity == plain.identity
    points = train(run, tmp_path / "measured").lasting
    changes = {step: values.pop("entropy/change", None) for step, values in points.items()}
    assert points == train(plain, tmp_path / "plain").lasting
    for step, change in changes.items():
        # A step without any advantage moves the weights by momentum alone, or not at all.
        if points[step].get("optim/grad_norm", 0.0) > 0:
            assert change is not None
            assert 0 < abs(change) < 1


def test_the_learning_rate_is_matched(backend, small_run, train, tmp_path):
    rates = []
    for match in ("none", "max_advantage"):
        run = small_run(backend, steps=1, estimator={"name": "maxrl"}, optimizer={"match": match})
        rates.append(train(run, tmp_path / match).points[1]["optim/lr"])
    # G = 6: max|A| is 5/6 for dr_grpo and 5 for maxrl.
    assert rates[1] == pytest.approx(rates[0] / 6)


# What reaches the loss


@dataclass(kw_only=True)
class Spy(BatchKeeper):
    """Gives every rollout a number of its own, 0 to every third, and drops every fifth."""

    name: ClassVar[str] = "spy"
    needs: ClassVar[frozenset[str]] = frozenset(
        {"lengths", "token_entropy", "token_entropies", "answered", "prompt_ids"}
    )
    # Only some backends have these.
    uses: ClassVar[frozenset[str]] = frozenset({"token_grad_norms", "token_kl"})

    def values(self, rewards):
        index = torch.arange(rewards.numel(), dtype=rewards.dtype).view(rewards.shape)
        return torch.where(index % 3 == 0, 0.0, (index - 10) / 7)

    def _keep(self, groups):
        return torch.arange(groups.rewards.numel()).view(groups.rewards.shape) % 5 != 0


@dataclass(kw_only=True)
class Witness(Clipped):
    """Remembers what it is given."""

    name: ClassVar[str] = "witness"

    def __post_init__(self):
        super().__post_init__()
        self.seen = []

    def loss(self, inputs):
        self.seen.append(_of_one_run(inputs))
        return super().loss(inputs)


def _of_one_run(inputs):
    """Those of a stack of one run without its axis, and without rollouts that do not count."""
    if inputs.log_probs.ndim == 2:
        return inputs
    given = {name: value for name, value in vars(inputs).items() if value is not None}
    own = {name: torch.as_tensor(value).squeeze(0) for name, value in given.items()}
    counts = own["completion_mask"].any(dim=1)
    return LossInputs(
        rollouts=own.pop("rollouts").item(),
        tokens=own.pop("tokens").item(),
        parts=own.pop("parts").item(),
        **{name: value[counts] for name, value in own.items()},
    )


@pytest.mark.parametrize("kl_coef", [0.0, 0.1], ids=["skipping", "every rollout"])
def test_rollouts_reach_the_loss_with_exactly_their_advantages(
    backend, small_run, train, tmp_path, kl_coef
):
    spy, witness = Spy(), Witness(kl_coef=kl_coef)
    run = replace(small_run(backend, steps=1), estimator=spy, objective=witness)
    train(run, tmp_path)
    (batch,) = spy.batches
    assert batch.lengths is not None
    assert batch.token_entropy is not None
    advantages = spy.values(batch.rewards).flatten().tolist()
    lengths, entropies = batch.lengths.flatten().tolist(), batch.token_entropy.flatten().tolist()
    kept = [i for i in range(len(advantages)) if i % 5]
    # Where they add nothing, rollouts with advantage 0 may be there or not.
    trained = [i for i in kept if kl_coef or advantages[i] != 0]

    rows = Counter()
    for inputs in witness.seen:
        mask = inputs.completion_mask
        sampled = -inputs.old_log_probs.where(mask, 0.0).sum(dim=1) / mask.sum(dim=1)
        given = zip(inputs.advantages.tolist(), mask.sum(dim=1), sampled, strict=True)
        for advantage, length, entropy in given:
            if advantage == kl_coef == 0:
                continue
            rows[advantage] += 1
            alike = [i for i in trained if np.float32(advantages[i]) == np.float32(advantage)]
            assert any(
                lengths[i] == length and entropy.item() == pytest.approx(entropies[i], rel=1e-4)
                for i in alike
            ), "the advantage belongs to another rollout"
    expected = Counter(advantages[i] for i in trained)
    epochs = rows.total() / expected.total()
    assert rows == {advantage: epochs * count for advantage, count in expected.items()}
    assert sum(inputs.rollouts for inputs in witness.seen) == epochs * len(kept)
    assert sum(inputs.tokens for inputs in witness.seen) == epochs * sum(lengths[i] for i in kept)
    assert all((i.reference_log_probs is not None) or not kl_coef for i in witness.seen)


@dataclass(kw_only=True)
class TokenSpy(Spy):
    """Gives token t the advantage of its rollout times t, counted from 1."""

    name: ClassVar[str] = "token_spy"
    per_token: ClassVar[bool] = True

    def _advantages(self, groups, info):
        entropies = groups.given("token_entropies")
        return super()._advantages(groups, info)[..., None] * (1 + torch.arange(entropies.shape[2]))


@pytest.mark.parametrize("kl_coef", [0.0, 0.1], ids=["skipping", "every rollout"])
def test_tokens_reach_the_loss_with_exactly_their_advantages(
    backend, small_run, train, tmp_path, kl_coef
):
    spy, witness = TokenSpy(), Witness(kl_coef=kl_coef)
    run = replace(small_run(backend, steps=1), estimator=spy, objective=witness)
    points = train(run, tmp_path).points
    (batch,) = spy.batches
    assert batch.lengths is not None
    assert batch.token_entropies is not None
    assert batch.token_entropy_exact is not None
    past = torch.arange(batch.token_entropies.shape[2]) >= batch.lengths[..., None]
    assert (batch.token_entropies[past] == 0).all()
    means = batch.token_entropies.sum(dim=2) / batch.lengths
    torch.testing.assert_close(means, batch.token_entropy_exact, rtol=1e-4, atol=1e-5)

    values = spy.values(batch.rewards).flatten()
    lengths = batch.lengths.flatten().long().tolist()
    kept = [i for i in range(len(values)) if i % 5]
    expected = Counter()
    for i in kept:
        if kl_coef or values[i] != 0:
            expected[tuple((values[i] * (1 + torch.arange(lengths[i]))).tolist())] += 1
    found = Counter()
    for inputs in witness.seen:
        masked = zip(inputs.token_advantages, inputs.completion_mask, strict=True)
        rows = [tuple(row[mask].tolist()) for row, mask in masked]
        found.update(row for row in rows if kl_coef or any(row))
    epochs = found.total() / expected.total()
    assert found == {row: epochs * count for row, count in expected.items()}
    assert points[1]["advantage/zero_fraction"] == pytest.approx((values == 0).float().mean())


def test_the_first_ratios_are_one(backend, small_run, train, tmp_path):
    """Log-probabilities at sampling and in the update agree while the weights are the same."""
    witness = Witness()
    train(replace(small_run(backend, steps=1), estimator=Spy(), objective=witness), tmp_path)
    first = witness.seen[0]
    ratio = (first.log_probs - first.old_log_probs)[first.completion_mask]
    assert ratio.abs().max() < 1e-4
    assert not first.old_log_probs.requires_grad


def test_estimators_get_what_the_backend_promises(backend, small_run, train, tmp_path):
    spy = Spy()
    run = small_run(backend)
    spy._narrow(needs=spy.needs | (spy.uses & run.backend.provides))
    run = replace(run, estimator=spy)
    train(run, tmp_path)
    assert [batch.step for batch in spy.batches] == [1, 2, 3, 4, 5]
    for batch in spy.batches:
        assert batch.rewards.shape == (run.prompts_per_step, run.group_size)
        assert set(batch.rewards.unique().tolist()) <= {0.0, 1.0}
        given = {
            field.name
            for field in dataclasses.fields(batch)
            if getattr(batch, field.name) is not None
        }
        assert run.backend.provides - {"reward_parts"} <= given  # the reward has one
        # One id for each group, and none for two problems.
        assert batch.prompt_ids is not None
        assert len(batch.prompt_ids) == run.prompts_per_step
        assert batch.answered is not None
        assert batch.answered.dtype is torch.bool
        # What is right was read.
        assert batch.answered[batch.rewards == 1].all()


def test_parts_of_the_reward_reach_the_estimator(backend, small_run, train, tmp_path):
    if "reward_parts" not in BACKENDS.get(backend).provides:
        pytest.skip("its rewards have no parts")
    spy, task = Spy(), {"reward": {"accuracy": 1, "overlong": 0.5}}
    run = small_run(backend, steps=1, task=task, estimator="gdpo")
    spy._narrow(needs=spy.needs | {"reward_parts"})
    train(replace(run, estimator=spy), tmp_path)
    (batch,) = spy.batches
    assert batch.part_weights == (1.0, 0.5)
    accuracy, overlong = batch.reward_parts.unbind(dim=-1)
    assert overlong.any()
    torch.testing.assert_close(accuracy + 0.5 * overlong, batch.rewards)


def test_the_numbers_of_tokens_are_those_of_the_policy(backend, small_run, train, tmp_path):
    spy, run = Spy(), small_run(backend, optimizer={"lr": 0.03})
    spy._narrow(needs=spy.needs | (spy.uses & run.backend.provides))
    if not spy.uses <= run.backend.provides:
        pytest.skip("the backend does not give them")
    train(replace(run, estimator=spy), tmp_path)
    for batch in spy.batches:
        past = torch.arange(batch.token_kl.shape[2]) >= batch.lengths[..., None]
        assert not batch.token_kl[past].any()
        assert not batch.token_grad_norms[past].any()
        # (1 - π)² for the sampled token, and what the others' π² add to it.
        if batch.token_kl.shape[2] == 1:
            floor = (1 - (-batch.token_entropy).exp()).square()[..., None]
            assert (batch.token_grad_norms >= floor - 1e-6).all()
        assert ((batch.token_grad_norms >= -1e-6) & (batch.token_grad_norms < 2)).all()
    # The policy of the first step is the reference.
    assert spy.batches[0].token_kl.abs().max() < 1e-4
    assert spy.batches[-1].token_kl.abs().max() > 1e-3


@dataclass(kw_only=True)
class Wasteful(RolloutPolicy):
    """Draws twice and trains on the last groups, in reverse."""

    name: ClassVar[str] = "wasteful"

    def __post_init__(self):
        super().__post_init__()
        self.rewards = []

    def collect(self, source, prompts):
        drawn = torch.cat([source.draw(prompts), source.draw(2)])
        chosen = torch.arange(len(drawn)).flip(0)[:prompts]
        self.rewards.append(drawn[chosen])
        return Collected(chosen)


def test_the_rollout_policy_chooses_the_groups(backend, small_run, train, tmp_path):
    spy, policy = Spy(), Wasteful()
    run = replace(small_run(backend), estimator=spy, rollout=policy)
    points = train(run, tmp_path).points
    for batch, rewards in zip(spy.batches, policy.rewards, strict=True):
        assert torch.equal(batch.rewards, rewards.to(batch.rewards))
    drawn = (run.prompts_per_step + 2) / run.prompts_per_step
    assert points[1]["cost/rollouts"] == pytest.approx(drawn)


@pytest.mark.parametrize("policy", [{"name": "gfpo", "metric": "length"}, {"name": "pods"}])
def test_the_rollout_policy_chooses_the_rollouts(backend, small_run, train, tmp_path, policy):
    if Can.SELECTION not in BACKENDS.get(backend).supports:
        pytest.skip("it trains on whole groups")
    spy, witness = Spy(), Witness()
    run = small_run(backend, steps=1, rollout={**policy, "drawn": 7})
    points = train(replace(run, estimator=spy, objective=witness), tmp_path).points[1]
    (batch,) = spy.batches
    size = run.prompts_per_step * run.group_size
    assert batch.rewards.shape == (run.prompts_per_step, run.group_size)
    assert points["cost/rollouts"] == pytest.approx(7 / run.group_size)
    assert points["cost/utilisation"] == pytest.approx(
        spy._keep(Groups(batch)).sum() / 7 * run.group_size / size
    )
    if policy["name"] == "gfpo":
        assert batch.lengths.mean() <= points["cost/tokens"] / (7 * run.prompts_per_step)
    # The estimator knows of the rollouts that are left out nothing.
    solved = (batch.rewards == 1).to(batch.solve_rates).mean(dim=1)
    assert batch.solve_rates.tolist() == pytest.approx(solved.tolist())
    # Rows of the loss have the advantage and the length of the same rollout.
    given = {
        (np.float32(a), int(n))
        for a, n in zip(
            spy.values(batch.rewards).flatten().tolist(), batch.lengths.flatten(), strict=True
        )
    }
    rows = [
        (np.float32(a), int(n))
        for inputs in witness.seen
        for a, n in zip(inputs.advantages.tolist(), inputs.completion_mask.sum(dim=1), strict=True)
    ]
    assert rows
    assert given.issuperset(rows)


def test_truncated_rollouts_count_and_are_not_trained_on(backend, small_run, train, tmp_path):
    spy, witness = Spy(), Witness()
    wild = {"temperature": 3.0}
    if backend == "bandit":
        pytest.skip("its rollouts are one token")
    run = small_run(backend, steps=1, rollout={"mask_truncated": True}, generation=wild)
    points = train(replace(run, estimator=spy, objective=witness), tmp_path).points[1]
    (batch,) = spy.batches
    if not batch.truncated.any():
        pytest.skip("its rollouts are whole")
    keep = spy._keep(Groups(batch))
    whole = keep & ~batch.truncated
    epochs = sum(inputs.rollouts for inputs in witness.seen) / keep.sum()
    assert epochs == round(epochs.item())
    assert sum(inputs.tokens for inputs in witness.seen) == epochs * batch.lengths[whole].sum()
    trained = {np.float32(a) for a in spy.values(batch.rewards)[whole].tolist()}
    assert trained.issuperset(np.float32(a) for i in witness.seen for a in i.advantages.tolist())
    # What is measured of advantages is that of the loss.
    zero = (spy.values(batch.rewards) * whole == 0).double().mean()
    assert points["advantage/zero_fraction"] == pytest.approx(zero.item())


# Numbers that are none


@dataclass(kw_only=True)
class Exploding(Clipped):
    """Turns its loss, or only the gradient, into something that is no number."""

    name: ClassVar[str] = "exploding"

    def __post_init__(self):
        super().__post_init__()
        self.armed = ""

    def loss(self, inputs):
        output = super().loss(inputs)
        if self.armed == "loss":
            return replace(output, loss=output.loss * torch.nan)
        if self.armed == "gradient":
            # The slope of √x at 0 is infinite, times 0.
            return replace(output, loss=output.loss + (0 * output.loss).sqrt())
        return output


@pytest.fixture(params=["loss", "gradient"])
def exploding(request):
    objective = Exploding()

    def arm(step):
        objective.armed = request.param if step == 2 else ""

    return objective, arm


def test_training_stops_at_a_loss_that_is_not_finite(
    backend, small_run, train, tmp_path, exploding
):
    objective, arm = exploding
    run = replace(small_run(backend), objective=objective, estimator=Spy())
    with pytest.raises(TrainingError, match="step 3"):
        train(run, tmp_path, on_metrics=arm)
    assert Checkpoints(tmp_path, run.identity).steps() == [2]
