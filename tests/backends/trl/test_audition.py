"""Auditions of a small random model: what is updated, by how much, and what is measured."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch

from advsweep.backends.models import TinyModel
from advsweep.backends.tiny.weights import export_folder, initial_weights
from advsweep.backends.trl import audition as module
from advsweep.backends.trl.audition import Audition, open_model
from advsweep.errors import BatchError, TrainingError
from advsweep.estimators import ESTIMATORS
from advsweep.logs.rollout_records import RolloutGroup
from advsweep.objectives import OBJECTIVES
from advsweep.tasks.countdown import Countdown

PROMPTS = tuple(f"{a} {b}=" for a in range(3) for b in range(4))
SIZE = 8


def estimator(name, **options):
    return ESTIMATORS.build({"name": name, **options})


def objective(name="clipped", **options):
    return OBJECTIVES.build({"name": name, **options})


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    task, model = Countdown(), TinyModel(width=16, heads=2, kv_heads=1, mlp_width=24)
    weights = initial_weights(model, task.vocabulary_size, torch.Generator().manual_seed(0))
    folder = tmp_path_factory.mktemp("model")
    export_folder(folder, weights, model, task, temperature=1.0)
    return open_model(str(folder))


@pytest.fixture(scope="module")
def groups(opened):
    """Rollouts that the model samples; right are those that begin with an even digit."""
    model, tokenizer = opened
    found = []
    for number, prompt in enumerate(PROMPTS):
        ids = torch.tensor([tokenizer(text=prompt)["input_ids"]] * SIZE)
        torch.manual_seed(number)
        drawn = model.generate(input_ids=ids, max_new_tokens=5, do_sample=True, top_k=0)
        texts = tokenizer.batch_decode(drawn[:, ids.shape[1] :], skip_special_tokens=True)
        rewards = [float(text[:1] in ("0", "2", "4", "6", "8")) for text in texts]
        found.append(RolloutGroup(prompt, rewards, completions=texts))
    return found


@pytest.fixture
def tried(opened, groups):
    return lambda **settings: Audition(*opened, groups, **settings)


def weights_of(model):
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


def test_half_of_the_prompts_is_held_out(tried):
    found = tried()
    assert found.groups == len(PROMPTS) // 2
    assert found.rollouts == len(PROMPTS) // 2 * SIZE
    assert len(found.solve_rates) == len(PROMPTS) // 2
    trained = {prompt for share in found._shares for prompt in share.batch.prompt_ids}
    assert len(trained) == len(PROMPTS) // 2


def test_weights_are_restored_and_the_estimator_is_not_changed(opened, tried):
    model, _ = opened
    before = weights_of(model)
    found, own = tried(), estimator("opo")
    state = copy.deepcopy(own.state_dict())
    first = found.audition(own, objective())
    assert torch.equal(weights_of(model), before)
    assert own.state_dict() == state
    again = found.audition(own, objective())
    assert again.answers.log_odds == pytest.approx(first.answers.log_odds, nan_ok=True)
    assert (first.answers.kl > 0).all()


def test_every_update_has_the_same_length(opened, groups, monkeypatch):
    model, _ = opened
    lengths, step = [], Audition._step

    def measured(self, optimizer):
        before = weights_of(model)
        step(self, optimizer)
        lengths.append((weights_of(model) - before).norm().item())

    found = Audition(*opened, groups, updates=3)
    monkeypatch.setattr(Audition, "_step", measured)
    for name in ("rloo", "grpo", "nsr"):
        found.audition(estimator(name), objective())
    assert len(lengths) == 9
    assert lengths == pytest.approx([found.step_norm] * 9, rel=1e-3)


@pytest.mark.parametrize("kl", [0.001, 0.1])
def test_the_length_gives_the_kl_that_is_asked_for(tried, kl):
    found = tried(kl=kl)
    measured = found.audition(estimator("rloo"), objective()).answers.kl.mean()
    assert measured == pytest.approx(kl, rel=0.15)


def test_right_answers_become_likelier_of_other_prompts(tried):
    found = tried(kl=0.2)
    better = found.audition(estimator("psr"), objective())
    assert np.nanmean(better.answers.log_odds) > 0.1
    assert better.answers.pass_at_1.mean() > 0.01
    assert better.answers.pass_at_k.mean() > 0


def test_equal_halves_have_equal_gradients(opened, groups):
    mixed = [group for group in groups if 0 < sum(group.rewards) < SIZE][:2]
    found = Audition(*opened, mixed * 4, updates=4, kl=1e-4)
    assert found.groups == 4
    half = found.audition(estimator("rloo"), objective()).half_cosine
    assert half == pytest.approx(1, abs=1e-2)


def test_a_scale_of_advantages_has_no_effect(tried):
    found = tried()
    one, other = (found.audition(estimator(name), objective()) for name in ("rloo", "dr_grpo"))
    assert one.answers.log_odds == pytest.approx(other.answers.log_odds, rel=1e-2, nan_ok=True)


@pytest.mark.parametrize("name", ["clipped", "gspo", "cross_entropy", "sapo"])
def test_a_gradient_in_parts_is_that_of_the_whole(tried, monkeypatch, name):
    loss = objective("clipped", ratio="sequence") if name == "gspo" else objective(name)
    found = tried(updates=2)
    loss = loss.for_completions(6)
    inputs = found._inputs(found._shares[0], estimator("psr"), loss)
    whole = found._gradient(loss, *inputs)
    monkeypatch.setattr(module, "_STATES", 16 * 12 * 3)
    assert found._gradient(loss, *inputs) == pytest.approx(whole, rel=1e-3, abs=1e-6)


def test_the_gradient_is_that_of_the_policy(tried, opened):
    """Σ A ∇log π over the rollouts, by autograd of a plain pass."""
    model, tokenizer = opened
    found = tried(updates=2)
    loss = objective("clipped", aggregation="seq_mean_token_sum")
    share = found._shares[0]
    tokens, inputs = found._inputs(share, estimator("rloo"), loss)
    gradient = found._gradient(loss, tokens, inputs)
    total = 0.0
    rows = zip(tokens.prompts, tokens.completions, inputs.advantages, strict=True)
    for prompt, completion, advantage in rows:
        assert completion[-1] == tokenizer.eos_token_id
        ids = torch.tensor([[*prompt, *completion]])
        log_p = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1)
        own = log_p.gather(1, ids[0, 1:, None])[len(prompt) - 1 :]
        total = total - advantage * own.sum() / inputs.rollouts
    expected = torch.autograd.grad(total, list(model.parameters()))
    flat = torch.cat([part.flatten() for part in expected])
    assert gradient == pytest.approx(flat, rel=1e-3, abs=1e-6)


def test_own_rollouts_have_surprisal_like_their_entropy(tried):
    found = tried()
    assert found.surprisal == pytest.approx(found.entropy, abs=0.2)
    assert abs(tried(temperature=0.3).surprisal - tried(temperature=0.3).entropy) > 0.5


def test_groups_are_cut_to_one_size(opened, groups):
    whole, cut = (Audition(*opened, groups, group_size=size).groups for size in (None, 4))
    assert cut == 2 * whole
    mixed = [
        group._replace(rewards=group.rewards[:n], completions=group.completions[:n])
        for group, n in zip(groups, [8, 4, 4, 3] * 3, strict=True)
    ]
    found = Audition(*opened, mixed, updates=2)
    assert all(share.batch.rewards.shape[1] == 4 for share in found._shares)
    assert (found.audition(estimator("grpo"), objective()).answers.kl > 0).all()


def test_what_an_estimator_needs(opened, groups, tried):
    found = tried()
    assert found.lacking(estimator("fade")) == []
    assert found.lacking(estimator("intuitor")) == []
    assert found.lacking(estimator("aapo")) == ["ref_rewards"]
    with_references = [g._replace(inputs={"ref_rewards": [0.5] * SIZE}) for g in groups]
    complete = Audition(*opened, with_references)
    assert complete.lacking(estimator("aapo")) == []
    complete.audition(estimator("aapo"), objective())


def test_no_gradient_is_an_error_and_leaves_the_weights(opened, groups, tried):
    model, _ = opened
    before = weights_of(model)
    alike = [g._replace(rewards=[float(number % 2)] * SIZE) for number, g in enumerate(groups)]
    with pytest.raises(TrainingError, match="no rollout has a gradient"):
        Audition(*opened, alike)
    assert torch.equal(weights_of(model), before)


def test_a_conversation_is_its_answer_and_needs_a_template(opened, groups):
    messages = json.dumps([{"role": "user", "content": "1 2="}])
    some = [g._replace(prompt=messages) for g in groups[:2]]
    with pytest.raises(BatchError, match="no chat template"):
        Audition(*opened, [*some, *groups[2:]])
    texts = [json.dumps([{"role": "assistant", "content": text}]) for text in groups[0].completions]
    _, tokenizer = opened
    for text, plain in zip(texts, groups[0].completions, strict=True):
        assert module._completion_tokens(tokenizer, text) == module._completion_tokens(
            tokenizer, plain
        )
    assert module._completion_tokens(tokenizer, "[" * 100_000)[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g._replace(completions=None), "at least two prompts, and two groups"),
        (
            lambda g: g._replace(rewards=[0.5] * SIZE),
            "right and wrong rollouts, got the reward 0.5 alone",
        ),
        (lambda g: g._replace(rewards=[i / 8 for i in range(SIZE)]), "--success-at REWARD says"),
        (lambda g: g._replace(prompt="ü" + g.prompt[:0]), "got 1"),
    ],
)
def test_useless_rollouts(opened, groups, change, message):
    with pytest.raises(BatchError, match=message):
        Audition(*opened, [change(group) for group in groups])


def test_rollouts_that_do_not_fit_the_model(opened, groups):
    long = [g._replace(completions=[text + "1" * 40 for text in g.completions]) for g in groups]
    with pytest.raises(BatchError, match=r"expected at most \d+ tokens with the prompt, got 4"):
        Audition(*opened, long)


def test_graded_rewards_with_a_threshold(opened, groups):
    graded = [g._replace(rewards=[0.9 * r for r in g.rewards]) for g in groups]
    found = Audition(*opened, graded, success_at=0.9)
    plain = Audition(*opened, groups)
    assert found.solve_rates == pytest.approx(plain.solve_rates)


def test_an_adapter_alone_is_updated(opened, groups):
    model, tokenizer = opened
    adapted, _ = open_model(model.name_or_path, lora_rank=2)
    found = Audition(adapted, tokenizer, groups, updates=4)
    trained = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)
    assert found.audition(estimator("psr"), objective()).answers.kl.mean() > 0
