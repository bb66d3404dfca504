"""The tiny backend and this one, on the same rollouts of the same model: loss and gradient.

Neither depends on the number of forward passes of an update.
"""

from dataclasses import replace

import pytest
import torch

from advsweep.backends.randomness import Stream, numpy_generator, torch_generator
from advsweep.backends.tiny import pretraining
from advsweep.backends.tiny import update as tiny_update
from advsweep.backends.tiny.network import Network
from advsweep.backends.tiny.sampling import TokenSampling, sample
from advsweep.backends.tiny.tokens import encode
from advsweep.backends.tiny.update import Experience, PolicyUpdate
from advsweep.backends.tiny.weights import flatten, unflatten
from advsweep.backends.trl import steps
from advsweep.backends.trl.options import Layout
from advsweep.backends.trl.steps import StepEffect
from advsweep.backends.trl.training import Training
from advsweep.objectives import OBJECTIVES

PROMPTS, SIZE = 6, 4


@pytest.fixture
def perturbed(small_run):
    """The base model, and one that has moved away from it: ratios are not 1 and some are cut."""
    run = small_run("tiny")
    base = pretraining.base_weights(run.model, run.task)
    generator = torch_generator(5, Stream.WEIGHTS)
    # A file of weights is read in any order.
    moved = {
        name: weight + 0.02 * torch.randn(weight.shape, generator=generator)
        for name, weight in sorted(base.items())
    }
    return base, moved


def drawn(run, base):
    problems = run.task.draw(PROMPTS, numpy_generator(3, Stream.PROMPTS))
    texts = [problem.prompt for problem in problems]
    sampling = TokenSampling(
        temperature=run.generation.temperature, generator=torch_generator(4, Stream.ROLLOUTS)
    )
    network = Network.of(flatten(base, run.model), run.model)
    return encode(texts, run.task), sample(network, run.task, texts, SIZE, sampling)


def as_rows(prompts, rollouts, pad_id):
    """The same rollouts as TRL keeps them: prompts padded on the left, completions on the right."""
    width = int(prompts.lengths.max())
    ids, mask = torch.full((PROMPTS, width), pad_id), torch.zeros(PROMPTS, width, dtype=torch.long)
    for row, length in enumerate(prompts.lengths):
        ids[row, width - length :] = torch.from_numpy(prompts.tokens[row, :length])
        mask[row, width - length :] = 1
    return {
        "prompt_ids": ids.repeat_interleave(SIZE, dim=0),
        "prompt_mask": mask.repeat_interleave(SIZE, dim=0),
        "completion_ids": rollouts.tokens,
        "completion_mask": rollouts.mask.long(),
        "old_per_token_logps": rollouts.log_probs,
    }


@pytest.mark.parametrize(
    "objective",
    [
        {"name": "clipped"},
        {"name": "clipped", "aggregation": "token_mean", "clip_high": 0.28},
        {"name": "clipped", "ratio": "sequence", "kl_coef": 0.1, "entropy_coef": 0.05},
        {"name": "cross_entropy", "aggregation": "constant", "max_tokens": 12, "kl_coef": 0.1},
    ],
    ids=["grpo", "dapo", "gspo, KL, entropy", "cross-entropy, KL"],
)
@pytest.mark.parametrize(
    ("skip", "per_token"), [(True, False), (False, True)], ids=["of rollouts", "of tokens"]
)
def test_one_batch_gives_equal_loss_and_gradient(
    small_run, perturbed, tmp_path, objective, skip, per_token, monkeypatch
):
    monkeypatch.setattr(tiny_update, "_KL_ROLLOUTS", PROMPTS * SIZE)
    monkeypatch.setattr(steps, "_FEWEST_KL_ROLLOUTS", PROMPTS * SIZE)
    monkeypatch.setattr(steps, "_MOST_KL_ROLLOUTS", PROMPTS * SIZE)
    base, moved = perturbed
    changes = {
        "objective": objective,
        "generation": {"temperature": 0.8},
        "group_size": SIZE,
        "prompts_per_step": PROMPTS,
    }
    settings = {"minibatches": 1, "skip_zero_advantages": skip}
    tiny = small_run("tiny", backend=settings, **changes)
    ours = small_run("trl", backend={**settings, "device_batch": None}, **changes)
    prompts, rollouts = drawn(tiny, base)
    advantages = torch.arange(PROMPTS * SIZE, dtype=torch.float32) % 5 - 2
    if per_token:
        advantages = advantages[:, None] * (1 + torch.arange(rollouts.tokens.shape[1]) % 3)
    keep = torch.arange(PROMPTS * SIZE) % 7 != 0

    flat = flatten(moved, tiny.model)
    update = PolicyUpdate(tiny, tiny.backend, tiny.model, flat, flatten(base, tiny.model))
    # Those that are left out count, as if they were truncated.
    counted = torch.ones_like(keep)
    experience = Experience(prompts, rollouts, SIZE, advantages, keep, counted)
    every = slice(0, PROMPTS * SIZE)
    expected = update._loss(*update._prepare(experience, every, rollouts.log_probs))
    torch.autograd.backward(expected.loss)

    backend = ours.backend
    training = Training(ours, backend, tmp_path, Silent(), tmp_path)
    trainer = training.trainer
    model = trainer.model
    rows = as_rows(prompts, rollouts, trainer.pad_id)
    if ours.objective.needs_reference:
        ids = torch.cat((rows["prompt_ids"], rows["completion_ids"]), dim=1)
        mask = torch.cat((rows["prompt_mask"], rows["completion_mask"]), dim=1)
        with torch.no_grad():
            rows["ref_per_token_logps"], _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.ref_model, ids, mask, rows["completion_ids"].shape[1]
            )
    model.load_state_dict(base, strict=False)
    effect = StepEffect(trainer, {**rows, "keep": keep}, entropies=True)
    model.load_state_dict(moved, strict=False)
    assert effect.metrics() == {
        "policy/kl_step": pytest.approx(update.kl_step(experience), rel=1e-3),
        "entropy/change": pytest.approx(update.entropy_change(experience), abs=1e-5),
    }
    flags = {"keep": keep, "counted": counted}
    trainer._buffered_inputs = [{**rows, "advantages": advantages, **flags}]
    trainer._count_shares()
    loss = trainer._compute_loss(model, {**trainer._buffered_inputs[0], "part": 0})
    loss.backward()

    assert loss.item() == pytest.approx(expected.loss.item(), rel=1e-5, abs=1e-6)
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    of_tiny = unflatten(flat.grad, tiny.model)
    assert set(gradients) == set(of_tiny)
    largest = flat.grad.abs().max().item()
    assert largest > 0.01
    for name, gradient in of_tiny.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-5, atol=1e-5 * largest)


