"""The update equals a loss written out naively, whatever it leaves out or does in one go."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from advsweep.backends.tiny.network import Network
from advsweep.backends.tiny.sampling import TokenSampling, sample
from advsweep.backends.tiny.tokens import decode
from advsweep.backends.tiny.update import Experience, PolicyUpdate
from advsweep.backends.tiny.weights import flatten, unflatten
from advsweep.config.settings import AdamW
from advsweep.errors import TrainingError
from advsweep.objectives.clipped import Clipped
from tests.backends.tiny.conftest import MODELS, Witness

G = 4
TEMPERATURE = 0.9
# No clipping, no moments: a step of length lr along the sign of a gradient says little, so
# tests read the gradients that a step leaves behind.
FREE = AdamW(max_grad_norm=0.0, lr=1e-6)


@pytest.fixture
def experience(model, make_weights, task, prompts):
    """Rollouts of slightly other weights, so that ratios are not 1 and some are clipped."""
    network = Network.of(flatten(make_weights(model, seed=1), model), model)
    generator = torch.Generator().manual_seed(0)
    sampling = TokenSampling(temperature=1.3, generator=generator)
    rollouts = sample(network, task, decode(prompts.tokens, task), G, sampling)
    advantages = torch.randn(len(rollouts.lengths), generator=generator)
    advantages[: 2 * G] = 0
    advantages[3 * G + 1] = 0
    keep = torch.ones(len(advantages), dtype=torch.bool)
    keep[5 * G : 6 * G] = False
    keep[7 * G + 2] = False
    # One that is left out counts in the mean over rollouts, as a masked truncated one does.
    counted = keep.clone()
    counted[7 * G + 2] = True
    return Experience(prompts, rollouts, G, advantages, keep, counted)


@pytest.fixture
def make_update(small_run, model, make_weights):
    def make(objective, optimizer=FREE, **backend):
        run = small_run(
            "tiny",
            backend={"minibatches": 1, **backend},
            generation={"temperature": TEMPERATURE},
            prompts_per_step=16,
        )
        run = replace(run, objective=objective, optimizer=optimizer)
        flat, base = (flatten(make_weights(model, seed=seed), model) for seed in (2, 3))
        return PolicyUpdate(run, run.backend, model, flat, base), flat

    return make


def views(flat):
    return unflatten(flat.detach(), MODELS["grouped"])


def gradients(flat):
    return views(flat.grad)


def naive_loss(objective, weights, base, model, experience, plain_logits):
    """Every kept rollout by itself, through the plain forward pass."""
    loss = torch.zeros(())
    kept = experience.keep.nonzero()[:, 0].tolist()
    tokens = int(experience.rollouts.lengths[experience.keep].sum())
    for row in kept:
        start = int(experience.prompts.lengths[row // G])
        prompt = torch.from_numpy(experience.prompts.tokens[row // G, :start])
        length = int(experience.rollouts.lengths[row])
        completion = experience.rollouts.tokens[row, :length]
        sequence = torch.cat((prompt, completion))
        log_p, reference = (
            (plain_logits(w, model, sequence)[start - 1 : -1] / TEMPERATURE).log_softmax(-1)
            for w in (weights, base)
        )
        log_probs = log_p.gather(1, completion[:, None])[:, 0]
        d = reference.gather(1, completion[:, None])[:, 0] - log_probs
        ratio = (log_probs - experience.rollouts.log_probs[row, :length]).exp()
        a = experience.advantages[row]
        clipped = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
        per_token = -torch.minimum(ratio * a, clipped * a) + objective.kl_coef * (d.exp() - d - 1)
        entropies = -(log_p.exp() * log_p).sum(-1)
        loss = loss + per_token.mean() / int(experience.counted.sum())
        loss = loss - objective.entropy_coef * entropies.sum() / tokens
    return loss


OBJECTIVES = {
    "plain": Clipped(),
    "kl": Clipped(kl_coef=0.3),
    "kl and entropy": Clipped(kl_coef=0.3, entropy_coef=0.1),
}


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES.keys())
def test_gradients_equal_those_of_the_naive_loss(
    objective, experience, make_update, model, make_weights, plain_logits
):
    update, flat = make_update(objective)
    plain = {name: w.clone().requires_grad_() for name, w in views(flat).items()}
    metrics = update.step(1, experience)
    base = make_weights(model, seed=3)
    loss = naive_loss(objective, plain, base, model, experience, plain_logits)
    torch.autograd.backward(loss)
    assert metrics["loss/clip_fraction"] > 0.01
    if not objective.entropy_coef:
        total = metrics["loss/policy"] + objective.kl_coef * metrics.get("loss/kl", 0.0)
        assert total == pytest.approx(loss.item(), abs=1e-5)
    expected = {name: w.grad for name, w in plain.items()}
    norm = torch.stack([g.norm() for g in expected.values()]).norm().item()
    assert metrics["optim/grad_norm"] == pytest.approx(norm, rel=1e-4)
    for name, gradient in gradients(flat).items():
        torch.testing.assert_close(gradient, expected[name], atol=2e-5 * norm, rtol=0)


def test_skipping_rollouts_of_advantage_0_changes_nothing(experience, make_update):
    found = []
    for skip in (True, False):
        update, flat = make_update(Clipped(), skip_zero_advantages=skip)
        metrics = update.step(1, experience)
        found.append((metrics, flat.grad, flat.detach()))
    (skipped, fewer, one), (whole, all_of_them, other) = found
    assert skipped == pytest.approx(whole, rel=1e-5)
    scale = whole["optim/grad_norm"]
    torch.testing.assert_close(fewer, all_of_them, atol=1e-6 * scale, rtol=0)
    torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-6)


def test_advantages_of_0_alone_still_move_the_moments(experience, make_update):
    """AdamW goes on with its momentum, as it does when nothing is skipped."""
    nothing = replace(experience, advantages=torch.zeros_like(experience.advantages))
    ends = []
    for skip in (True, False):
        update, flat = make_update(Clipped(), AdamW(lr=1e-3), skip_zero_advantages=skip)
        update.step(1, experience)
        before = flat.detach().clone()
        metrics = update.step(2, nothing)
        assert metrics["optim/grad_norm"] == 0
        assert metrics["loss/policy"] == 0
        assert not torch.equal(before, flat)
        ends.append(flat.detach())
    torch.testing.assert_close(*ends, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (3, 1), (4, 2), (11, 1)])
def test_minibatches_hold_whole_groups_and_epochs_repeat_them(
    experience, make_update, minibatches, epochs
):
    """12 groups of 4, of which one is not kept; one more rollout only counts."""
    witness = Witness()
    update, _ = make_update(witness, minibatches=minibatches, inner_epochs=epochs)
    update.step(1, experience)
    rollouts = [inputs.rollouts for inputs in witness.seen]
    # Group 5 is left out; 11 minibatches put two groups in the first.
    expected = {
        1: [44],
        3: [16, 12, 16],
        4: [12, 8, 12, 12],
        11: [8, *[4] * 9],
    }
    assert rollouts == expected[minibatches] * epochs
    given = torch.cat([inputs.advantages for inputs in witness.seen])
    used = experience.advantages[experience.keep & (experience.advantages != 0)]
    assert given.tolist() == used.tolist() * epochs


def test_gradients_are_clipped(experience, make_update):
    update, flat = make_update(Clipped(), AdamW(lr=1e-6, max_grad_norm=1e-3))
    metrics = update.step(1, experience)
    assert metrics["optim/grad_norm"] > 0.01
    assert flat.grad.norm() == pytest.approx(1e-3, rel=1e-3)


def test_a_loss_that_is_no_number_leaves_the_weights_alone(experience, make_update):
    update, flat = make_update(Clipped())
    before = flat.detach().clone()
    broken = experience.advantages.clone()
    broken[-1] = torch.nan
    with pytest.raises(TrainingError, match="step 7: expected a finite loss, got nan"):
        update.step(7, replace(experience, advantages=broken))
    assert torch.equal(before, flat)
