"""Sampling draws from the model's own distribution and says so truthfully."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from advsweep.backends.tiny import sampling
from advsweep.backends.tiny.network import Network
from advsweep.backends.tiny.sampling import TinySampler, TokenSampling, sample
from advsweep.backends.tiny.tokens import Encoded, decode, encode
from advsweep.backends.tiny.weights import flatten


def draw(weights, model, task, prompts, size, *, temperature=1.0, seed=0, **how):
    generator = torch.Generator().manual_seed(seed)
    network = Network.of(flatten(weights, model), model)
    how = TokenSampling(temperature=temperature, generator=generator, **how)
    return sample(network, task, decode(prompts.tokens, task), size, how)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_what_is_told_of_tokens_is_that_of_the_plain_forward_pass(
    any_model, make_weights, task, prompts, plain_logits, temperature
):
    weights = make_weights(any_model)
    rollouts = draw(weights, any_model, task, prompts, 3, temperature=temperature, squares=True)
    assert len(set(rollouts.lengths.tolist())) > 3
    for row, length in enumerate(rollouts.lengths.tolist()):
        start = int(prompts.lengths[row // 3])
        prompt = torch.from_numpy(prompts.tokens[row // 3, :start])
        tokens = rollouts.tokens[row, :length]
        logits = plain_logits(weights, any_model, torch.cat((prompt, tokens)))
        log_p = (logits[start - 1 : -1] / temperature).log_softmax(-1)
        expected = log_p.gather(1, tokens[:, None])[:, 0]
        entropies = -(log_p.exp() * log_p).sum(-1)
        torch.testing.assert_close(rollouts.log_probs[row, :length], expected, atol=2e-5, rtol=0)
        torch.testing.assert_close(rollouts.entropies[row, :length], entropies, atol=2e-5, rtol=0)
        uniform = torch.full_like(log_p, 1 / task.vocabulary_size)
        certainties = F.kl_div(log_p, uniform, reduction="none").sum(-1)
        found = rollouts.certainties[row, :length]
        torch.testing.assert_close(found, certainties, atol=2e-5, rtol=0)
        squares = log_p.exp().square().sum(-1)
        torch.testing.assert_close(rollouts.squares[row, :length], squares, atol=2e-5, rtol=0)


def test_rollouts_end_at_their_end_mark_or_the_limit(model, make_weights, task, prompts):
    rollouts = draw(make_weights(model), model, task, prompts, 40)
    assert rollouts.tokens.shape == (40 * len(prompts.lengths), task.max_completion_length)
    assert set(rollouts.lengths.tolist()) >= {1, task.max_completion_length}
    for tokens, length in zip(rollouts.tokens.tolist(), rollouts.lengths.tolist(), strict=True):
        ends = [i for i, token in enumerate(tokens) if token == task.eos_id]
        assert ends in ([], [length - 1])
        assert ends or length == task.max_completion_length
        assert all(token == task.pad_id for token in tokens[length:])
    past = ~rollouts.mask
    assert past.any()
    assert not rollouts.log_probs[past].any()
    assert not rollouts.entropies[past].any()
    assert not rollouts.certainties[past].any()


@pytest.mark.slow
def test_rollouts_stand_with_their_prompts_whatever_is_sampled_together(
    model, make_weights, task, prompts, plain_logits, monkeypatch
):
    """Groups larger than a chunk, and chunks that hold several groups or parts of one."""
    weights, size = make_weights(model), 7
    for columns in (3, 7, 20):
        monkeypatch.setattr(sampling, "_COLUMNS", columns)
        rollouts = draw(weights, model, task, prompts, size)
        assert len(rollouts.lengths) == size * len(prompts.lengths)
        for row in range(len(rollouts.lengths)):
            length = int(prompts.lengths[row // size])
            prompt = torch.from_numpy(prompts.tokens[row // size, :length])
            log_p = plain_logits(weights, model, prompt)[-1].log_softmax(-1)
            found = rollouts.log_probs[row, 0]
            torch.testing.assert_close(found, log_p[rollouts.tokens[row, 0]], atol=2e-5, rtol=0)


@pytest.mark.parametrize("temperature", [1e-4, 0.0])
def test_a_low_temperature_is_greedy(model, make_weights, task, prompts, plain_logits, temperature):
    weights = make_weights(model)
    rollouts = draw(weights, model, task, prompts, 2, temperature=temperature)
    for row, length in enumerate(rollouts.lengths.tolist()):
        sequence = torch.from_numpy(prompts.tokens[row // 2, : prompts.lengths[row // 2]])
        for token in rollouts.tokens[row, :length]:
            assert plain_logits(weights, model, sequence)[-1].argmax() == token
            sequence = torch.cat((sequence, token[None]))


def test_top_p_samples_from_the_nucleus_in_its_proportions(
    model, make_weights, task, prompts, plain_logits
):
    weights = make_weights(model)
    one = Encoded(prompts.tokens[:1], prompts.lengths[:1])
    rollouts = draw(weights, model, task, one, 4000, top_p=0.5)
    p = plain_logits(weights, model, torch.from_numpy(one.tokens[0, : one.lengths[0]]))[-1]
    p = p.softmax(-1)
    nucleus = sampling._nucleus(p[:, None], 0.5)[:, 0]
    expected = nucleus / nucleus.sum()
    counts = torch.bincount(rollouts.tokens[:, 0], minlength=len(p)) / 4000
    assert set(rollouts.tokens[:, 0].tolist()) <= set(nucleus.nonzero()[:, 0].tolist())
    # Five standard errors of a share of 4,000 draws.
    torch.testing.assert_close(counts, expected, atol=5 * 0.5 / 4000**0.5, rtol=0)
    # What is told of a token stays that of the whole distribution.
    found = rollouts.log_probs[:, 0].exp()
    torch.testing.assert_close(found, p[rollouts.tokens[:, 0]], atol=2e-5, rtol=0)


def test_the_sampler_answers_problem_by_problem(model, make_weights, task, problems):
    weights = make_weights(model)
    sampler = TinySampler(flatten(weights, model), model, task)
    answers = sampler.sample(problems, 6, temperature=1.0, seed=0)
    assert [len(texts) for texts in answers.texts] == [6] * len(problems)
    assert answers.token_entropy is not None
    assert answers.token_entropy.shape == (len(problems),)
    assert (answers.token_entropy > 0).all()
    assert (answers.token_entropy < math.log(task.vocabulary_size)).all()
    # The mean over tokens, not over completions.
    prompts = encode([problem.prompt for problem in problems], task)
    generator = sampling.torch_generator(0, sampling.Stream.EVALUATION)
    how = TokenSampling(temperature=1.0, generator=generator)
    rollouts = sample(
        Network.of(flatten(weights, model), model), task, decode(prompts.tokens, task), 6, how
    )
    rows = slice(12, 18)
    expected = rollouts.entropies[rows].sum() / rollouts.lengths[rows].sum()
    assert answers.token_entropy[2] == pytest.approx(expected.item(), rel=1e-5)


def test_the_kl_is_that_of_the_next_tokens_summed_over_an_answer(
    model, make_weights, task, problems, plain_logits
):
    """Against a plain forward pass, of the answers 0 and 32; 12 answers to a problem."""
    weights, base = make_weights(model), make_weights(model, seed=5)
    some, temperature = problems[:4], 0.7
    alone = TinySampler(flatten(weights, model), model, task).sample(
        some, 12, temperature=temperature, seed=0
    )
    found = TinySampler(flatten(weights, model), model, task, flatten(base, model)).sample(
        some, 12, temperature=temperature, seed=0
    )
    assert found.texts == alone.texts
    assert alone.kl_base is None
    assert found.kl_base is not None
    prompts = encode([problem.prompt for problem in some], task)
    generator = sampling.torch_generator(0, sampling.Stream.EVALUATION)
    how = TokenSampling(temperature=temperature, generator=generator)
    rollouts = sample(
        Network.of(flatten(weights, model), model), task, decode(prompts.tokens, task), 12, how
    )
    for problem, answer in ((0, 0), (2, 8)):
        row = problem * 12 + answer
        prompt = torch.from_numpy(prompts.tokens[problem, : prompts.lengths[problem]])
        ids = torch.cat((prompt, rollouts.tokens[row, : rollouts.lengths[row]]))
        log_p, log_q = (
            (plain_logits(w, model, ids)[len(prompt) - 1 : -1] / temperature).log_softmax(-1)
            for w in (weights, base)
        )
        expected = (log_p.exp() * (log_p - log_q)).sum()
        assert found.kl_base[problem] == pytest.approx(expected.item(), rel=1e-4)
    assert np.isnan(found.kl_base[[1, 3]]).all()


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (1.0, 0.9)])
def test_truncated_answers_have_no_kl(model, make_weights, task, problems, temperature, top_p):
    weights = make_weights(model)
    sampler = TinySampler(flatten(weights, model), model, task, flatten(weights, model), top_p)
    assert sampler.sample(problems, 1, temperature=temperature, seed=0).kl_base is None


def test_the_sampler_keeps_the_weights_it_was_given(model, make_weights, task, problems):
    weights = make_weights(model)
    sampler = TinySampler(flatten(weights, model), model, task)
    before = sampler.sample(problems, 2, temperature=1.0, seed=0)
    for weight in weights.values():
        weight.zero_()
    assert sampler.sample(problems, 2, temperature=1.0, seed=0).texts == before.texts