# Options with which the objectives that choose tokens of a minibatch choose some.
CHOOSING = {
    # All that may be drawn are: the draw is by the last digits of log π, which rounding changes.
    "clip_cov": {"cov_low": -0.1, "fraction": 1.0, "clip_low": 1.0, "clip_high": 100.0},
    "kl_cov": {"fraction": 0.2, "penalty": 2.0},
    "m2po": {"threshold": 0.02},
}
SPECS = [{"name": name, **CHOOSING.get(name, {})} for name in OBJECTIVES.names()]
SPECS += [
    {"name": "m2po", "threshold": 0.02, "rule": "released"},
    {"name": "cross_entropy", "top_entropy_quantile": 0.4, "entropy_coef": 0.5, "kl_coef": 0.1},
]


def test_the_gradient_of_an_update_is_that_of_any_number_of_passes(small_run, perturbed, tmp_path):
    base, moved = perturbed
    rollouts = PROMPTS * SIZE
    changes = {"group_size": SIZE, "prompts_per_step": PROMPTS}
    # One whose entropies have a gradient, with every release of TRL.
    objective = {"name": "clipped", "entropy_coef": 0.1}
    run = small_run("trl", backend={"minibatches": 1}, objective=objective, **changes)
    prompts, sampled = drawn(small_run("tiny", **changes), base)
    training = Training(run, run.backend, tmp_path, Silent(), tmp_path)
    trainer = training.trainer
    trainer.model.load_state_dict(moved, strict=False)
    rows = as_rows(prompts, sampled, trainer.pad_id)
    rows |= {
        "ref_per_token_logps": rows["old_per_token_logps"] - 0.1,
        "advantages": torch.linspace(2, -1, rollouts) ** 3,
        "keep": torch.arange(rollouts) % 7 != 0,
        # A pass of 2 rollouts in which none takes part.
        "counted": torch.arange(rollouts) > 0,
    }
    rows["keep"][8:10] = False

    def gradient(device_batch):
        trainer._layout = Layout(rollouts, 1, 1, device_batch)
        starts = range(0, rollouts, device_batch)
        parts = [{k: v[at : at + device_batch] for k, v in rows.items()} for at in starts]
        trainer._buffered_inputs = parts
        trainer._count_shares()
        trainer.model.zero_grad()
        for part, inputs in enumerate(parts):
            trainer._compute_loss(trainer.model, {**inputs, "part": part}).backward()
        return torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()])

    for spec in SPECS:
        trainer._run = replace(run, objective=OBJECTIVES.build(spec))
        whole = gradient(rollouts)
        largest = whole.abs().max().item()
        assert largest > 0.001, spec
        for device_batch in (8, 2):
            torch.testing.assert_close(
                gradient(device_batch),
                whole,
                rtol=1e-4,
                atol=1e-5 * largest,
                msg=lambda text, spec=spec: f"{spec}: {text}",
            )


def test_a_training_in_passes_is_one_in_whole_minibatches(parity_run, train, tmp_path):
    """As TRL splits a step: several updates of several passes."""
    metrics = []
    for name, device_batch in (("whole", None), ("passes", 3)):
        run = parity_run(
            backend={"minibatches": 2, "inner_epochs": 2, "device_batch": device_batch},
            objective={"name": "clipped", "top_entropy_quantile": 0.5, "entropy_coef": 0.5},
            # AdamW makes steps of a gradient's rounding, too: small ones.
            optimizer={"lr": 1e-6},
            steps=1,
        )
        metrics.append(train(run, tmp_path / name).lasting[1])
    for name in ("loss/policy", "optim/grad_norm"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], rel=1e-3, abs=1e-6), name


class Silent:
    """A reporter of a training that is not started, though its model is loaded."""

    def progress(self, stage, done, total):
        assert stage == "loading the model"

    def log(self, message):
        assert message.startswith("backend.share_prompts=auto: ")
